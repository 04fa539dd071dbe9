"""The arms that write rows over HTTP: through the gateway, and through a plain service without fences.

Each client changes a row of its own. With the gateway it sends the token of its lock, which stays the same: a holder
writes many times.
"""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import psycopg

from bench.arm import Sample
from bench.library import SharedServer
from bench.server import Server, free_ports
from bench.wrk import Write, run_writes

ROWS = 64
TOKEN = "1700000000000000"

_TABLE = "CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)"


class RowWrites:
    """`database` is a server that runs beside it; without one, the rows are in an SQLite file."""

    def __init__(self, name: str, database: SharedServer | None, *, fenced: bool) -> None:
        self.name = name
        self._database = database
        self._fenced = fenced
        self._held = False
        self._server: Server | None = None
        self._url = ""

    @property
    def missing(self) -> str | None:
        return None if self._database is None else self._database.missing()

    def start(self, folder: Path) -> None:
        if self._database is not None:
            self._database.start(folder)
            self._held = True
        url = self._make_rows(folder)
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        command = self._gateway(folder, url, port) if self._fenced else self._plain(url, port)
        self._server = Server(command, folder / "log", f"{self._url}/readyz")
        self._server.wait_ready()

    def run(self, clients: int, seconds: float) -> Sample:
        return run_writes(self._url, [self._write(client) for client in range(clients)], seconds)

    def hand_over(self, waiters: int, seconds: float) -> Sample:
        raise NotImplementedError("rows are not handed over")

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        if self._held and self._database is not None:
            self._database.stop()
            self._held = False

    def _write(self, client: int) -> Write:
        headers = (("Content-Type", "application/json"), ("Fencing-Token", TOKEN))
        path = f"/v1/resources/accounts/{client}" if self._fenced else f"/accounts/{client}"
        return Write("PATCH", path, '{"balance": %N%}', headers)

    def _make_rows(self, folder: Path) -> str:
        """The table, in a place of its own; the address of the database."""
        rows = [f"INSERT INTO accounts VALUES ({number}, 0)" for number in range(ROWS)]
        if self._database is None:
            with closing(sqlite3.connect(folder / "rows.db")) as database, database:
                for statement in (_TABLE, *rows):
                    database.execute(statement)
            return f"sqlite:///{folder / 'rows.db'}"
        schema = self.name.replace("-", "_")
        with psycopg.connect(self._database.url, autocommit=True) as connection:
            for statement in (f"CREATE SCHEMA {schema}", f"SET search_path = {schema}", _TABLE, *rows):
                connection.execute(statement.encode())
        return f"{self._database.url}?options=-csearch_path%3D{schema}"

    @staticmethod
    def _plain(url: str, port: int) -> list[str]:
        return [sys.executable, "-m", "bench.plain_rows", url, str(port)]

    @staticmethod
    def _gateway(folder: Path, url: str, port: int) -> list[str]:
        config = folder / "fencegate.toml"
        config.write_text(
            f"[resources.accounts]\nurl = {json.dumps(url)}\ntable = 'accounts'\nkey = ['id']\nissuer = true\n"
        )
        command = [sys.executable, "-c", "from fencegate.cli import main; main()", "serve", "--role", "gateway"]
        return [*command, "--listen", f"127.0.0.1:{port}", "--data", str(folder / "data"), "--config", str(config)]
