"""How tables of ours are made, in whichever database, and which of them it does not have yet."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, LargeBinary, Table, inspect
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Inspector
from sqlalchemy.exc import DBAPIError

from fencegate.core.names import MAX_LOCK_KEY_BYTES

# Bytes, not text: by the rules of a collation 'a' may equal 'A', or 'a ', and two fences would be one.
KeyBytes = LargeBinary(MAX_LOCK_KEY_BYTES).with_variant(mysql.VARBINARY(MAX_LOCK_KEY_BYTES), "mysql", "mariadb")

# Other engines of MySQL don't roll back, and its other collations take two names for one.
IN_MYSQL: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}

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
