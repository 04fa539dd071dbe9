"""What MySQL's catalog says of a table that is to be protected, and of what is installed already."""

from typing import NamedTuple

from sqlalchemy import Connection, text

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate_adapters.sql.protect.wanted import TableName

PREFIX = "fencegate_"
PROCEDURES = ("pass", "check", "enforce")

_TABLE = text("""
SELECT table_name AS name, table_type AS kind, engine AS engine FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = :name
""")
_COLUMN = text("""
SELECT column_name AS name, data_type AS kind FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = :table AND column_name = :name
""")
_CASCADES = text("""
SELECT constraint_name AS name, table_name AS `table` FROM information_schema.referential_constraints
WHERE constraint_schema = DATABASE() AND table_name = :table
    AND (update_rule NOT IN ('RESTRICT', 'NO ACTION') OR delete_rule NOT IN ('RESTRICT', 'NO ACTION'))
ORDER BY constraint_name
""")
_TRIGGERS = text("""
SELECT trigger_name AS name, event_object_table AS `table` FROM information_schema.triggers
WHERE trigger_schema = DATABASE() AND LEFT(trigger_name, 10) = 'fencegate_'
""")
_STATEMENTS = text("""
SELECT action_statement AS statement FROM information_schema.triggers
WHERE trigger_schema = DATABASE() AND LEFT(trigger_name, 10) = 'fencegate_' AND event_object_table = :table
""")
_PROCEDURES = text("""
SELECT routine_name AS name, routine_comment AS comment FROM information_schema.routines
WHERE routine_schema = DATABASE() AND routine_type = 'PROCEDURE' AND LEFT(routine_name, 10) = 'fencegate_'
""")

_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "uuid")


class FoundColumn(NamedTuple):
    name: str
    whole: bool
    """Whether its values are whole numbers."""


def find_table(connection: Connection, wanted: TableName) -> str:
    database = connection.exec_driver_sql("SELECT DATABASE()").scalar()
    if database is None:
        raise InvalidInput("url", "names no database: mysql://USER@HOST/DATABASE")
    if wanted.schema not in (None, database):
        raise InvalidInput("table", f"is of another database than the URL: end the URL with /{wanted.schema}")
    # The catalog may compare names without regard to case where tables don't.
    alike = list(connection.execute(_TABLE, {"name": wanted.name}))
    folded = bool(connection.exec_driver_sql("SELECT @@lower_case_table_names").scalar())
    found = next((table for table in alike if folded or table.name == wanted.name), None)
    if found is None:
        raise InvalidInput("table", f"there is no table {wanted.name!r} in the database {database!r}")
    if found.kind not in ("BASE TABLE", "SYSTEM VERSIONED"):
        raise InvalidInput("table", f"{wanted.name!r} is not a table; protect the tables that it is made of")
    if found.name.startswith(PREFIX):
        raise UnsafeConfiguration(f"{wanted.name!r} is a table of Fencegate itself")
    if found.engine != "InnoDB":
        raise UnsafeConfiguration(
            f"{wanted.name!r} is kept by {found.engine}, which can't take a refused write back: "
            "ALTER TABLE … ENGINE=InnoDB"
        )
    return str(found.name)


def find_column(connection: Connection, table: str, name: str, needed: bool) -> FoundColumn:
    """A column of the key; one that the guard needs must have one spelling for each value."""
    found = connection.execute(_COLUMN, {"table": table, "name": name}).first()
    if found is None:
        raise InvalidInput("key", f"{table} has no column {name!r}")
    if needed and found.kind.lower() not in (*_WHOLE, *_TEXTS):
        raise InvalidInput(
            "key",
            f"{name!r} is of the type {found.kind}, whose values can be spelled in several ways; "
            "a guard takes integers, char, varchar, text, uuid and enums",
        )
    return FoundColumn(str(found.name), found.kind.lower() in _WHOLE)


def cascades(connection: Connection, table: str) -> list[str]:
    """Foreign keys by which a change of another table changes this one, without its triggers."""
    return [row.name for row in connection.execute(_CASCADES, {"table": table}) if row.table == table]


def triggers(connection: Connection) -> dict[str, str]:
    """Ours, each with its table."""
    return {row.name: row.table for row in connection.execute(_TRIGGERS)}


def statements(connection: Connection, table: str) -> list[str]:
    """What our triggers of this table do."""
    return [str(row.statement) for row in connection.execute(_STATEMENTS, {"table": table})]


def procedures(connection: Connection) -> dict[str, str]:
    """Ours, with their comments."""
    return {row.name: str(row.comment) for row in connection.execute(_PROCEDURES)}


def tables_there(connection: Connection) -> bool:
    """Whether the fence tables are, and can roll back."""
    found = [connection.execute(_TABLE, {"name": name}).first() for name in ("fencegate_fences", "fencegate_resources")]
    for table in found:
        if table is not None and table.engine != "InnoDB":
            raise UnsafeConfiguration(
                f"{table.name} is kept by {table.engine}, which can't roll back: ALTER TABLE {table.name} ENGINE=InnoDB"
            )
    return all(table is not None for table in found)
