"""Plans what to create and drop in an SQLite file, in one transaction."""

import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, text

from fencegate.core.errors import InvalidInput, ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.sql.protect import plan as plans
from fencegate_adapters.sql.protect.naming import SQLITE_FUNCTION
from fencegate_adapters.sql.protect.plan import Plan, creation, filled, fingerprint
from fencegate_adapters.sql.protect.wanted import ColumnPart, TableName, Wanted, guard_parts
from fencegate_adapters.sql.tables import FENCE_TABLES

PREFIX = "fencegate_"
_WAIT_S = 30

_TABLE = text("""
SELECT name, type, upper(ltrim(sql)) LIKE 'CREATE VIRTUAL%' AS virtual FROM sqlite_master
WHERE name = :name COLLATE NOCASE AND type IN ('table', 'view')
""")
_COLUMNS = text("SELECT name FROM pragma_table_xinfo(:table)")
_TRIGGERS = text("""
SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :table COLLATE NOCASE
    AND substr(name, 1, 10) = 'fencegate_'
""")
_ALL_TRIGGERS = text("SELECT name FROM sqlite_master WHERE type = 'trigger'")
_UNIQUE = text("""
SELECT i.name AS name, c.name AS column_name FROM pragma_index_list(:table) i, pragma_index_info(i.name) c
WHERE i."unique"
""")
_ROWID = text("SELECT name FROM pragma_table_info(:table) WHERE pk > 0 AND upper(type) = 'INTEGER'")
_NOW_US = "CAST(strftime('%s', 'now') AS INTEGER) * 1000000"
_RECORD = text("SELECT guard, form, floor FROM fencegate_resources WHERE name = :name")
_REPLACE = (
    "INSERT OR REPLACE removes a row that is in its way by a unique column without asking for that row's token, "
    "unless the connection has PRAGMA recursive_triggers=ON"
)


class SqliteProtector:
    """One file, one writer: whoever writes has the lock of the whole database until the commit."""

    def engine(self, url: URL, *, reads_only: bool) -> Engine:
        """A plain one: how the file keeps its journal is the matter of those who write to it."""
        path = Path(url.database or "")
        if not path.is_file():
            raise ResourceUnavailable("there is no such SQLite file")  # which SQLite would create
        name = f"file:{quote(str(path.absolute()))}?mode={'ro' if reads_only else 'rw'}"

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(name, uri=True, isolation_level=None, timeout=_WAIT_S, check_same_thread=False)

        return create_engine("sqlite://", creator=connect)

    def take_turn(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # the driver begins nothing by itself

    # --- installing --------------------------------------------------------------------------------------------------

    def plan(self, connection: Connection, wanted: Wanted) -> Plan:
        table = _find_table(connection, wanted.table)
        there = {str(name).lower(): str(name) for (name,) in connection.execute(_COLUMNS, {"table": table})}
        for name in wanted.key:
            if name.lower() not in there:
                raise InvalidInput("key", f"{table} has no column {name!r}")
        parts = guard_parts(wanted.guard, table, wanted.key)
        plan = Plan(TableName(None, table))
        if _can_replace_others(connection, table, parts):
            plan.warnings.append(_REPLACE)
        known = {name for (name,) in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")}
        absent = [one for one in FENCE_TABLES if one.name not in known]
        plan.steps += [creation(one, connection.dialect) for one in absent]
        ours = {row.name: str(row.sql) for row in connection.execute(_TRIGGERS, {"table": table})}
        triggers = _triggers(table, parts, set(connection.execute(_ALL_TRIGGERS).scalars()) - set(ours))
        if set(ours) != set(triggers):
            plan.steps += [f"DROP TRIGGER IF EXISTS {_name(name)}" for name in sorted(ours)]
            plan.steps += triggers.values()
        self._plan_record(connection, plan, wanted, list(ours.values()), there=not absent)
        return _scripted(plan)

    def _plan_record(
        self, connection: Connection, plan: Plan, wanted: Wanted, triggers: list[str], *, there: bool
    ) -> None:
        """The record of how the table is protected."""
        name, form = plans.record_name(plan.table), plans.form_of(wanted.key)
        kept = connection.execute(_RECORD, {"name": name}).first() if there else None
        renamed = plans.of_another_name(triggers, kept, _literal(name))
        what = plans.recording(plan, wanted, kept, renamed=renamed)
        if what == "done":
            return
        floor = str(wanted.floor or 0)
        if what == "change":
            these = plans.counted(
                None if renamed else kept,
                plan.table.name,
                _NOW_US,
                lambda size, hex_: f"substr(CAST(lock_key AS BLOB), 1, {size}) = X'{hex_}'",
            )
            floor = (
                f"(SELECT max({floor}, coalesce(max(token), 0)) "  # noqa: S608 - a number
                f"FROM fencegate_fences WHERE mode = 'enforce' AND {these})"
            )
        values = f"({_literal(name)}, {_literal(wanted.guard)}, {_literal(form)}, 'enforce', {floor})"
        plan.steps.append(
            f"INSERT INTO fencegate_resources (name, guard, form, mode, floor)\nVALUES {values}\n"
            "ON CONFLICT (name) DO UPDATE SET guard = excluded.guard, form = excluded.form, mode = excluded.mode,\n"
            "    floor = max(floor, excluded.floor)"
        )

    # --- removing ----------------------------------------------------------------------------------------------------

    def plan_removal(self, connection: Connection, table: TableName) -> Plan:
        found = _find_table(connection, table)
        ours = sorted(row.name for row in connection.execute(_TRIGGERS, {"table": found}))
        return _scripted(Plan(TableName(None, found), [f"DROP TRIGGER IF EXISTS {_name(name)}" for name in ours]))


# --- the pieces ------------------------------------------------------------------------------------------------------


def _find_table(connection: Connection, wanted: TableName) -> str:
    if wanted.schema not in (None, "main"):
        raise InvalidInput("table", "of another file: name that file in the URL")
    found = connection.execute(_TABLE, {"name": wanted.name}).first()
    if found is None:
        raise InvalidInput("table", f"there is no table {wanted.name!r}")
    if found.type != "table" or found.virtual:
        raise InvalidInput("table", f"{wanted.name!r} is a view or a virtual table: protect the tables behind it")
    if found.name.lower().startswith((PREFIX, "sqlite_")):
        raise UnsafeConfiguration(f"{wanted.name!r} is a table of Fencegate or of SQLite itself")
    return str(found.name)


def _can_replace_others(connection: Connection, table: str, parts: tuple[str | ColumnPart, ...]) -> bool:
    """Whether two rows of different locks can be in each other's way."""
    of_guard = {part.column.lower() for part in parts if isinstance(part, ColumnPart)}
    if not of_guard:
        return False
    unique: dict[str, set[str]] = {}
    for name, column in connection.execute(_UNIQUE, {"table": table}):
        unique.setdefault(name, set()).add(str(column).lower())
    rowid = {str(name).lower() for (name,) in connection.execute(_ROWID, {"table": table})}
    return any(not of_guard <= columns for columns in unique.values()) or (len(rowid) == 1 and not of_guard <= rowid)


def _triggers(table: str, parts: tuple[str | ColumnPart, ...], taken: set[str]) -> dict[str, str]:
    """By name, which tells what they are: that of another guard is another name."""
    record = _literal(plans.record_name(TableName(None, table)))
    new, old = (_check(parts, row, record) for row in ("NEW", "OLD"))
    checks = {"insert": new, "update": f"{old}\n{new}", "delete": old}
    told = fingerprint(table, *checks.values(), filled("sqlite", "trigger", trigger="", event="", table="", checks=""))
    begun = plans.untaken(f"{PREFIX}{told}", taken)
    names = {event: f"{begun}_{event}" for event in checks}
    return {
        names[event]: filled(
            "sqlite", "trigger", trigger=_name(names[event]), event=event.upper(), table=_name(table), checks=text_
        )
        for event, text_ in checks.items()
    }


def _check(parts: tuple[str | ColumnPart, ...], row: str, record: str) -> str:
    spelled = ", ".join(
        f"{row}.{_name(part.column)}" if isinstance(part, ColumnPart) else _literal(part) for part in parts
    )
    return "    " + filled("sqlite", "check", function=_name(SQLITE_FUNCTION), parts=spelled, record=record)


def _scripted(plan: Plan) -> Plan:
    if plan.steps:
        plan.script = ";\n\n".join(["BEGIN IMMEDIATE", *plan.steps, "COMMIT"]) + ";\n"
    return plan


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
