"""Records as bytes: JSON that a person can read in the store."""

import msgspec

from fencegate.core.model import DONE, LOCKS, Done, Event, Floor, LockRecord, Record

RECENT = 16


class StoredLock(msgspec.Struct, frozen=True, gc=False):
    """A lock record beside the ids of the commits that made it, newest first: how a commit of unknown fate is found."""

    commits: tuple[str, ...]
    record: LockRecord


class LogLine(msgspec.Struct, frozen=True, array_like=True, gc=False, omit_defaults=True):
    """What the change log says: which replica did it, and what happened (nothing, when only the queue moved)."""

    replica: str
    event: Event | None = None


_encode = msgspec.json.Encoder().encode
_decode_lock = msgspec.json.Decoder(StoredLock).decode
_decode_done = msgspec.json.Decoder(Done).decode
_decode_floor = msgspec.json.Decoder(Floor).decode
_decode_line = msgspec.json.Decoder(LogLine).decode


def encode(record: Record, commits: tuple[str, ...]) -> bytes:
    return _encode(StoredLock(commits[:RECENT], record) if isinstance(record, LockRecord) else record)


def decode(entry: str, value: bytes) -> tuple[Record, tuple[str, ...]]:
    if entry.startswith(LOCKS):
        stored = _decode_lock(value)
        return stored.record, stored.commits
    if entry.startswith(DONE):
        return _decode_done(value), ()
    return _decode_floor(value), ()


def encode_line(replica: str, event: Event | None) -> bytes:
    return _encode(LogLine(replica, event))


def decode_line(value: bytes) -> LogLine:
    return _decode_line(value)
