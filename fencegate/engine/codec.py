"""Records as bytes: JSON that a person can read in the store."""

import dataclasses
from typing import Any

import msgspec

from fencegate.core.model import (
    DONE,
    FLOORS,
    LOCKS,
    MEMBERS,
    SESSIONS,
    Done,
    Event,
    Floor,
    LockRecord,
    Member,
    Record,
    Session,
    Waiter,
)

RECENT = 16


class StoredLock(msgspec.Struct, frozen=True, gc=False):
    """A lock record beside the ids of the commits that made it, newest first: how a commit of unknown fate is found."""

    commits: tuple[str, ...]
    record: LockRecord


class StoredSession(msgspec.Struct, frozen=True, gc=False):
    """The same of a session."""

    commits: tuple[str, ...]
    record: Session


_FIELDS = tuple(field.name for field in dataclasses.fields(LockRecord))
_QUEUE = _FIELDS.index("queue")
_LongRecord = msgspec.defstruct("_LongRecord", [(name, Any) for name in _FIELDS])
"""A lock record whose queue is encoded already, waiter by waiter."""
LONG = 16


class LogLine(msgspec.Struct, frozen=True, array_like=True, gc=False, omit_defaults=True):
    """What the change log says: which replica did it, and what happened (nothing, when only the queue moved)."""

    replica: str
    event: Event | None = None


_encode = msgspec.json.Encoder().encode
_decode_lock = msgspec.json.Decoder(StoredLock).decode
_decode_session = msgspec.json.Decoder(StoredSession).decode
_decode_line = msgspec.json.Decoder(LogLine).decode
_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    DONE: msgspec.json.Decoder(Done),
    FLOORS: msgspec.json.Decoder(Floor),
    MEMBERS: msgspec.json.Decoder(Member),
}


class _Places:
    """Waiters as bytes. In a long queue few change from one commit to the next, and encoding it is most of the work."""

    def __init__(self) -> None:
        self._raw: dict[int, tuple[Waiter, msgspec.Raw]] = {}

    def encoded(self, queue: tuple[Waiter, ...]) -> list[msgspec.Raw]:
        known = self._raw
        if len(known) > 8 * len(queue) + 10_000:
            known.clear()
        found = []
        for waiter in queue:
            pair = known.get(id(waiter))  # the waiter is kept beside its bytes, so that its id stays its own
            if pair is None:
                pair = known[id(waiter)] = (waiter, msgspec.Raw(_encode(waiter)))
            found.append(pair[1])
        return found


_places = _Places()


def _encode_long(record: LockRecord, commits: tuple[str, ...]) -> bytes:
    values = [getattr(record, name) for name in _FIELDS]
    values[_QUEUE] = _places.encoded(record.queue)
    return _encode({"commits": commits, "record": _LongRecord(*values)})


def encode(record: Record, commits: tuple[str, ...]) -> bytes:
    if isinstance(record, LockRecord):
        if len(record.queue) >= LONG:
            return _encode_long(record, commits[:RECENT])
        return _encode(StoredLock(commits[:RECENT], record))
    if isinstance(record, Session):
        return _encode(StoredSession(commits[:RECENT], record))
    return _encode(record)


def decode(entry: str, value: bytes) -> tuple[Record, tuple[str, ...]]:
    kind = entry[: entry.index("/") + 1]
    if kind == LOCKS:
        lock = _decode_lock(value)
        return lock.record, lock.commits
    if kind == SESSIONS:
        session = _decode_session(value)
        return session.record, session.commits
    found: Record = _decoders[kind].decode(value)
    return found, ()


def encode_line(replica: str, event: Event | None) -> bytes:
    return _encode(LogLine(replica, event))


def decode_line(value: bytes) -> LogLine:
    return _decode_line(value)
