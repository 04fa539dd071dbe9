"""Whether the database is still in the transaction that passed, as quickly as its driver can tell."""

from collections.abc import Callable

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.sql.dialect import cause, dialect_of
from fencegate_adapters.sql.passing import Ask
from fencegate_adapters.sql.runner import Runner, driver_of

Openness = Callable[[], int | None]
"""0 when there is no transaction any more; `FAILED` when a statement of it failed, where that is known; None when it
turns out that it has not passed."""


class NotPassed(Exception):
    """A statement that took the passage along was not executed, nor anything else: pass, and try again."""


FAILED = 3
"""Of psycopg's TransactionStatus; PostgreSQL answers COMMIT with a rollback then, and no error."""
_TELLING = ("psycopg", "psycopg_async", "psycopg2")
"""Drivers whose status of a transaction says so."""


def openness(connection: Connection) -> Openness:
    """What to ask before every statement, for as long as the transaction of `connection` lasts."""
    name, driver = connection.dialect.driver, driver_of(connection)
    if name in ("pysqlite", "aiosqlite"):
        return lambda: int(driver.in_transaction)
    if name in ("psycopg", "psycopg_async"):
        return lambda: int(driver.pgconn.transaction_status)  # IDLE is 0
    if name == "psycopg2":
        return lambda: int(driver.get_transaction_status())
    dialect = dialect_of(connection.dialect.name)
    return lambda: int(dialect.in_transaction(connection))


def check_not_failed(connection: Connection) -> None:
    """By a statement, where the driver is silent: a transaction of PostgreSQL takes none after one has failed."""
    try:
        Runner(connection)(Ask("SELECT 1"))
    except SQLAlchemyError as error:
        detail = f"the database failed before it was told to commit: {cause(error)}"
        raise ResourceUnavailable(detail) from error


def is_silent(connection: Connection) -> bool:
    """Whether it is one to PostgreSQL whose driver does not tell of failures."""
    return connection.dialect.name == "postgresql" and connection.dialect.driver not in _TELLING
