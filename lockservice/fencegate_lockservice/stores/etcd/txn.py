"""A commit as a transaction of etcd: comparisons and writes; many in one, each with a verdict of its own.

A group is one transaction whose operations are transactions. All their comparisons see the state before the whole, so
a key that one of them writes occurs in no other.
"""

from collections.abc import Sequence

import msgspec

from fencegate.core.ports import Change
from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.keys import Keys, bounds, stored

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

_encode = msgspec.json.Encoder().encode


class Item:
    """One commit."""

    __slots__ = ("compares", "lines", "not_after_us", "operations", "size", "versions", "width", "written")

    def __init__(self, keys: Keys, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int):
        self.not_after_us = not_after_us
        self.versions = {change.key: change.expected for change in changes}
        self.written = [change.key for change in changes if not change.compare_only]
        self.compares: list[bytes] = []
        self.operations: list[bytes] = []
        for change in changes:
            self._add(keys, change)
        self.lines = stored_lines(log) if log else b""
        self.width = self._width()
        self.size = sum(map(len, self.compares)) + sum(map(len, self.operations)) + len(self.lines) + 200

    def _add(self, keys: Keys, change: Change) -> None:
        place = keys.place(change.key)
        if change.expected is None:
            self.compares.append(proto.absent(place.key))
        else:
            self.compares += is_version(place.key, change.expected)
        if change.compare_only:
            return
        if change.value is None:
            self.operations.append(proto.delete(place.key))
            if place.name is not None:
                self.operations.append(proto.delete(place.name))
            return
        if not change.version.isprintable():
            raise ValueError("a version is of printable characters")
        self.operations.append(proto.put(place.key, stored(change.version, change.value)))
        if place.name is not None and change.expected is None:
            self.operations.append(proto.put(place.name, b""))
        if change.keep_until_us is not None:
            until = keys.until(change.keep_until_us, change.key)
            self.operations.append(proto.put(until, change.version.encode()))

    def _width(self) -> int:
        """How much of what etcd allows it takes on the way to its operations."""
        count = len(self.operations) + bool(self.lines)
        if count > MANY:
            return max(len(self.compares), -(-count // CHUNK)) + CHUNK
        return max(len(self.compares), count, 1)

    def writes(self, slot: bytes) -> list[bytes]:
        """Its operations, many of them in transactions of some; its log lines go to this slot."""
        operations = [*self.operations, proto.put(slot, self.lines)] if self.lines else self.operations
        if len(operations) <= MANY:
            return operations
        return [proto.nested([], operations[start : start + CHUNK]) for start in range(0, len(operations), CHUNK)]

    def nested(self, slot: bytes) -> bytes:
        """As one of a group; nobody else of the group has this slot."""
        return proto.nested(self.compares, self.writes(slot))


def all_or_none(condition: bytes, items: Sequence[Item], slot: bytes) -> bytes | None:
    """A group as one commit: it writes one key of the log for all of them, and that is one event for whoever watches.
    None when that is more than etcd takes."""
    compares = [condition, *(compare for item in items for compare in item.compares)]
    operations = [operation for item in items for operation in item.operations]
    lines = [item.lines[1:-1] for item in items if item.lines]
    if lines:
        operations.append(proto.put(slot, b"[" + b",".join(lines) + b"]"))
    if max(len(compares), len(operations)) > MAX_OPERATIONS:
        return None
    return proto.txn(compares, operations)


def is_version(key: bytes, version: str) -> tuple[bytes, bytes]:
    return proto.between(key, *bounds(version))


def stored_lines(log: Sequence[tuple[str, bytes]]) -> bytes:
    if len(log) > MAX_LINES:
        raise ValueError(f"it has more than {MAX_LINES} log lines")
    return _encode([(key, event.decode()) for key, event in log])
