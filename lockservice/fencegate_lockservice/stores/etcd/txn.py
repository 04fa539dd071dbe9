"""A commit as a transaction of etcd: comparisons and writes; many in one, with a verdict for each of them or for all.

All comparisons of a transaction, and of those within it, see the state before the whole, so a key that one commit of a
group writes occurs in no other.
"""

from collections.abc import Sequence

from fencegate.core.ports import Change
from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.keys import Keys, kept_time_us, stored
from fencegate_lockservice.stores.etcd.lines import Lines

MAX_OPERATIONS = 128
"""Of etcd (`--max-txn-ops`): on every path from the outermost transaction to an innermost operation, the larger of
comparisons and operations is added up."""
MAX_REQUEST = 1_500_000
"""Bytes; etcd takes 1.5 MiB."""
MAX_LINES = 20_000
MANY = 32
CHUNK = 32
"""More operations than `MANY` are put in transactions of so many, since it is the longest path that etcd counts."""
MAX_WRITES = (MAX_OPERATIONS - CHUNK - 2) * CHUNK

Kept = dict[int, list[tuple[str, str]]]
"""By time, the entries that are kept until then, and their versions."""


class Item:
    """One commit. What is kept until a time, and the log lines, are not among its operations: a group has them in
    common."""

    __slots__ = (
        "compared",
        "compares",
        "kept",
        "log",
        "not_after_us",
        "operations",
        "size",
        "versions",
        "width",
        "writes",
        "written",
    )

    def __init__(self, keys: Keys, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int):
        self.not_after_us = not_after_us
        self.log = log
        self.versions: dict[str, str | None] = {}
        self.written: list[str] = []
        self.compares: list[bytes] = []
        self.compared = 0
        """How many comparisons these are: of a version, two are in one."""
        self.operations: list[bytes] = []
        self.kept: Kept = {}
        self.size = 200
        for change in changes:
            self._add(keys, change)
        for key, event in log:
            self.size += len(key.encode()) + len(event) + 10
        if len(log) > MAX_LINES:
            raise ValueError(f"it has more than {MAX_LINES} log lines")
        self.writes = len(self.operations) + len(self.kept) + bool(log)
        """How many operations it has by itself."""
        self.width = max(self.compared, self.writes, 1) if self.writes <= MANY else self._width_of_many()
        """How much of what etcd allows it takes on the way to its operations."""

    def _add(self, keys: Keys, change: Change) -> None:
        entry, expected, version, value, compare_only, keep_until_us = change
        key, name = keys.place(entry)
        self.versions[entry] = expected
        if expected is None:
            compare = proto.absent(key)
            self.compared += 1
        else:
            compare = proto.starts_with_line(key, expected.encode())
            self.compared += 2
        self.compares.append(compare)
        self.size += len(compare)
        if compare_only:
            return
        self.written.append(entry)
        if value is None:
            self._do(proto.delete(key))
            if name is not None:
                self._do(proto.delete(name))
            return
        if not version.isprintable():
            raise ValueError("a version is of printable characters")
        self._do(proto.put(key, stored(version, value)))
        if name is not None and expected is None:
            self._do(proto.put(name, b""))
        if keep_until_us is not None:
            self.kept.setdefault(kept_time_us(keep_until_us), []).append((entry, version))
            self.size += 2 * (len(key) + len(version)) + 100

    def _do(self, operation: bytes) -> None:
        self.operations.append(operation)
        self.size += len(operation)

    def _width_of_many(self) -> int:
        return max(self.compared, -(-self.writes // CHUNK)) + CHUNK


class Bodies:
    """Commits as they are sent."""

    def __init__(self, keys: Keys, lines: Lines) -> None:
        self._keys = keys
        self._lines = lines
        self._open = proto.absent(keys.gate)

    def all_or_none(self, items: Sequence[Item]) -> bytes | None:
        """A group as one commit: it writes one key of the log for all of them, and that is one event for whoever
        watches. None when that is more than etcd takes."""
        compares, compared = [self._open], 1
        operations: list[bytes] = []
        kept: Kept = {}
        log: list[tuple[str, bytes]] = []
        for item in items:
            compares += item.compares
            compared += item.compared
            operations += item.operations
            log += item.log
            for until_us, entries in item.kept.items():
                kept.setdefault(until_us, []).extend(entries)
        operations += self._in_common(kept, log, self._keys.slots[0])
        if max(compared, len(operations)) > MAX_OPERATIONS:
            return None
        return proto.txn(compares, operations)

    def each(self, items: Sequence[Item]) -> bytes:
        """A group of transactions, each of which has a key of the log for itself."""
        slots = zip(items, self._keys.slots, strict=False)
        return proto.txn([self._open], [proto.nested(item.compares, self.writes(item, slot)) for item, slot in slots])

    def writes(self, item: Item, slot: bytes) -> list[bytes]:
        """All its operations, many of them in transactions of some; its log lines go to this slot."""
        operations = [*item.operations, *self._in_common(item.kept, item.log, slot)]
        if len(operations) <= MANY:
            return operations
        return [proto.nested([], operations[start : start + CHUNK]) for start in range(0, len(operations), CHUNK)]

    def _in_common(self, kept: Kept, log: Sequence[tuple[str, bytes]], slot: bytes) -> list[bytes]:
        operations = [proto.put(*self._keys.kept(until_us, entries)) for until_us, entries in kept.items()]
        if log:
            operations.append(proto.put(slot, self._lines.stored(log)))
        return operations
