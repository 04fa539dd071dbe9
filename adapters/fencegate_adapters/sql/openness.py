"""Whether the database is still in the transaction that passed, as quickly as its driver can tell."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from fencegate_adapters.sql.dialect import dialect_of

Openness = Callable[[], bool]


def openness(connection: Connection) -> Openness:
    """What to ask before every statement, for as long as the transaction of `connection` lasts."""
    driver: Any = connection.connection.driver_connection
    name = connection.dialect.driver
    if name in ("pysqlite", "aiosqlite"):
        return lambda: bool(driver.in_transaction)
    if name in ("psycopg", "psycopg_async"):
        return lambda: bool(driver.pgconn.transaction_status)  # IDLE is 0
    dialect = dialect_of(connection.dialect.name)
    return lambda: dialect.in_transaction(connection)
