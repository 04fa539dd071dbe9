"""Records as bytes: JSON that a person can read in the store. What is as usual is left out."""

import dataclasses
from typing import Any, NamedTuple

import msgspec

from fencegate.core.model import (
    DONE,
    FLOORS,
    LOCKS,
    MEMBERS,
    SESSIONS,
    Claimant,
    Done,
    Event,
    Floor,
    Hold,
    LockRecord,
    Member,
    Record,
    Session,
    Waiter,
)

RECENT = 8
"""So many commits a record tells of: if so many others came before somebody asks what became of a lost one, that stays
unknown. Sixteen were a third of all that Redis wrote to its file, which it rewrites the more often."""


class StoredLock(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A lock record beside the ids of the commits that made it, newest first: how a commit of unknown fate is found."""

    commits: tuple[str, ...]
    record: LockRecord
    written_us: int = 0
    """When it was written, by the clock of who wrote it; only where the store has none."""


class StoredSession(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The same of a session."""

    commits: tuple[str, ...]
    record: Session
    written_us: int = 0


class Decoded(NamedTuple):
    record: Record
    commits: tuple[str, ...] = ()
    written_us: int = 0


def _shape(kind: type[Any]) -> Any:
    """Holds and records as they are written: quicker than the values themselves, and without what is as usual."""
    fields = [
        (f.name, Any) if f.default is dataclasses.MISSING else (f.name, Any, f.default)
        for f in dataclasses.fields(kind)
    ]
    return msgspec.defstruct(f"_{kind.__name__}", fields, omit_defaults=True, frozen=True, gc=False)


_Record, _Hold, _Claimant = _shape(LockRecord), _shape(Hold), _shape(Claimant)

_FIELDS = tuple(field.name for field in dataclasses.fields(LockRecord))
_QUEUE = _FIELDS.index("queue")
_LongRecord = msgspec.defstruct("_LongRecord", [(name, Any) for name in _FIELDS])
"""A lock record whose queue is encoded already, waiter by waiter."""
LONG = 16


class LogLine(msgspec.Struct, frozen=True, array_like=True, gc=False, omit_defaults=True):
    """What the change log says: which replica did it, and what happened (nothing, when only the queue moved)."""

    replica: str
    event: Event | None = None
    version: str = ""
    """Which version of the entry this tells of; only where leases end by being watched."""


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


def _encode_long(record: LockRecord, commits: tuple[str, ...], written_us: int) -> bytes:
    values = [getattr(record, name) for name in _FIELDS]
    values[_QUEUE] = _places.encoded(record.queue)
    return _encode({"commits": commits, "record": _LongRecord(*values), "written_us": written_us})


def _bare_hold(hold: Hold) -> Any:
    who = hold.who
    claimant = _Claimant(
        who.request, who.lock_token, who.owner_id, who.ttl_us, who.fingerprint, who.metadata, who.special
    )
    return _Hold(claimant, hold.token, hold.granted_us, hold.expires_us, hold.renewals, hold.slot, hold.pending)


def _bare(record: LockRecord) -> Any:
    holds = record.holds
    return _Record(
        record.last_token, [_bare_hold(hold) for hold in holds] if holds else (), record.offer, record.queue,
        record.touched_us, record.closed_until_us, record.closed_below, record.revoked,
    )  # fmt: skip


def encode(record: Record, commits: tuple[str, ...] = (), written_us: int = 0) -> bytes:
    if type(record) is LockRecord:
        if len(record.queue) >= LONG:
            return _encode_long(record, commits, written_us)
        return _encode(StoredLock(commits, _bare(record), written_us))
    if type(record) is Session:
        return _encode(StoredSession(commits, record, written_us))
    return _encode(record)


def decode(entry: str, value: bytes) -> Decoded:
    kind = entry[: entry.index("/") + 1]
    if kind == LOCKS:
        lock = _decode_lock(value)
        return Decoded(lock.record, lock.commits, lock.written_us)
    if kind == SESSIONS:
        session = _decode_session(value)
        return Decoded(session.record, session.commits, session.written_us)
    return Decoded(_decoders[kind].decode(value))


def encode_line(replica: str, event: Event | None, version: str = "") -> bytes:
    return _encode(LogLine(replica, event, version))


def decode_line(value: bytes) -> LogLine:
    return _decode_line(value)
