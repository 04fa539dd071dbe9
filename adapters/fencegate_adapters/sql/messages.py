"""Several statements in one message, on a connection of psycopg: one round trip for all of them.

The driver sends one by one, and BEGIN by itself before the first.
"""

import functools
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only

_ACTIVE = 1
"""Something was sent, and its answer is not read."""


def exchange(connection: Connection, driver: Any, message: bytes) -> Any:
    """Send it, and wait as the driver itself waits; the answers to its statements."""
    try:
        driver.pgconn.send_query(message)
        return awaited(connection, driver.wait(_execute()(driver.pgconn)))
    except connection.dialect.loaded_dbapi.Error as error:  # not of the server, which answers: the connection is gone
        raise lost(connection, error) from error
    except BaseException:
        close_unread(driver)
        raise


def close_unread(driver: Any) -> None:
    """After a signal: nobody else may meet an answer that was not read, and in the server the transaction would go on,
    with the fence. (For Ctrl-C, and a task that is cancelled, the driver itself cleans up, once it waits.)"""
    if driver.pgconn.transaction_status == _ACTIVE:
        driver.pgconn.finish()


def awaited(connection: Connection, waiting: Any) -> Any:
    """What the `wait` of the driver gives."""
    return await_only(waiting) if connection.dialect.is_async else waiting


def lost(connection: Connection, error: Exception) -> Exception:
    """The error to be raised of a connection that nobody may use any more."""
    connection.invalidate(error)
    return DBAPIError.instance(None, None, error, connection.dialect.loaded_dbapi.Error)


def texts_of(connection: Connection, message: str) -> list[list[str | None]]:
    """The rows, as text, that the last statement of a message gives, on a connection that is not async."""
    answer, driver = _last(connection, message)
    encoding, columns = driver.info.encoding, range(answer.nfields)
    rows = [[answer.get_value(row, column) for column in columns] for row in range(answer.ntuples)]
    return [[None if value is None else value.decode(encoding) for value in row] for row in rows]


def rows_of(connection: Connection, message: str, columns: Sequence[Column[Any]]) -> list[Sequence[Any]]:
    """The same, with the values that SQLAlchemy gives of these columns."""
    answer, driver = _last(connection, message)
    loading = _transformer()(driver)
    loading.set_pgresult(answer)
    rows: list[Sequence[Any]] = loading.load_rows(0, answer.ntuples, tuple)
    dialect = connection.dialect
    impls = [column.type.dialect_impl(dialect) for column in columns]
    makers = [impl.result_processor(dialect, answer.ftype(n)) for n, impl in enumerate(impls)]
    if not any(makers):
        return rows
    return [[value if make is None else make(value) for make, value in zip(makers, row, strict=True)] for row in rows]


def _last(connection: Connection, message: str) -> tuple[Any, Any]:
    """What the last statement gives, and the driver's connection. A statement that fails is the last."""
    driver: Any = connection.connection.driver_connection
    answer = exchange(connection, driver, message.encode(driver.info.encoding))[-1]
    if answer.error_message:
        psycopg: Any = connection.dialect.loaded_dbapi
        raise DBAPIError.instance(None, None, psycopg.errors.error_from_result(answer), psycopg.Error)
    return answer, driver


# Not imported before there is such a connection: not everybody has this driver.


@functools.cache
def _execute() -> Any:
    from psycopg.generators import execute

    return execute


@functools.cache
def _transformer() -> Any:
    from psycopg.adapt import Transformer

    return Transformer
