"""Which table an entry lives in, and how its row is written in SQL."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from fencegate.core.model import LOCKS
from fencegate.core.ports import Change
from fencegate_lockservice.stores.mysql.statements import literal, literals
from fencegate_lockservice.stores.sql.columns import is_lock, readable
from fencegate_lockservice.stores.sql.schema import MAX_KEY_BYTES, entries, locks

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WIDTHS = (1024, 512, 1024)


class TableOf(NamedTuple):
    """How SQL speaks of the entries of one table."""

    table: str
    key: str
    value: str
    prefix: bytes
    """What its keys begin with, and its rows leave out."""
    columns: str
    """All of them, in the order of `row`."""
    written: str
    """What a write over an earlier row changes."""

    def row_key(self, key: str) -> bytes:
        return key.encode()[len(self.prefix) :]

    def row_keys(self, keys: Iterable[str]) -> str:
        return literals(map(self.row_key, keys))


def _table_of(name: str, value: str, prefix: str, *columns: str) -> TableOf:
    kept = (columns[0], "`created_at`")
    written = ", ".join(f"{column} = VALUES({column})" for column in columns if column not in kept)
    return TableOf(name, columns[0], value, prefix.encode(), ", ".join(columns), written)


_COMMON = ("`version`", "`keep_until`")
_READABLE = (
    "`created_at`", "`updated_at`",
    "`namespace`", "`owner_id`", "`lock_token`", "`fencing_token`", "`expires_at`", "`reentrancy_count`",
)  # fmt: skip
LOCK_TABLE = _table_of(locks.name, "`record`", LOCKS, "`lock_key`", *_COMMON, "`record`", *_READABLE)
ENTRY_TABLE = _table_of(entries.name, "`value`", "", "`key`", *_COMMON, "`value`")
TABLES = (LOCK_TABLE, ENTRY_TABLE)
"""In the order in which their rows are locked, everywhere."""


def by_table(keys: Iterable[str]) -> list[tuple[TableOf, list[str]]]:
    """These keys by table, in the order of their bytes: whoever locks rows in this order meets no deadlock."""
    found: dict[TableOf, list[str]] = {table: [] for table in TABLES}
    for key in sorted(set(keys), key=str.encode):
        found[LOCK_TABLE if is_lock(key) else ENTRY_TABLE].append(key)
    return [(table, some) for table, some in found.items() if some]


def check_key(key: str) -> None:
    """ValueError when the store can't hold it (also when it is no text)."""
    if len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"a key of more than {MAX_KEY_BYTES} bytes")


def empty_row(table: TableOf, key: str) -> str:
    """A row that stands for an absent key, for as long as a transaction needs something to lock."""
    first = f"({literal(table.row_key(key))}, '', NULL, ''"
    if table is ENTRY_TABLE:
        return first + ")"
    return first + ", UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), '', NULL, NULL, 0, NULL, 0)"


def row(table: TableOf, change: Change) -> str:
    """The row that a change writes."""
    assert change.value is not None
    keep = "NULL" if change.keep_until_us is None else str(int(change.keep_until_us))
    version = literal(change.version.encode())
    first = f"({literal(table.row_key(change.key))}, {version}, {keep}, {literal(change.value)}"
    if table is ENTRY_TABLE:
        return first + ")"
    seen = readable(change.key[len(LOCKS) :], change.value)
    texts = ", ".join(map(_text, (seen.namespace, seen.owner_id, seen.lock_token), _WIDTHS))
    numbers = f"{int(seen.fencing_token)}, {_time(seen.expires_us)}, {int(seen.reentrancy_count)}"
    return f"{first}, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), {texts}, {numbers})"


def _text(value: str | None, width: int) -> str:
    return "NULL" if value is None else f"_utf8mb4 {literal(value[:width].encode(errors='replace'))}"


def _time(unix_us: int | None) -> str:
    if unix_us is None:
        return "NULL"
    try:
        return f"'{_EPOCH + timedelta(microseconds=unix_us):%Y-%m-%d %H:%M:%S.%f}'"
    except OverflowError:
        return "NULL"
