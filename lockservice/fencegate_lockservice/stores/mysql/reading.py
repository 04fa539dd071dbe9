"""Loads and scans: what is asked for at the same time is fetched together."""

from collections.abc import Mapping, Sequence

from fencegate.core.ports import Entry
from fencegate_lockservice.stores.grouping import Groups, Waiting
from fencegate_lockservice.stores.mysql.lines import Lines
from fencegate_lockservice.stores.mysql.log import READ_WITHIN_S
from fencegate_lockservice.stores.mysql.statements import literal, sql
from fencegate_lockservice.stores.mysql.tables import ENTRY_TABLE, LOCK_TABLE, TABLES, TableOf, by_table


class _Load:
    """Keys that somebody wants, and what was found of them."""

    __slots__ = ("found", "keys")

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.found: dict[str, Entry] = {}


class Reading:
    """Every read is a statement of its own that sees all that was committed before it began."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._loads = Groups(self._load_together, at_once=2)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        wanted = _Load(keys)
        await self._loads.add(wanted)
        return wanted.found

    async def _load_together(self, group: Sequence[Waiting[_Load]]) -> None:
        tables = by_table(key for waiting in group for key in waiting.item.keys)
        found: dict[str, Entry] = {}
        if tables:
            statements = [_select("load", table, keys=table.row_keys(keys)) for table, keys in tables]
            answers = await self._lines.run(statements, READ_WITHIN_S)
            for (table, _), rows in zip(tables, answers, strict=True):
                found |= {_key(table, key): Entry(version.decode(), value) for key, version, value in rows}
        for waiting in group:
            waiting.item.found = {key: found[key] for key in waiting.item.keys if key in found}
            waiting.done()

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        """Page by page of both tables, where the prefix reaches into both."""
        statements, tables = [], []
        for table in TABLES:
            where = _range(table, prefix.encode(), after.encode())
            if where is not None:
                statements.append(_select("scan", table, where=where, limit=int(limit)))
                tables.append(table)
        if not statements:
            return []
        answers = await self._lines.run_in_turn(statements, READ_WITHIN_S)
        found = [
            (_key(table, key), Entry(version.decode(), value))
            for table, rows in zip(tables, answers, strict=True)
            for key, version, value in rows
        ]
        return sorted(found, key=lambda pair: pair[0].encode())[:limit]

    async def close(self) -> None:
        await self._loads.close()


def _select(name: str, table: TableOf, **filled_in: str | int) -> str:
    return sql(name, table=table.table, key=table.key, value=table.value, **filled_in)


def _key(table: TableOf, key: bytes) -> str:
    return (table.prefix + key).decode()


def _range(table: TableOf, prefix: bytes, after: bytes) -> str | None:
    """The rows of a table whose keys begin with `prefix` and are above `after`; None when there can't be any."""
    own = table.prefix
    if table is ENTRY_TABLE and prefix.startswith(LOCK_TABLE.prefix):
        return None
    if prefix.startswith(own):
        first = prefix[len(own) :]
    elif own.startswith(prefix):
        first = b""
    else:
        return None
    terms = [f"{table.key} >= {literal(first)}"]
    if first:
        # No byte of UTF-8 is 0xff, so the last one can be raised.
        terms.append(f"{table.key} < {literal(first[:-1] + bytes([first[-1] + 1]))}")
    if after.startswith(own):
        terms.append(f"{table.key} > {literal(after[len(own) :])}")
    elif after > own:
        return None
    return " AND ".join(terms)
