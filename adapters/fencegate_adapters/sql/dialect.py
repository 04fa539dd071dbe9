"""What differs between databases, in one place: one small class for each."""

import re
import sqlite3
from typing import Any, Protocol

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate_adapters.sql.tables import fences


class Dialect(Protocol):
    """One kind of database."""

    durability: str
    """What its marks survive, in words."""
    writers: int
    """How many transactions that write are worth starting at once."""

    def engine(self, url: URL, connections: int) -> Engine:
        """An engine whose transactions begin when SQLAlchemy says so, and are durable when they have committed."""

    def check(self, connection: Connection) -> None:
        """Raise UnsafeConfiguration when what this database is set to would lose marks."""

    def limit_wait(self, connection: Connection, wait_ms: int) -> None:
        """Bound how long the next transaction waits for another's lock: a paused one must not block us for ever."""

    def raise_mark(self, connection: Connection, lock_key: str, mode: str, token: int) -> bool:
        """Raise the fence to `token`, unless it is higher already: then nothing changes and False is returned.

        The first statement of its transaction: it takes the fence row's lock, and holds it until the commit.
        """

    def insert_missing(self, connection: Connection, table: Table, values: dict[str, Any]) -> bool:
        """Insert a row unless its primary key is there already; returns whether it was inserted."""

    def in_transaction(self, connection: Connection) -> bool:
        """Whether the *database* is in a transaction, after a statement; False means that the statement committed."""

    def refusal(self, error: DBAPIError) -> InvalidInput:
        """What a violated constraint means to the one who sent the row."""


class SqliteDialect:
    """SQLite 3.35 or newer, through `sqlite3` or `aiosqlite`."""

    durability = (
        "marks and rows commit together in SQLite (WAL, synchronous=FULL): they survive a crash and a power loss; "
        "after a restore from a backup raise the floor"
    )
    writers = 1  # SQLite has one writer; more would only poll for its lock

    _CONSTRAINT = re.compile(r"(NOT NULL|UNIQUE|CHECK|FOREIGN KEY) constraint failed(?:: (.*))?", re.DOTALL)

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

    def raise_mark(self, connection: Connection, lock_key: str, mode: str, token: int) -> bool:
        insert = sqlite.insert(fences).values(lock_key=lock_key.encode(), mode=mode, token=token)
        guarded = insert.on_conflict_do_update(
            index_elements=[fences.c.lock_key, fences.c.mode],
            set_={"token": insert.excluded.token},
            where=fences.c.token <= insert.excluded.token,
        ).returning(fences.c.token)
        return connection.execute(guarded).first() is not None

    def insert_missing(self, connection: Connection, table: Table, values: dict[str, Any]) -> bool:
        first, *_ = table.primary_key.columns
        insert = sqlite.insert(table).values(**values).on_conflict_do_nothing().returning(first)
        return connection.execute(insert).first() is not None

    def in_transaction(self, connection: Connection) -> bool:
        driver: Any = connection.connection.driver_connection
        return bool(driver.in_transaction)

    def refusal(self, error: DBAPIError) -> InvalidInput:
        found = self._CONSTRAINT.search(str(error.orig))
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


_DIALECTS: dict[str, Dialect] = {"sqlite": SqliteDialect()}


def dialect_of(name: str) -> Dialect:
    """The dialect of the database that SQLAlchemy calls `name`."""
    try:
        return _DIALECTS[name]
    except KeyError:
        supported = ", ".join(sorted(_DIALECTS))
        raise UnsafeConfiguration(f"rows in {name} can't be fenced; supported: {supported}") from None


def cause(error: SQLAlchemyError) -> str:
    """What the driver said, without the statement and its values: they may be anybody's secrets."""
    return str(getattr(error, "orig", None) or error)[:200]
