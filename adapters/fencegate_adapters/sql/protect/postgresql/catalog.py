"""What PostgreSQL's catalog says of a table that is to be protected, and of what is installed already."""

import json
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate_adapters.sql.protect.wanted import TableName

TRIGGERS = ("fencegate_rows", "fencegate_statement", "fencegate_truncate")
SHARED = ("raise_fence", "check_lock", "enforce")

# A name is cut to 63 bytes by the cast, as it was when the table was created.
_TABLE = text("""
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relispartition,
    EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid) AS has_parent
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = CAST(:name AS name) AND c.relkind NOT IN ('i', 'I', 'S', 'c', 't')
    AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_table_is_visible(c.oid)
        ELSE n.nspname = CAST(:schema AS name) END
""")
_COLUMN = text("""
WITH RECURSIVE kind AS (
    SELECT a.attname, t.* FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = :oid AND a.attname = CAST(:name AS name) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT kind.attname, t.* FROM kind JOIN pg_type t ON t.oid = kind.typbasetype WHERE kind.typtype = 'd'
)
SELECT attname, typname, typtype::text FROM kind WHERE typtype <> 'd'
""")
_BELOW = text("""
SELECT n.nspname, c.relname, c.relispartition FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.inhparent = :oid
ORDER BY 1, 2
""")
_PARTITIONS = text("""
SELECT c.oid, n.nspname, c.relname FROM pg_partition_tree(CAST(:oid AS oid)) p
JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid <> :oid ORDER BY 2, 3
""")
_TRIGGERS = text("""
SELECT t.tgrelid, t.tgname, t.tgenabled::text, p.proname, pn.nspname
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace pn ON pn.oid = p.pronamespace
WHERE NOT t.tgisinternal AND t.tgname = ANY (:names) AND t.tgrelid = ANY (CAST(:oids AS oid[]))
""")
_FUNCTIONS = text("""
SELECT p.proname, obj_description(p.oid, 'pg_proc') FROM pg_proc p
WHERE p.pronamespace = to_regnamespace('fencegate')
""")
_CALLED = text("""
SELECT DISTINCT p.proname, p.prosrc, t.tgrelid = ANY (CAST(:oids AS oid[])) AS here FROM pg_trigger t
JOIN pg_proc p ON p.oid = t.tgfoid WHERE p.pronamespace = to_regnamespace('fencegate')
""")
_OTHERS = text("""
SELECT count(*) FROM pg_depend d WHERE d.refclassid = 'pg_namespace'::regclass
    AND d.refobjid = to_regnamespace('fencegate')
    AND NOT (d.classid = 'pg_proc'::regclass AND d.objid IN (
        SELECT p.oid FROM pg_proc p WHERE p.pronamespace = to_regnamespace('fencegate') AND p.proname = ANY (:ours)))
""")
_FENCES = text("""
SELECT n.nspname, has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
    AND has_table_privilege(c.oid, 'UPDATE') AS allowed
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = :name AND c.relkind IN ('r', 'p')
    AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = :schema END
""")

_PLAIN = ("int2", "int4", "int8", "text", "varchar", "uuid", "name")


class FoundTable(NamedTuple):
    oid: int
    name: TableName
    partitioned: bool
    has_parent: bool


def find_table(connection: Connection, wanted: TableName) -> FoundTable:
    found = connection.execute(_TABLE, {"name": wanted.name, "schema": wanted.schema}).first()
    if found is None:
        raise InvalidInput("table", f"there is no table {str(wanted)!r}; names are taken as they are, upper case too")
    if found.relkind not in ("r", "p"):
        raise InvalidInput("table", f"{str(wanted)!r} is not a table; protect the tables that it is made of")
    if found.relispartition:
        raise InvalidInput("table", f"{str(wanted)!r} is a partition: protect the table that it is a part of")
    if found.relname.startswith("fencegate_"):
        raise UnsafeConfiguration(f"{str(wanted)!r} is a table of Fencegate itself")
    return FoundTable(found.oid, TableName(found.nspname, found.relname), found.relkind == "p", found.has_parent)


def check_column(connection: Connection, table: FoundTable, name: str, needed: bool) -> str:
    """The column as the catalog spells it; one that the guard needs must have one spelling for each value."""
    found = connection.execute(_COLUMN, {"oid": table.oid, "name": name}).first()
    if found is None:
        raise InvalidInput("key", f"{table.name} has no column {name!r}")
    if needed and found.typname not in _PLAIN and found.typtype != "e":
        raise InvalidInput(
            "key",
            f"{name!r} is of the type {found.typname}, whose values can be spelled in several ways; "
            "a guard takes integers, text, varchar, uuid and enums",
        )
    return str(found.attname)


def tables_below(connection: Connection, table: FoundTable) -> list[TableName]:
    """Those that inherit from it without being its partitions."""
    rows = connection.execute(_BELOW, {"oid": table.oid})
    return [TableName(row.nspname, row.relname) for row in rows if not row.relispartition]


def partitions(connection: Connection, table: FoundTable) -> dict[int, TableName]:
    if not table.partitioned:
        return {}
    rows = connection.execute(_PARTITIONS, {"oid": table.oid})
    return {row.oid: TableName(row.nspname, row.relname) for row in rows}


def our_triggers(connection: Connection, oids: list[int], function: str) -> set[tuple[int, str]]:
    """Those that fire and call this function, each with its table."""
    rows = connection.execute(_TRIGGERS, {"names": list(TRIGGERS), "oids": oids})
    return {
        (row.tgrelid, row.tgname)
        for row in rows
        if row.tgenabled in ("O", "A") and (row.nspname, row.proname) == ("fencegate", function)
    }


def functions(connection: Connection) -> dict[str, dict[str, Any]]:
    """Our functions, with what their comments say."""
    found: dict[str, dict[str, Any]] = {}
    for name, comment in connection.execute(_FUNCTIONS):
        try:
            said = json.loads(comment or "{}")
        except ValueError:
            said = {}
        found[name] = said if isinstance(said, dict) else {}
    return found


class Called(NamedTuple):
    """Our functions that triggers of some tables call, and those that triggers of other tables do."""

    here: dict[str, str]
    """With what they do."""
    elsewhere: set[str]


def called(connection: Connection, oids: list[int]) -> Called:
    """A table keeps its triggers, and they their function, when it is renamed."""
    rows = connection.execute(_CALLED, {"oids": oids}).all()
    here = {row.proname: row.prosrc for row in rows if row.here}
    return Called(here, {row.proname for row in rows if not row.here})


def schema_holds_more(connection: Connection, functions: set[str]) -> bool:
    return bool(connection.execute(_OTHERS, {"ours": [*SHARED, *functions]}).scalar())


def fences_schema(connection: Connection, installed: str | None) -> tuple[str, bool]:
    """Where the fences are, and whether they are there: one fence table for one database, or marks would differ."""
    visible = connection.execute(_FENCES, {"name": "fencegate_fences", "schema": None}).first()
    if visible is not None and installed is not None and visible.nspname != installed:
        raise UnsafeConfiguration(
            f"fencegate.enforce keeps its fences in the schema {installed!r}, and this connection finds others in "
            f"{visible.nspname!r}: fences must be in one place. Connect with ?options=-csearch_path%3D{installed}"
        )
    schema = installed or (visible.nspname if visible is not None else None)
    if schema is None:
        return str(connection.exec_driver_sql("SELECT current_schema()").scalar() or "public"), False
    tables = [
        connection.execute(_FENCES, {"name": name, "schema": schema}).first()
        for name in ("fencegate_fences", "fencegate_resources")
    ]
    if any(table is not None and not table.allowed for table in tables):
        raise UnsafeConfiguration(
            f"the fences in the schema {schema!r} belong to another role: GRANT SELECT, INSERT, UPDATE ON "
            "fencegate_fences, fencegate_resources to this one, which the triggers are going to act as"
        )
    return schema, all(table is not None for table in tables)
