"""What differs between databases: the contract of a dialect, and which one a database has."""

from collections.abc import Mapping
from typing import Any, Protocol

from sqlalchemy import URL, Connection, Engine, Table
from sqlalchemy.exc import DBAPIError

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate_adapters.sql.dialect_mysql import MysqlDialect
from fencegate_adapters.sql.dialect_postgresql import PostgresqlDialect
from fencegate_adapters.sql.dialect_sqlite import SqliteDialect


class Dialect(Protocol):
    """One kind of database."""

    durability: str
    """What its marks survive, in words."""
    writers: int
    """How many transactions that write are worth starting at once."""
    locks_floors: bool
    """Whether a floor is read with a share lock. Where not, `keep_out` holds everybody back while one is raised."""

    def engine(self, url: URL, connections: int) -> Engine:
        """An engine whose transactions begin when SQLAlchemy says so, and are durable when they have committed."""

    def check(self, connection: Connection) -> None:
        """Raise UnsafeConfiguration when what this database is set to would lose marks."""

    def limit_wait(self, connection: Connection, wait_ms: int) -> None:
        """Bound how long the next transaction waits for another's lock: a paused one must not block us for ever."""

    def raise_marks(self, connection: Connection, claims: Mapping[str, int], mode: str) -> dict[str, int]:
        """Raise the fences to these tokens, where they are not higher already; the mark that each has now.

        The first statement of its transaction: it takes the locks of the fence rows in the order of their keys, and
        holds them until the commit.
        """

    def keep_out(self, connection: Connection) -> None:
        """Wait until no transaction is past a fence, and let none pass before this one has ended."""

    def insert_missing(self, connection: Connection, table: Table, values: dict[str, Any]) -> bool:
        """Insert a row unless its primary key is there already; returns whether it was inserted."""

    def in_transaction(self, connection: Connection) -> bool:
        """Whether the *database* is in a transaction, after a statement; False means that the statement committed."""

    def refusal(self, error: DBAPIError) -> InvalidInput:
        """What a violated constraint means to the one who sent the row."""


_DIALECTS: dict[str, Dialect] = {
    "mariadb": MysqlDialect(),
    "mysql": MysqlDialect(),
    "postgresql": PostgresqlDialect(),
    "sqlite": SqliteDialect(),
}


def dialect_of(name: str) -> Dialect:
    """The dialect of the database that SQLAlchemy calls `name`."""
    try:
        return _DIALECTS[name]
    except KeyError:
        supported = ", ".join(sorted(_DIALECTS))
        raise UnsafeConfiguration(f"rows in {name} can't be fenced; supported: {supported}") from None


def cause(error: Exception) -> str:
    """What the driver said, without the statement and its values: they may be anybody's secrets."""
    return str(getattr(error, "orig", None) or error)[:200]
