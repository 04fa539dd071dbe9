"""Records as bytes: nothing is lost on the way, though what is as usual is left out."""

import dataclasses
from typing import Any

import pytest

from fencegate.core.model import Claimant, Hold, LockRecord, Offer, Revocation, Terms, Waiter, lock_entry
from fencegate.engine.codec import LONG, decode, encode

WHO = Claimant("request", "request.secret", "me", 30_000_000, "fingerprint", {"host": "a"}, Terms(shared=True, limit=2))
HOLD = Hold(WHO, 34, 1_000, 31_000, 3, 1, pending=True)
WAITER = Waiter(WHO, "replica", ("one", "two"), 5_000, 6_000)
FULL = LockRecord(34, (HOLD, HOLD), Offer(WAITER, 7_000), (WAITER,), 8_000, 9_000, True, Revocation(10_000, "why"))
PLAIN = Claimant("request", "request.secret", "me", 30_000_000)


@pytest.mark.parametrize("value", [WHO, HOLD, FULL], ids=lambda value: type(value).__name__)
def test_the_records_of_this_test_have_every_field_set(value: Any) -> None:
    """So that a field which is added to the model, but not written, is noticed below."""
    for field in dataclasses.fields(value):
        assert getattr(value, field.name) != field.default, field.name


@pytest.mark.parametrize(
    "record",
    [
        LockRecord(),
        LockRecord(34),
        LockRecord(34, (Hold(PLAIN, 34, 1, 2),)),
        FULL,
        dataclasses.replace(FULL, queue=(WAITER,) * LONG),
    ],
)
def test_a_record_comes_back_as_it_was(record: LockRecord) -> None:
    decoded = decode("lock/k", encode(record, ("one", "two"), 12))
    assert decoded.record == record
    assert (decoded.commits, decoded.written_us) == (("one", "two"), 12)


def test_what_is_as_usual_is_left_out() -> None:
    written = encode(LockRecord(34, (Hold(PLAIN, 34, 1, 2),), touched_us=5), ("one",))
    assert written == (
        b'{"commits":["one"],"record":{"last_token":34,"holds":[{"who":{"request":"request","lock_token":"request.secret"'
        b',"owner_id":"me","ttl_us":30000000},"token":34,"granted_us":1,"expires_us":2}],"touched_us":5}}'
    )


def test_a_long_queue_is_read_as_it_was_written_also_when_some_of_it_was_written_before() -> None:
    def waiter(number: int, **changes: Any) -> Waiter:
        who = Claimant(f"r{number}", f"r{number}.x", "é", 1, metadata={"n": [number, "\n"]}, special=Terms(priority=2))
        return Waiter(who, "replica", ("p1",), **changes)

    queue = tuple(waiter(number) for number in range(40))
    offer = Offer(waiter(99), 5)
    first = LockRecord(7, (), offer, queue, 3, 4, True, Revocation(9, "why"))
    moved = LockRecord(8, (Hold(queue[0].who, 8, 1, 2),), None, (*queue[1:], waiter(40, suspect_us=6)))
    for record in (first, moved, first):
        encoded = encode(record, ("c1", "c2"))
        assert decode(lock_entry("k"), encoded)[:2] == (record, ("c1", "c2"))
        short = LockRecord(8, record.holds, record.offer, record.queue[:3])
        assert encoded.startswith(encode(short, ("c1", "c2"))[:40])  # one form, long or short
