"""Real MariaDB servers, each in a folder of its own: Debian's `mariadb-server`, or any other on PATH."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pymysql

from tests.servers import kept_address

HOW_TO_GET = "no MariaDB server: install mariadb-server (Debian), so that mariadbd and mariadb-install-db are on PATH"
START_WITHIN_S = 60.0
_SMALL = ("--innodb-log-file-size=16M", "--innodb-data-file-path=ibdata1:4M:autoextend")


def _program(*names: str) -> str | None:
    """The first of these that is there; servers are often outside the PATH of those who are not root."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None)


def missing() -> str | None:
    """Why there is no server, for `pytest.skip`."""
    return None if _program("mariadbd") and _program("mariadb-install-db") else HOW_TO_GET


class MariadbServer:
    """One server process. It keeps its port and its folder, so that it can be killed and started again.

    `options` are settings as on the command line: MariadbServer(path, "--read-only").
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self.host, _, port = self._stack.enter_context(kept_address()).rpartition(":")
        self.port = int(port)

    def url(self, database: str) -> str:
        return f"mysql://root@{self.host}:{self.port}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start it, and return when it answers."""
        data = self._folder / "data"
        if not data.exists():
            self._install(data)
        program = _program("mariadbd")
        assert program is not None, HOW_TO_GET
        command = [program, *self._common(data), "--port", str(self.port), "--bind-address", self.host]
        command += [f"--socket={os.path.relpath(self._folder / 's', data)}", "--skip-log-bin", *_SMALL]
        command += ["--innodb-buffer-pool-size=32M", "--innodb-buffer-pool-dump-at-shutdown=0"]
        command += ["--innodb-fast-shutdown=2", "--key-buffer-size=1M", "--aria-pagecache-buffer-size=1M"]
        with open(self._folder / "server.log", "ab") as log:
            self._process = subprocess.Popen([*command, *self._options], stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + START_WITHIN_S
        while not self._answers():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < end, f"the server does not answer: {self.log()}"
            time.sleep(0.02)
        return self

    def _install(self, data: Path) -> None:
        program = _program("mariadb-install-db")
        assert program is not None, HOW_TO_GET
        self._folder.mkdir(parents=True, exist_ok=True)
        normal = ["--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-flush-log-at-trx-commit=0"]
        command = [program, *self._common(data), *normal, *_SMALL]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    @staticmethod
    def _common(data: Path) -> list[str]:
        user = ["--user=root"] if os.getuid() == 0 else []
        return ["--no-defaults", f"--datadir={data}", "--skip-name-resolve", *user]

    def log(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")[-4000:]

    def _answers(self) -> bool:
        try:
            self.ask("SELECT 1")
        except pymysql.err.OperationalError:
            return False
        return True

    def connect(self, database: str | None = None) -> "pymysql.Connection[Any]":
        """A connection of the test's own."""
        where = {"host": self.host, "port": self.port, "user": "root", "database": database}
        # Without TLS, for which the driver would read all certificates of the system each time.
        return pymysql.connect(**where, autocommit=True, connect_timeout=10, ssl_disabled=True)

    def ask(self, sql: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """One statement, on a connection of its own."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def stop(self) -> None:
        """SIGSTOP: it stands still, and its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> None:
        """An orderly end; the port is free for others afterwards."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        self._stack.close()
