"""Whether the database is still in the transaction that passed, as quickly as its driver can tell."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from fencegate_adapters.sql.dialect import dialect_of

Openness = Callable[[], int | None]
"""0 when there is no transaction any more; `FAILED` when a statement of it failed, where that is known; None when it
turns out that it has not passed."""


class NotPassed(Exception):
    """A statement that took the passage along was not executed, nor anything else: pass, and try again."""


FAILED = 3
"""Of psycopg's TransactionStatus; PostgreSQL answers COMMIT with a rollback then, and no error."""


def openness(connection: Connection) -> Openness:
    """What to ask before every statement, for as long as the transaction of `connection` lasts."""
    name, driver = connection.dialect.driver, driver_of(connection)
    if name in ("pysqlite", "aiosqlite"):
        return lambda: int(driver.in_transaction)
    if name in ("psycopg", "psycopg_async"):
        return lambda: int(driver.pgconn.transaction_status)  # IDLE is 0
    dialect = dialect_of(connection.dialect.name)
    return lambda: int(dialect.in_transaction(connection))


def driver_of(connection: Connection) -> Any:
    """The connection of the driver itself."""
    pooled = connection.connection
    return pooled.driver_connection if connection.dialect.is_async else pooled.dbapi_connection
