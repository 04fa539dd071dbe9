"""SQLite 3.35 or newer, through `sqlite3` or `aiosqlite`."""

import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate_adapters.sql.runner import driver_of

_CONSTRAINT = re.compile(r"(NOT NULL|UNIQUE|CHECK|FOREIGN KEY) constraint failed(?:: (.*))?", re.DOTALL)

_RAISE = """
INSERT INTO fencegate_fences (lock_key, mode, token) VALUES (?, ?, ?)
ON CONFLICT (lock_key, mode) DO UPDATE SET token = excluded.token WHERE fencegate_fences.token <= excluded.token
RETURNING token
"""
_MARK = "SELECT token FROM fencegate_fences WHERE lock_key = ? AND mode = ?"


class SqliteDialect:
    """One file, one writer at a time."""

    durability = (
        "marks and rows commit together in SQLite (WAL, synchronous=FULL): they survive a crash and a power loss; "
        "after a restore from a backup raise the floor"
    )
    writers = 1  # SQLite has one writer; more would only poll for its lock
    locks_floors = False

    def engine(self, url: URL, connections: int) -> Engine:
        if not url.database or url.database == ":memory:" or "mode=memory" in str(url):
            raise UnsafeConfiguration("an SQLite database in memory would forget its marks: name a file")
        engine = create_engine(url.set(drivername="sqlite"), pool_size=connections, max_overflow=0, pool_timeout=10)
        event.listen(engine, "connect", self._connected)
        event.listen(engine, "begin", self._begin)
        return engine

    @staticmethod
    def _connected(driver: sqlite3.Connection, _record: object) -> None:
        # Left to itself the driver begins late and only before some statements; `_begin` does it instead.
        driver.isolation_level = None
        for pragma in ("busy_timeout=5000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            driver.execute(f"PRAGMA {pragma}").close()

    @staticmethod
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    def check(self, connection: Connection) -> None:
        journal = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
        synchronous = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
        if (journal, synchronous) != ("wal", 2):
            raise UnsafeConfiguration(
                f"SQLite keeps journal_mode={journal}, synchronous={synchronous} here, where a power loss may take "
                "marks back; put the file on a local disk that allows WAL"
            )

    def limit_wait(self, connection: Connection, wait_ms: int) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.execute(f"PRAGMA busy_timeout={int(wait_ms)}").close()

    def raise_marks(self, connection: Connection, claims: Mapping[str, int], mode: str) -> dict[str, int]:
        marks = {}
        for key in sorted(claims, key=str.encode):  # one by one, for there is no way to go between
            raised = connection.exec_driver_sql(_RAISE, (key.encode(), mode, claims[key])).first()
            found = raised or connection.exec_driver_sql(_MARK, (key.encode(), mode)).one()
            marks[key] = int(found[0])
        return marks

    def keep_out(self, connection: Connection) -> None:
        connection.exec_driver_sql("UPDATE fencegate_fences SET token = token WHERE 0")  # takes the only writer's lock

    def insert_missing(self, connection: Connection, table: Table, values: dict[str, Any]) -> bool:
        first, *_ = table.primary_key.columns
        insert = sqlite.insert(table).values(**values).on_conflict_do_nothing().returning(first)
        return connection.execute(insert).first() is not None

    def in_transaction(self, connection: Connection) -> bool:
        return bool(driver_of(connection).in_transaction)

    def refusal(self, error: DBAPIError) -> InvalidInput:
        found = _CONSTRAINT.search(str(error.orig))
        if found is None:
            return InvalidInput("row", f"is refused by the database ({str(error.orig)[:200]})")
        kind, about = found[1], found[2] or ""
        columns = [name.rpartition(".")[2] for name in about.split(", ")]
        if kind == "NOT NULL":
            return InvalidInput(columns[0], "must not be null, and must be given when a row is replaced or created")
        if kind == "UNIQUE":
            return InvalidInput(columns[0], f"another row has the same {' and '.join(columns)}")
        if kind == "CHECK":
            return InvalidInput("row", f"does not satisfy the constraint {about!r} of the table")
        return InvalidInput("row", "names a row of another table that is not there, or is named by one")
