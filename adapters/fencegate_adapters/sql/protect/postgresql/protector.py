"""Plans what to create and drop in a PostgreSQL database, in one transaction."""

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import URL, Connection, Engine, text

from fencegate_adapters.sql.dialect import dialect_of
from fencegate_adapters.sql.protect import plan as plans
from fencegate_adapters.sql.protect.plan import Plan, creation, filled, fingerprint
from fencegate_adapters.sql.protect.postgresql import catalog
from fencegate_adapters.sql.protect.wanted import ColumnPart, TableName, Wanted, guard_parts
from fencegate_adapters.sql.tables import FENCE_TABLES

_TURN = "SELECT pg_advisory_xact_lock(7420, 2)"
_TABLES_TURN = "SELECT pg_advisory_xact_lock(7420, 1)"  # that of all who create the fence tables
_SETTINGS = [
    "SET LOCAL lock_timeout = '10s'",  # behind a long transaction this would wait, and all others behind it
    "SET LOCAL idle_in_transaction_session_timeout = '30s'",  # whoever stands still here keeps everybody out
    "SET LOCAL client_min_messages = warning",
]


class PostgresqlProtector:
    """Its DDL is transactional: the table is protected by the old guard until it is by the new one."""

    def engine(self, url: URL, *, reads_only: bool) -> Engine:
        return dialect_of("postgresql").engine(url, 1)

    def take_turn(self, connection: Connection) -> None:
        dialect_of("postgresql").check(connection)
        connection.exec_driver_sql(_TURN)

    # --- installing --------------------------------------------------------------------------------------------------

    def plan(self, connection: Connection, wanted: Wanted) -> Plan:
        table = catalog.find_table(connection, wanted.table)
        parts = guard_parts(wanted.guard, table.name.name, wanted.key)
        needed = {part.column for part in parts if isinstance(part, ColumnPart)}
        spelled = {name: catalog.check_column(connection, table, name, name in needed) for name in wanted.key}
        parts = tuple(ColumnPart(spelled[part.column]) if isinstance(part, ColumnPart) else part for part in parts)

        known = catalog.functions(connection)
        schema, there = catalog.fences_schema(connection, known.get("enforce", {}).get("fences"))
        plan = Plan(table.name, gaps=_gaps(connection, table))
        if not there:
            plan.steps += [_TABLES_TURN, *(creation(one, connection.dialect, schema) for one in FENCE_TABLES)]
        shared = _shared(schema)
        print_ = fingerprint(*shared.values())
        if any(known.get(name, {}).get("fencegate") != print_ for name in catalog.SHARED):
            plan.steps.append("CREATE SCHEMA IF NOT EXISTS fencegate")
            plan.steps += shared.values()
            about = _comment({"fencegate": print_, "fences": schema})
            plan.steps += [f"COMMENT ON FUNCTION fencegate.{name} IS {about}" for name in shared]
        told = literal(plans.record_name(table.name))
        calls = catalog.called(connection, [table.oid])
        renamed = any(told not in calls.here[name] for name in _guards(calls.here))
        record = self._record_step(connection, plan, wanted, schema, there=there, renamed=renamed)
        self._plan_triggers(connection, plan, table, parts, known)
        plan.steps += record
        return _scripted(plan)

    def _plan_triggers(
        self,
        connection: Connection,
        plan: Plan,
        table: catalog.FoundTable,
        parts: tuple[str | ColumnPart, ...],
        known: dict[str, dict[str, Any]],
    ) -> None:
        per_row = any(isinstance(part, ColumnPart) for part in parts)
        children = catalog.partitions(connection, table)
        name_of = {table.oid: table.name, **children}
        calls = catalog.called(connection, list(name_of))
        function = plans.untaken(f"protect_{fingerprint(*map(str, table.name))}", calls.elsewhere)
        text_ = _function_text(function, table.name, parts, per_row)
        expected = _triggers(table, children, function, per_row)
        told = fingerprint(text_, *sorted(expected.values()))
        found = catalog.our_triggers(connection, list(name_of), function)
        clones = {(oid, "fencegate_rows") for oid in children}  # which the database makes, and anybody may switch off
        if known.get(function, {}).get("fencegate") == told and found == expected.keys() | clones:
            return
        plan.steps += [text_, f"COMMENT ON FUNCTION fencegate.{_name(function)} IS {_comment({'fencegate': told})}"]
        plan.steps += _drops(table, children)
        plan.steps += _function_drops(_guards(calls.here) - calls.elsewhere - {function})
        plan.steps += expected.values()
        if children:
            plan.warnings.append("a partition that is added later is protected, but not against TRUNCATE: run it again")

    def _record_step(
        self, connection: Connection, plan: Plan, wanted: Wanted, schema: str, *, there: bool, renamed: bool
    ) -> list[str]:
        """The record of how the table is protected."""
        name, form = plans.record_name(plan.table), plans.form_of(wanted.key)
        fences, resources = _own_tables(schema)
        query = text(f"SELECT guard, form, floor FROM {resources} WHERE name = :name")  # noqa: S608 - quoted
        kept = connection.execute(query, {"name": name}).first() if there else None
        what = plans.recording(plan, wanted, kept, renamed=renamed)
        if what == "done":
            return []
        floor = str(wanted.floor or 0)
        if what == "change":
            these = plans.counted(None if renamed else kept, plan.table.name, _NOW_US, _begins)
            seen = f"SELECT coalesce(max(token), 0) FROM {fences} WHERE mode = 'enforce' AND {these}"  # noqa: S608 - quoted
            floor = f"greatest({floor}, ({seen}))"
        if floor != "0":  # whoever is past a fence has locked a row of this table
            plan.steps.append(f"LOCK TABLE {fences} IN EXCLUSIVE MODE")
        return [
            f"INSERT INTO {resources} AS record (name, guard, form, mode, floor)\n"
            f"VALUES ({literal(name)}, {literal(wanted.guard)}, {literal(form)}, 'enforce', {floor})\n"
            "ON CONFLICT (name) DO UPDATE SET guard = excluded.guard, form = excluded.form, mode = excluded.mode,\n"
            "    floor = greatest(record.floor, excluded.floor)"
        ]

    # --- removing ----------------------------------------------------------------------------------------------------

    def plan_removal(self, connection: Connection, table: TableName) -> Plan:
        found = catalog.find_table(connection, table)
        plan = Plan(found.name)
        children = catalog.partitions(connection, found)
        known = catalog.functions(connection)
        calls = catalog.called(connection, [found.oid, *children])
        if _guards(calls.here):
            plan.steps += _drops(found, children)
        # Those of tables that were dropped, too, for nobody else can name them any more.
        ours = _guards(name for name, said in known.items() if "fencegate" in said) - calls.elsewhere
        plan.steps += _function_drops(ours)
        if set(known) & set(catalog.SHARED) and not calls.elsewhere | calls.here.keys() - ours:
            plan.steps += [f"DROP FUNCTION IF EXISTS fencegate.{name}" for name in reversed(_SIGNATURES)]
            if not catalog.schema_holds_more(connection, ours):
                plan.steps.append("DROP SCHEMA IF EXISTS fencegate")
        return _scripted(plan)


# --- the pieces ------------------------------------------------------------------------------------------------------

_SIGNATURES = ("raise_fence(text, bigint, text)", "check_lock(text, text)", "enforce(text, bigint)")


_NOW_US = "extract(epoch FROM clock_timestamp())::bigint * 1000000"


def _begins(size: int, hex_: str) -> str:
    return f"substring(lock_key FROM 1 FOR {size}) = decode('{hex_}', 'hex')"


def _own_tables(schema: str) -> tuple[str, str]:
    fences, resources = (f"{_name(schema)}.{table.name}" for table in FENCE_TABLES)
    return fences, resources


def _shared(schema: str) -> dict[str, str]:
    fences, resources = _own_tables(schema)
    return {
        signature: filled("postgresql", name, fences=fences, resources=resources)
        for signature, name in zip(_SIGNATURES, catalog.SHARED, strict=True)
    }


def _guards(functions: Iterable[str]) -> set[str]:
    """Those that were made for a table, under whatever name it had."""
    return {name for name in functions if name.startswith("protect_")}


def _function_drops(functions: set[str]) -> list[str]:
    return [f"DROP FUNCTION IF EXISTS fencegate.{_name(name)}" for name in sorted(functions)]


def _function_text(function: str, table: TableName, parts: tuple[str | ColumnPart, ...], per_row: bool) -> str:
    new, old = (_expression(parts, row) for row in ("NEW", "OLD"))
    quote = "$fencegate$"
    record = literal(plans.record_name(table))
    while quote in new + record:  # a name may hold it
        quote = f"{quote[:-1]}_$"
    file = "guard_rows" if per_row else "guard_all"
    return filled("postgresql", file, function=_name(function), quote=quote, new=new, old=old, record=record)


def _expression(parts: tuple[str | ColumnPart, ...], row: str) -> str:
    """Byte by byte, whatever the collation of the column: by some, keys are equal that are not the same, and the
    functions that look for a lock refuse to work."""
    return " || ".join(
        f'{row}.{_name(part.column)}::text COLLATE "C"' if isinstance(part, ColumnPart) else literal(part)
        for part in parts
    )


def _triggers(
    table: catalog.FoundTable, children: dict[int, TableName], function: str, per_row: bool
) -> dict[tuple[int, str], str]:
    """One lock for all rows is checked once for a statement, before it touches a row. But the statement's triggers of a
    table are not those of its partitions, nor of the table that it inherits from."""
    runs = f"EXECUTE FUNCTION fencegate.{_name(function)}()"
    on = _table(table.name)
    change = "INSERT OR UPDATE OR DELETE"
    made = {}
    if per_row or table.partitioned or table.has_parent:
        # After: a BEFORE trigger that fires later could still change the key.
        made[table.oid, "fencegate_rows"] = f"CREATE TRIGGER fencegate_rows AFTER {change} ON {on} FOR EACH ROW {runs}"
    if not per_row:
        made[table.oid, "fencegate_statement"] = (
            f"CREATE TRIGGER fencegate_statement BEFORE {change} ON {on} FOR EACH STATEMENT {runs}"
        )
    for oid, name in {table.oid: table.name, **children}.items():
        made[oid, "fencegate_truncate"] = (
            f"CREATE TRIGGER fencegate_truncate BEFORE TRUNCATE ON {_table(name)} FOR EACH STATEMENT {runs}"
        )
    return made


def _drops(table: catalog.FoundTable, children: dict[int, TableName]) -> list[str]:
    drops = [f"DROP TRIGGER IF EXISTS {trigger} ON {_table(table.name)}" for trigger in catalog.TRIGGERS]
    return drops + [f"DROP TRIGGER IF EXISTS fencegate_truncate ON {_table(name)}" for name in children.values()]


def _gaps(connection: Connection, table: catalog.FoundTable) -> list[str]:
    below = catalog.tables_below(connection, table)
    if not below:
        return []
    return [f"tables inherit from it, and what is written to them is not seen here: {', '.join(map(str, below))}"]


def _scripted(plan: Plan) -> Plan:
    if plan.steps:
        plan.steps = [*_SETTINGS, _TURN, *plan.steps]
        plan.script = ";\n\n".join(["BEGIN", *plan.steps, "COMMIT"]) + ";\n"
    return plan


def _comment(said: dict[str, Any]) -> str:
    return literal(json.dumps(said))


def _table(name: TableName) -> str:
    return f"{_name(name.schema or 'public')}.{_name(name.name)}"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    """As text of SQL, right whether or not backslashes mean something here."""
    doubled = value.replace("'", "''")
    return f"E'{doubled}'".replace("\\", "\\\\") if "\\" in value else f"'{doubled}'"
