"""Carries out statements on a connection of SQLAlchemy, by its driver's own cursor: that is many times quicker."""

import contextlib
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from fencegate_adapters.sql.passing import Ask
from fencegate_adapters.sql.passing.steps import Row, in_pyformat, only_named

_NAMED = ("pysqlite", "aiosqlite")
_PYFORMAT = ("psycopg", "psycopg_async", "psycopg2", "pymysql", "aiomysql", "mysqldb")


def driver_of(connection: Connection) -> Any:
    """The connection of the driver itself; also of one that was taken out of its pool (`detach`)."""
    pooled: Any = connection.connection.dbapi_connection
    return pooled.driver_connection if connection.dialect.is_async else pooled


class Runner:
    """Drivers that are not known here are left to SQLAlchemy."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver = connection.dialect.driver

    def __call__(self, ask: Ask) -> list[Row]:
        if not ask.values:  # which every driver can execute, and nobody is told of it
            return self._run(ask.statement)
        if self._driver in _NAMED:
            return self._run(ask.statement, ask.values)
        if self._driver in _PYFORMAT:
            return self._run(in_pyformat(ask.statement), dict(ask.values))  # PyMySQL knows no other mapping
        result = self._connection.execute(text(ask.statement), only_named(ask))
        return [tuple(row) for row in result] if result.returns_rows else [(result.rowcount,)]

    def _run(self, statement: str, *values: Any) -> list[Row]:
        cursor = self._connection.connection.cursor()
        try:
            cursor.execute(statement, *values)
            return list(cursor.fetchall()) if cursor.description else [(cursor.rowcount,)]
        except self._connection.dialect.loaded_dbapi.Error as error:
            if self._connection.dialect.is_disconnect(error, self._connection.connection.dbapi_connection, cursor):
                self._connection.invalidate(error)
            raise DBAPIError.instance(
                None, None, error, self._connection.dialect.loaded_dbapi.Error, connection_invalidated=False
            ) from error
        except BaseException as error:  # a task that is cancelled: nobody may meet an answer that was not read
            # Before the connection, which SQLite does not close while a cursor has a statement, and goes on with its
            # transaction; and behind it that would be an error, which hides this one.
            with contextlib.suppress(Exception):
                cursor.close()
            self._connection.invalidate(error)
            raise
        finally:
            if not self._connection.invalidated:
                cursor.close()
