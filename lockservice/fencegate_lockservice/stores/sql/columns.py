"""What a person reads of a lock in its table, taken from the record as it is written; nothing is judged by it."""

from typing import NamedTuple

import msgspec

from fencegate.core.model import LOCKS
from fencegate.core.names import namespace


class Columns(NamedTuple):
    """The readable columns of `distributed_locks`; times are Unix microseconds."""

    namespace: str
    owner_id: str | None
    lock_token: str | None
    fencing_token: int
    expires_us: int | None
    reentrancy_count: int


class _Who(msgspec.Struct, gc=False):
    owner_id: str
    lock_token: str


class _Hold(msgspec.Struct, gc=False):
    who: _Who
    token: int
    expires_us: int


class _Record(msgspec.Struct, gc=False):
    last_token: int = 0
    holds: tuple[_Hold, ...] = ()


class _Stored(msgspec.Struct, gc=False):
    """The few fields of `codec.StoredLock` that are shown: a long queue is skipped over, not decoded."""

    record: _Record


_decode = msgspec.json.Decoder(_Stored).decode


def is_lock(key: str) -> bool:
    """Whether the entry lives in `distributed_locks`, under its key without the prefix."""
    return key.startswith(LOCKS)


def readable(lock_key: str, value: bytes) -> Columns:
    """The columns of a lock record; those of a free lock where it can't be read."""
    try:
        record = _decode(value).record
    except msgspec.MsgspecError:
        return Columns(namespace(lock_key), None, None, 0, None, 0)
    if not record.holds:
        return Columns(namespace(lock_key), None, None, record.last_token, None, 0)
    first = record.holds[0]
    if "\0" in first.who.owner_id + first.who.lock_token:  # no column of text holds it; the record itself does
        return Columns(namespace(lock_key), None, None, record.last_token, None, 0)
    count = sum(hold.who.owner_id == first.who.owner_id for hold in record.holds)
    return Columns(namespace(lock_key), first.who.owner_id, first.who.lock_token, first.token, first.expires_us, count)
