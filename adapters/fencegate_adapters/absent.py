"""Which tables of ours a database does not have yet."""

from collections.abc import Iterable

from sqlalchemy import Connection, Table, inspect
from sqlalchemy.engine import Inspector
from sqlalchemy.exc import DBAPIError

_BEING_MADE = 1684
"""Said by MySQL (not by MariaDB) of a table that another is creating."""


def missing(connection: Connection, tables: Iterable[Table]) -> list[Table]:
    """Those that are not there; look before you create, since not everybody may create tables."""
    there = inspect(connection)
    return [table for table in tables if not _is_there(there, table)]


def _is_there(there: Inspector, table: Table) -> bool:
    try:
        return there.has_table(table.name)
    except DBAPIError as error:
        if error.orig is None or error.orig.args[:1] != (_BEING_MADE,):
            raise
        return False  # who creates it too waits until it is there
