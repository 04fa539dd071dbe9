"""Real MariaDB servers, each in a folder of its own: Debian's `mariadb-server`, or any other on PATH.

FENCEGATE_MYSQLD=/usr/sbin/mysqld names a server of MySQL, which is taken instead.
"""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pymysql

from fencegate.env import setting
from fencegate_demo.startable.process import ServerProcess

HOW_TO_GET = "no MariaDB server: install mariadb-server (Debian), so that mariadbd and mariadb-install-db are on PATH"
_SMALL = ("--innodb-log-file-size=16M", "--innodb-data-file-path=ibdata1:4M:autoextend")
_MYSQL = ("--innodb-redo-log-capacity=16M", "--mysqlx=OFF", "--performance-schema=OFF", "--secure-file-priv=NULL")
# At an address, as MariaDB has one: without names to resolve nobody comes from localhost.
_MYSQL_ROOT = "CREATE USER root@127.0.0.1; GRANT ALL ON *.* TO root@127.0.0.1 WITH GRANT OPTION;"


def _program(*names: str) -> str | None:
    """The first of these that is there; servers are often outside the PATH of those who are not root."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None)


def _mysqld() -> str | None:
    """The server of MySQL that is to be taken instead of MariaDB."""
    return setting("mysqld") or None


def missing() -> str | None:
    """Why there is no server, for `pytest.skip`."""
    if program := _mysqld():
        return None if shutil.which(program) else f"no MySQL server: FENCEGATE_MYSQLD names {program}"
    return None if _program("mariadbd") and _program("mariadb-install-db") else HOW_TO_GET


class MariadbServer(ServerProcess):
    """`options` are settings as on the command line: MariadbServer(path, "--read-only")."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self._options = options
        self.is_mysql = _mysqld() is not None
        """Whether it is MySQL itself."""
        self.bytewise = "utf8mb4_0900_bin" if self.is_mysql else "utf8mb4_nopad_bin"
        """The collation in which no two texts are one."""

    def url(self, database: str) -> str:
        return f"mysql://root@{self.address}/{database}"

    def launch(self) -> None:
        data = self._folder / "data"
        if not data.exists():
            self._install(data)
        program = _mysqld() or _program("mariadbd")
        assert program is not None, HOW_TO_GET
        command = [program, *self._common(data), "--port", str(self.port), "--bind-address", self.host]
        command += [f"--socket={os.path.relpath(self._folder / 's', data)}", "--skip-log-bin"]
        command += ["--innodb-buffer-pool-size=32M", "--innodb-buffer-pool-dump-at-shutdown=0"]
        command += ["--innodb-fast-shutdown=2", "--key-buffer-size=1M"]
        command += _MYSQL if self.is_mysql else (*_SMALL, "--aria-pagecache-buffer-size=1M")
        self._spawn([*command, *self._options])

    def _install(self, data: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if mysql := _mysqld():
            first = self._folder / "first.sql"
            first.write_text(_MYSQL_ROOT)
            command = [mysql, *self._common(data), "--initialize-insecure", f"--init-file={first}", *_MYSQL]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            return
        program = _program("mariadb-install-db")
        assert program is not None, HOW_TO_GET
        normal = ["--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-flush-log-at-trx-commit=0"]
        command = [program, *self._common(data), *normal, *_SMALL]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    @staticmethod
    def _common(data: Path) -> list[str]:
        user = ["--user=root"] if os.getuid() == 0 else []
        # Of its own: a server that starts removes the temporary tables of all others from a folder that they share.
        temporary = data.parent / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        return ["--no-defaults", f"--datadir={data}", f"--tmpdir={temporary}", "--skip-name-resolve", *user]

    def answers(self) -> bool:
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
