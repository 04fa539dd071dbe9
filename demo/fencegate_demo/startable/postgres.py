"""A real PostgreSQL, on a free port, with its data in a folder of its own."""

import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from fencegate.children import Child, begun
from fencegate.clock import SYSTEM, sleep_s
from fencegate_demo.processes import runs, state_in_proc
from fencegate_demo.startable.ports import free_port

START_WITHIN_S = 60.0
END_WITHIN_S = 60.0
USER = "fencegate"
DATABASE = "postgres"


def binaries() -> Path | None:
    """The folder with `postgres` and `initdb` of the newest version that is installed."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    folders = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if (folder / "initdb").exists()]
    return max(folders, key=lambda folder: float(folder.parent.name), default=None)


def missing() -> str | None:
    """Why there is no PostgreSQL; None when there is."""
    if binaries() is None:
        return "no PostgreSQL server: install it (Debian: apt-get install postgresql), or put initdb on PATH"
    if os.geteuid() == 0 and other_user() is None:
        return "PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody' to run it as"
    return None


def other_user() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


class PostgresServer:
    """`start`, `kill`, `stop`, `resume`, `terminate`; it can be started again on the same port and data."""

    def __init__(self, **settings: str) -> None:
        # Directly under the temporary folder: the one of a test is closed to other users.
        self.folder = Path(tempfile.mkdtemp(prefix="fencegate-postgres-"))
        self.data = self.folder / "data"
        self.port = free_port()
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "150",
            "shared_buffers": "16MB",
            "max_wal_size": "256MB",
            **settings,
        }
        self._process: Child | None = None
        self._user = other_user() if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def command(self, program: str, *arguments: str) -> Child:
        """Run one of its programs, as the user that it runs as."""
        folder = binaries()
        assert folder is not None
        user: dict[str, Any] = (
            {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        )
        with (self.folder / "log").open("ab") as out:
            run = [str(folder / program), *arguments]
            return begun(run, cwd=self.folder, stdout=out, stderr=out, start_new_session=True, **user)

    def start(self) -> None:
        if not self.data.exists():
            arguments = ["-D", str(self.data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
            assert self.command("initdb", *arguments).wait() == 0, self.log()
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        self._process = self.command("postgres", "-D", str(self.data), "-p", str(self.port), *settings)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        until = SYSTEM.monotonic_us() / 1_000_000 + START_WITHIN_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert self._process is not None
                assert self._process.poll() is None, self.log()
                assert SYSTEM.monotonic_us() / 1_000_000 < until, self.log()
                sleep_s(0.05)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def standby(self, address: str) -> "PostgresServer":
        """Another server that follows this one, which it reaches by `address`; not started yet."""
        found = PostgresServer(**self._settings)
        host, _, port = address.rpartition(":")
        copy = ["-h", host, "-p", port, "-U", USER, "-D", str(found.data), "-R", "-X", "stream", "-c", "fast", "-N"]
        assert found.command("pg_basebackup", *copy).wait() == 0, found.log()
        return found

    def kill(self) -> None:
        """kill -9 of all of it, and wait until it is gone. Its backends are no children of ours; while one of them is
        still ending, a server that is started on the same data says that its shared memory is in use, and gives up."""
        if self._process is not None and self._process.poll() is None:
            doomed = self._halted()
            _signal(doomed, signal.SIGKILL)
            self._process.wait()
            _wait_until(lambda: not any(map(runs, doomed)))
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        _signal(self._halted(), signal.SIGSTOP)

    def resume(self) -> None:
        _signal(self._processes(), signal.SIGCONT)

    def terminate(self) -> None:
        """Gone for good, with its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _halted(self) -> list[int]:
        """All of its processes, to which it adds none since it stands still itself."""
        os.kill(self.pid, signal.SIGSTOP)
        _wait_until(lambda: state_in_proc(self.pid) in ("", "T", "t", "Z", "X"))
        return self._processes()

    def _processes(self) -> list[int]:
        """The server and its backends, each of which is the leader of a session of its own."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [self.pid, *map(int, children.read_text().split())]


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_until(so: Callable[[], bool]) -> None:
    until = SYSTEM.monotonic_us() / 1_000_000 + END_WITHIN_S
    while not so():
        assert SYSTEM.monotonic_us() / 1_000_000 < until
        sleep_s(0.001)
