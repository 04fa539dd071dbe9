"""Install the servers that the tests run against and that don't come as wheels: `make servers`, on Debian, as root.

It never fails: a server that can't be had is named in the reason of the tests that are skipped for it. With `--in-ci`
it installs only where the variable CI says so, since nobody wants a test run to change their machine, and else says
what is missing.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WITHIN_S = 300
AZURITE = "3.35.0"
POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian asks it whether a service may be started: 101 is no."""
APT = [
    "apt-get",
    "-q",
    "-y",
    "-o",
    "DPkg::Lock::Timeout=60",
    "-o",
    "Acquire::Retries=2",
    "-o",
    "Acquire::http::Timeout=20",
]


def missing() -> list[str]:
    """The Debian packages of the servers that are not here, of the compiler that moves their clocks, and of the model
    checker."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    there = {
        "postgresql": shutil.which("initdb") or any(Path("/usr/lib/postgresql").glob("*/bin/initdb")),
        "pgbouncer": shutil.which("pgbouncer", path=path),
        "redis-server": shutil.which("redis-server", path=path),
        "mariadb-server": shutil.which("mariadbd", path=path) or shutil.which("mysqld", path=path),
        "default-jre-headless": shutil.which("java"),
        "zookeeper": Path("/usr/share/java/zookeeper.jar").exists(),
        "libslf4j-java": Path("/usr/share/java/slf4j-simple.jar").exists(),
        "gcc": shutil.which("cc"),
        "libc6-dev": shutil.which("cc"),
        "spin": shutil.which("spin"),
    }
    return [package for package, found in there.items() if not found]


@contextmanager
def services_stay_down() -> Iterator[None]:
    """The tests start servers of their own; those of the packages must not run beside them."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def apt(*arguments: str) -> bool:
    """Whether it did what was asked."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            [*APT, *arguments], env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"servers: apt-get {arguments[0]}: {error}")
        return False
    if done.returncode:
        print(f"servers: apt-get {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}")
    return done.returncode == 0


def install_azurite() -> None:
    """The one server that comes from npm, where there is one."""
    if shutil.which("npm") is None or shutil.which("azurite-blob") is not None:
        return
    print("servers: installing azurite by npm for the tests", flush=True)
    command = ["npm", "install", "--global", "--silent", "--no-fund", "--no-audit", f"azurite@{AZURITE}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"servers: npm: {error}")
        return
    if done.returncode:
        print(f"servers: npm could not install azurite: {done.stderr.strip()[-500:]}")


def install(packages: list[str]) -> None:
    start = time.monotonic()
    print(f"servers: installing {', '.join(packages)} for the tests; their services are not started", flush=True)
    with services_stay_down():
        Path("/usr/share/man/man1").mkdir(parents=True, exist_ok=True)  # images without manuals: Java's packages fail
        apt("update")
        if not apt("install", "--no-install-recommends", *packages):
            for package in packages:  # one that can't be had must not cost the others
                apt("install", "--no-install-recommends", package)
    left = missing()
    print(f"servers: {'all there' if not left else f'still without {left}'} after {time.monotonic() - start:.0f} s")


def main() -> None:
    packages = missing()
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    if "--in-ci" in sys.argv[1:] and not in_ci:
        if packages:
            print(f"servers: without {', '.join(packages)} some tests are skipped; `make servers` installs them")
        return
    install_azurite()
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"servers: {', '.join(packages)} can't be installed without root and apt-get; some tests are skipped")
    else:
        install(packages)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        print(f"servers: {error}; some tests are skipped")
