"""A group of commits in the form that `fencegate_commit_1` takes, and its answer."""

from collections.abc import Iterator, Sequence

import msgspec

from fencegate.core.model import LOCKS
from fencegate.core.ports import Change, Unavailable
from fencegate_lockservice.stores.grouping import Waiting
from fencegate_lockservice.stores.sql.columns import is_lock, readable

MAX_BYTES = 4 << 20
"""How much goes out at once; a larger item goes alone."""
MAX_KEY_BYTES = 2048
"""An entry of an index may have 2704."""


class _Changed(msgspec.Struct, omit_defaults=True, gc=False):
    """A change as the function reads it; see the head of `v0001_commit.sql`."""

    i: int
    k: str
    c: bool
    x: str | None = None
    v: str | None = None
    d: str | None = None
    u: int | None = None
    o: str | None = None
    t: str | None = None
    f: int | None = None
    z: int | None = None
    n: int | None = None


class _Line(msgspec.Struct, gc=False):
    i: int
    k: str
    e: str


_encode = msgspec.json.Encoder().encode


class Commit:
    """What one caller wants to commit, as text. Unavailable when the database can't hold it."""

    __slots__ = ("compared", "entries", "lines", "locks", "not_after_us", "size", "written")

    def __init__(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        self.not_after_us = not_after_us
        self.locks: list[_Changed] = []
        self.entries: list[_Changed] = []
        self.written: set[str] = set()
        self.compared: set[str] = set()
        for change in changes:
            if is_lock(change.key):
                self.locks.append(_changed_lock(change))
            else:
                self.entries.append(_changed(change, change.key))
            (self.compared if change.compare_only else self.written).add(change.key)
        self.lines = [_Line(0, check_text(key), _text(event)) for key, event in log]
        self.size = sum(len(change.value or b"") for change in changes) + sum(len(event) for _, event in log)

    def numbered(self, item: int) -> None:
        for change in (*self.locks, *self.entries):
            change.i = item
        for line in self.lines:
            line.i = item


def check_text(text: str) -> str:
    """Text that a database in UTF-8 can hold."""
    if "\0" in text or (not text.isascii() and text.encode(errors="replace").decode() != text):
        raise Unavailable("the store can't take this: it holds text without NUL and half characters only")
    return text


def _text(value: bytes) -> str:
    try:
        return check_text(value.decode())
    except UnicodeDecodeError:
        raise Unavailable("the store can't take this: it holds text in UTF-8 only") from None


def _changed(change: Change, key: str) -> _Changed:
    if len(key) > MAX_KEY_BYTES // 4 and len(key.encode(errors="replace")) > MAX_KEY_BYTES:
        raise Unavailable(f"the store can't take this: a key has at most {MAX_KEY_BYTES} bytes")
    expected = None if change.expected is None else check_text(change.expected)
    row = _Changed(0, check_text(key), change.compare_only, expected)
    if not change.compare_only and change.value is not None:
        row.v, row.d, row.u = check_text(change.version), _text(change.value), change.keep_until_us
    return row


def _changed_lock(change: Change) -> _Changed:
    lock_key = change.key[len(LOCKS) :]
    row = _changed(change, lock_key)
    if row.d is not None and change.value is not None:
        shown = readable(lock_key, change.value)
        row.o, row.t, row.f, row.z = shown.owner_id, shown.lock_token, shown.fencing_token, shown.expires_us
        row.n = shown.reentrancy_count
    return row


def parts(group: Sequence[Waiting[Commit]]) -> Iterator[list[Waiting[Commit]]]:
    """The group in its order, cut where an item is about a key that an earlier one writes, or where it is too large."""
    part: list[Waiting[Commit]] = []
    written: set[str] = set()
    compared: set[str] = set()
    size = 0
    for waiting in group:
        item = waiting.item
        clash = item.written & written or item.written & compared or item.compared & written
        if part and (clash or size + item.size > MAX_BYTES):
            yield part
            part, written, compared, size = [], set(), set(), 0
        part.append(waiting)
        written |= item.written
        compared |= item.compared
        size += item.size
    if part:
        yield part


def arguments(part: Sequence[Waiting[Commit]]) -> tuple[str, int, int, str | None, str | None, str | None]:
    """What the function is called with."""
    items = [waiting.item for waiting in part]
    for number, item in enumerate(items):
        item.numbered(number)
    not_after_us = [item.not_after_us for item in items]
    locks = [row for item in items for row in item.locks]
    entries = [row for item in items for row in item.entries]
    return (
        "{" + ",".join(map(str, not_after_us)) + "}",
        min(not_after_us),
        _hints(locks) | _hints(entries) << 2,
        _rows(locks),
        _rows(entries),
        _rows([row for item in items for row in item.lines]),
    )


def _hints(rows: Sequence[_Changed]) -> int:
    """1 when one replaces what is there, 2 when one removes something, if only what it was compared by."""
    found = 0
    for row in rows:
        if row.d is None:
            found |= 2
        elif row.x is not None:
            found |= 1
    return found


def _rows(rows: Sequence[_Changed] | Sequence[_Line]) -> str | None:
    return _encode(rows).decode() if rows else None
