"""A real PgBouncer in front of a real PostgreSQL: each transaction may run on another connection."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from tests.real.postgres import DATABASE, USER, PostgresServer, free_port, other_user

START_WITHIN_S = 60.0

_SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 5
max_client_conn = 500
"""


def missing() -> str | None:
    """Why there is no PgBouncer; None when there is."""
    if shutil.which("pgbouncer") is None:
        return "no pgbouncer on PATH: install it (Debian: apt-get install pgbouncer)"
    return None


class Pgbouncer:
    """A pool of five connections, however many clients there are."""

    def __init__(self, server: PostgresServer) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fencegate-pgbouncer-"))
        self.port = free_port()
        self.url = f"postgresql://{USER}@127.0.0.1:{self.port}/{DATABASE}"
        settings = self._folder / "settings.ini"
        settings.write_text(_SETTINGS.format(server=server.port, port=self.port, folder=self._folder))
        (self._folder / "users").write_text(f'"{USER}" ""\n')
        user = other_user() if os.geteuid() == 0 else None
        as_user = {}
        if user is not None:
            for path in (self._folder, *self._folder.iterdir()):
                os.chown(path, user.pw_uid, user.pw_gid)
            as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with (self._folder / "log").open("ab") as out:
            run = ["pgbouncer", "-q", str(settings)]
            self._process = subprocess.Popen(run, stdout=out, stderr=out, **as_user)  # type: ignore[call-overload]
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START_WITHIN_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                log = (self._folder / "log").read_text()
                assert self._process.poll() is None, log
                assert time.monotonic() < until, log
                time.sleep(0.05)

    def terminate(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
