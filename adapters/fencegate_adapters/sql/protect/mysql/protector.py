"""Plans what to create and drop in a MySQL or MariaDB database, where each statement of DDL commits by itself."""

import re

from sqlalchemy import URL, Connection, Engine, text

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.sql.dialect import dialect_of
from fencegate_adapters.sql.protect import plan as plans
from fencegate_adapters.sql.protect.mysql import catalog
from fencegate_adapters.sql.protect.mysql.catalog import FoundColumn
from fencegate_adapters.sql.protect.plan import Plan, creation, filled, fingerprint
from fencegate_adapters.sql.protect.wanted import ColumnPart, TableName, Wanted, guard_parts
from fencegate_adapters.sql.tables import FENCE_TABLES

_WAIT_S = 30
_TURN = f"GET_LOCK('fencegate.protect', {_WAIT_S})"
# Triggers and procedures keep the mode that they were created in; in this one a quote is all that needs doubling.
_MODE = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION'"
_SETTINGS = ["SET NAMES utf8mb4", _MODE, f"SET SESSION lock_wait_timeout = {_WAIT_S}"]
# Whoever is past a fence has a lock on its row. At this level the gaps are locked too: nobody passes by a new row.
_KEEP_OUT = [
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION",
    "SELECT count(*) INTO @fencegate_fences FROM fencegate_fences FOR UPDATE",
]
_BODY = re.compile(r"(?m)^BEGIN$")
_TRUNCATE = "TRUNCATE does not fire triggers in MySQL: grant nobody DROP on the table, which is the right that it takes"

_NOW_US = "CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000000"
_RECORD = text("SELECT guard, form, floor FROM fencegate_resources WHERE name = :name")


class MysqlProtector:
    """The triggers of a new guard are created before those of the old one are dropped: there is no moment without."""

    def engine(self, url: URL, *, reads_only: bool) -> Engine:
        return dialect_of("mysql").engine(url, 1).execution_options(isolation_level="AUTOCOMMIT")

    def take_turn(self, connection: Connection) -> None:
        dialect_of("mysql").check(connection)
        if connection.exec_driver_sql(f"SELECT {_TURN}").scalar() != 1:
            raise ResourceUnavailable("another `fencegate protect` is at work in this server: try again")

    # --- installing --------------------------------------------------------------------------------------------------

    def plan(self, connection: Connection, wanted: Wanted) -> Plan:
        table = catalog.find_table(connection, wanted.table)
        parts = guard_parts(wanted.guard, table, wanted.key)
        needed = {part.column for part in parts if isinstance(part, ColumnPart)}
        columns = {name: catalog.find_column(connection, table, name, name in needed) for name in wanted.key}
        plan = Plan(TableName(None, table), warnings=[_TRUNCATE])
        if through := catalog.cascades(connection, table):
            plan.gaps.append(f"foreign keys with a cascade change its rows without firing triggers: {_listed(through)}")
        there = catalog.tables_there(connection)
        if not there:
            plan.steps += [creation(one, connection.dialect) for one in FENCE_TABLES]
        self._plan_procedures(connection, plan)
        all_ = catalog.triggers(connection)
        ours = [name for name, of in all_.items() if of == table]
        self._plan_triggers(plan, ours, _triggers(table, parts, columns, all_.keys() - set(ours)))
        self._plan_record(connection, plan, wanted, catalog.statements(connection, table), there=there)
        return _scripted(plan)

    def _plan_procedures(self, connection: Connection, plan: Plan) -> None:
        known = catalog.procedures(connection)
        told = _literal(f"Fencegate {fingerprint(*(filled('mysql', one, comment='') for one in catalog.PROCEDURES))}")
        for one in catalog.PROCEDURES:
            name = f"{catalog.PREFIX}{one}"
            if _literal(known.get(name, "")) != told:
                plan.steps += [f"DROP PROCEDURE IF EXISTS {name}", filled("mysql", one, comment=told)]

    def _plan_triggers(self, plan: Plan, ours: list[str], wanted: dict[str, str]) -> None:
        plan.steps += [text_ for name, text_ in wanted.items() if name not in ours]
        plan.steps += [f"DROP TRIGGER IF EXISTS {_name(name)}" for name in ours if name not in wanted]

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
                kept, plan.table.name, _NOW_US, lambda size, hex_: f"LEFT(lock_key, {size}) = X'{hex_}'"
            )
            floor = (
                f"(SELECT GREATEST({floor}, COALESCE(MAX(token), 0)) "  # noqa: S608 - a number
                f"FROM fencegate_fences WHERE mode = 'enforce' AND {these})"
            )
        values = f"({_literal(name)}, {_literal(wanted.guard)}, {_literal(form)}, 'enforce', {floor})"
        insert = (
            f"INSERT INTO fencegate_resources (name, guard, form, mode, floor)\nVALUES {values}\n"
            "ON DUPLICATE KEY UPDATE guard = VALUES(guard), form = VALUES(form), mode = VALUES(mode),\n"
            "    floor = GREATEST(floor, VALUES(floor))"
        )
        plan.steps += [insert] if floor == "0" else [*_KEEP_OUT, insert, "COMMIT"]

    # --- removing ----------------------------------------------------------------------------------------------------

    def plan_removal(self, connection: Connection, table: TableName) -> Plan:
        found = catalog.find_table(connection, table)
        plan = Plan(TableName(None, found))
        all_ = catalog.triggers(connection)
        plan.steps += [f"DROP TRIGGER IF EXISTS {_name(name)}" for name, of in all_.items() if of == found]
        ours = {f"{catalog.PREFIX}{one}" for one in catalog.PROCEDURES}
        there = [name for name, comment in catalog.procedures(connection).items() if comment.startswith("Fencegate ")]
        if all(of == found for of in all_.values()):
            plan.steps += [f"DROP PROCEDURE IF EXISTS {name}" for name in there if name in ours]
        return _scripted(plan)


# --- the pieces ------------------------------------------------------------------------------------------------------


def _triggers(
    table: str, parts: tuple[str | ColumnPart, ...], columns: dict[str, FoundColumn], taken: set[str]
) -> dict[str, str]:
    """By name, which tells what they are: that of another guard is another name.

    A row that is there is asked for before it is touched: a function or a trigger may handle our refusal, and MySQL
    does not take back what its statement has done by then. A new key is asked for after, when nobody can change it.
    """
    record = f"CAST(_utf8mb4 {_literal(plans.record_name(TableName(None, table)))} AS BINARY)"
    new, old = (_lock_key(parts, columns, row) for row in ("NEW", "OLD"))
    calls = {
        "AFTER INSERT": f"    CALL fencegate_check({new}, {record});",
        "BEFORE UPDATE": f"    CALL fencegate_check({old}, {record});",
        "AFTER UPDATE": (
            f"    IF NOT ({new} <=> {old}) THEN\n        CALL fencegate_check({new}, {record});\n    END IF;"
        ),
        "BEFORE DELETE": f"    CALL fencegate_check({old}, {record});",
    }
    told = fingerprint(table, *calls.values(), filled("mysql", "trigger", trigger="", event="", table="", calls=""))
    begun = plans.untaken(f"{catalog.PREFIX}{told}", taken)
    names = {event: f"{begun}_{event.lower().replace(' ', '_')}" for event in calls}
    return {
        names[event]: filled("mysql", "trigger", trigger=names[event], event=event, table=_name(table), calls=text_)
        for event, text_ in calls.items()
    }


def _lock_key(parts: tuple[str | ColumnPart, ...], columns: dict[str, FoundColumn], row: str) -> str:
    """As bytes: by the rules of a collation two lock keys may be equal that are not the same."""
    spelled = [
        _as_text(row, columns[part.column]) if isinstance(part, ColumnPart) else f"_utf8mb4 {_literal(part)}"
        for part in parts
    ]
    return f"CAST(CONCAT({', '.join(spelled)}) AS BINARY)"


def _as_text(row: str, column: FoundColumn) -> str:
    value = f"{row}.{_name(column.name)}"
    # Through a decimal: a column with ZEROFILL would be spelled with its zeros.
    return f"CONVERT({f'CAST({value} AS DECIMAL(20, 0))' if column.whole else value} USING utf8mb4)"


def _scripted(plan: Plan) -> Plan:
    """For the client, which must be told where a procedure ends."""
    if plan.steps:
        steps = [f"DO {_TURN}", *plan.steps, "DO RELEASE_LOCK('fencegate.protect')"]
        plan.steps = [*_SETTINGS, *plan.steps]
        told = [
            f"DELIMITER //\n{step}\n//\nDELIMITER ;" if _BODY.search(step) else f"{step};"
            for step in [*_SETTINGS, *steps]
        ]
        plan.script = "\n\n".join(told) + "\n"
    return plan


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(value: str) -> str:
    """In the mode that is set first, where a backslash means nothing."""
    return "'" + value.replace("'", "''") + "'"
