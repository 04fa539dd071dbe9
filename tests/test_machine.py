"""The state machine as a function: pure, asking for what it has to know, and minting tokens by one rule.

What its commands do is told in `scenarios/`; that it holds under everything at once, in `test_machine_stateful`.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.core.commands import (
    Acquire,
    Command,
    Expire,
    ForceRelease,
    Forget,
    Granted,
    Leave,
    Need,
    Nothing,
    Refused,
    Release,
    Released,
    Renew,
    Step,
    TakeUp,
)
from fencegate.core.errors import SessionExpired, SessionNotFound
from fencegate.core.machine import live_holds, live_session, transition, wakes_at
from fencegate.core.model import (
    Claimant,
    Done,
    Ending,
    Floor,
    Hold,
    LockRecord,
    Offer,
    Record,
    Session,
    Waiter,
    done_entry,
    floor_entry,
    is_request,
    lock_entry,
    request_of,
)
from fencegate.core.ports import Interval
from fencegate.engine.codec import decode, encode

SECOND = 1_000_000
K, LOCK, FLOOR = "orders:7", lock_entry("orders:7"), floor_entry("orders:7")
A = Claimant("a", "a.secret", "A", 10 * SECOND)
B = Claimant("b", "b.secret", "B", 10 * SECOND)


def at(seconds: float, width: float = 0) -> Interval:
    return Interval(int(seconds * SECOND), int((seconds + width) * SECOND))


def acquire(who: Claimant, *, wait: bool = False, named: bool = False, reentrant: bool = False) -> Acquire:
    return Acquire(K, who, "r1", "p1", wait, named, reentrant)


def held_by(who: Claimant, token: int = 5, until: float = 10) -> LockRecord:
    return LockRecord(token, (Hold(who, token, 0, int(until * SECOND)),), touched_us=1)


def step_of(records: dict[str, Record | None], command: Command, now: Interval) -> Step:
    step = transition(records, command, now)
    assert isinstance(step, Step)
    return step


# --- what it has to know ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "command", "needed"),
    [
        ({}, Expire(K), [LOCK]),
        ({}, acquire(A), [LOCK]),
        ({LOCK: None}, acquire(A), [FLOOR]),
        ({LOCK: LockRecord()}, acquire(A), [FLOOR]),
        ({LOCK: None}, acquire(A, named=True), [done_entry(K, "a")]),
        ({LOCK: None, done_entry(K, "a"): None}, acquire(A, named=True), [FLOOR]),
        ({LOCK: held_by(B)}, acquire(A, named=True), [done_entry(K, "a")]),
        ({LOCK: None}, ForceRelease(K, "why"), [FLOOR]),
        ({LOCK: held_by(B)}, Release(K, "a.secret"), [done_entry(K, "a")]),
        ({LOCK: None}, Renew(K, "a.secret"), [done_entry(K, "a")]),
    ],
)
def test_it_asks_for_the_entries_that_decide(
    records: dict[str, Record | None], command: Command, needed: list[str]
) -> None:
    assert transition(records, command, at(1)) == Need(tuple(needed))


@pytest.mark.parametrize(
    "command",
    [
        acquire(A),
        TakeUp(K, "a"),
        Leave(K, "a", "p1"),
        Renew(K, "a.secret"),
        Release(K, "a.secret"),
        Expire(K),
        ForceRelease(K, "why"),
    ],
)
def test_a_lock_in_use_is_judged_by_its_record_alone(command: Command) -> None:
    assert isinstance(transition({LOCK: held_by(A)}, command, at(1)), Step)


def test_same_input_same_output_and_the_input_stays_as_it_was() -> None:
    queue = (Waiter(B, "r1", ("p1",)), Waiter(Claimant("c", "c.x", "C", SECOND), "r2", ("p2",)))
    records: dict[str, Record | None] = {LOCK: LockRecord(5, held_by(A).holds, None, queue), FLOOR: None}
    before = dict(records)
    commands: list[Command] = [Release(K, "a.secret"), Expire(K), acquire(A), acquire(B, wait=True)]
    for command, now in itertools.product(commands, [at(1), at(20)]):
        assert repr(transition(records, command, now)) == repr(transition(records, command, now))
        assert records == before


def test_what_changes_nothing_writes_nothing() -> None:
    record = LockRecord(5, held_by(A).holds, None, (Waiter(B, "r1", ("p1",)),), touched_us=7)
    for command in (
        Expire(K), acquire(B), acquire(B, wait=True), TakeUp(K, "b"), Leave(K, "b", "other"), Leave(K, "x", "p1"),
        acquire(A),
    ):  # fmt: skip
        step = step_of({LOCK: record}, command, at(1))
        assert (dict(step.writes), step.events, step.not_after_us) == ({}, (), None)


# --- tokens ----------------------------------------------------------------------------------------------------------


@given(
    last=st.integers(0, 2**53), floor=st.integers(0, 2**53), earliest=st.integers(1, 2**53), width=st.integers(0, 2**20)
)
def test_a_token_is_above_the_last_and_the_floor_and_not_below_the_clock(
    last: int, floor: int, earliest: int, width: int
) -> None:
    record = LockRecord(last) if last else None
    if last:
        floor = min(floor, last)  # a record was made above the floor of its time
    now = Interval(earliest, earliest + width)
    step = step_of({LOCK: record, FLOOR: Floor(floor) if floor else None}, acquire(A), now)
    assert isinstance(step.outcome, Granted)
    assert step.outcome.hold.token == max(last + 1, floor + 1, now.latest)
    written = step.writes[LOCK]
    assert isinstance(written, LockRecord)
    assert written.last_token == step.outcome.hold.token


def test_a_token_is_minted_by_the_take_up_and_not_by_the_offer() -> None:
    record = LockRecord(5, offer=Offer(Waiter(B, "r1", ("p1",)), 100 * SECOND))
    assert step_of({LOCK: record}, Expire(K), at(9)).writes == {}
    taken = step_of({LOCK: record}, TakeUp(K, "b"), at(9))
    assert isinstance(taken.outcome, Granted)
    assert (taken.outcome.hold.token, taken.outcome.hold.expires_us) == (9 * SECOND, 19 * SECOND)


def same_shard() -> tuple[str, str]:
    seen: dict[str, str] = {}
    for number in itertools.count():
        key = f"k{number}"
        if floor_entry(key) in seen:
            return seen[floor_entry(key)], key
        seen[floor_entry(key)] = key
    raise AssertionError


def test_two_records_of_one_shard_leave_the_higher_floor() -> None:
    one, two = same_shard()
    records: dict[str, Record | None] = {
        lock_entry(one): LockRecord(9, touched_us=1),
        lock_entry(two): LockRecord(5, touched_us=1),
        floor_entry(one): None,
    }
    for key in (one, two):
        records |= step_of(records, Forget(key), at(10_000)).writes
    assert records == {lock_entry(one): None, lock_entry(two): None, floor_entry(one): Floor(9)}
    step = step_of(records, Acquire(two, A, "r1", "p1"), Interval(1, 1))
    assert isinstance(step.outcome, Granted)
    assert step.outcome.hold.token == 10


# --- the past --------------------------------------------------------------------------------------------------------


def test_a_spent_lock_token_is_known_only_to_who_had_it() -> None:
    records: dict[str, Record | None] = {LOCK: held_by(A)}
    records |= step_of(records, Release(K, "a.secret", "A"), at(1)).writes
    done = records[done_entry(K, "a")]
    assert isinstance(done, Done)
    assert (done.ending, done.left, done.until_us) == (Ending.RELEASED, 0, 601 * SECOND)
    assert step_of(records, Release(K, "a.secret", "A"), at(2)).outcome == Released(0)
    for token, owner in (("a.guess", "A"), ("a.secret", "B"), ("a", None), ("a.", None)):
        for command in (Release(K, token, owner), Renew(K, token, owner)):
            outcome = step_of(records, command, at(2)).outcome
            assert isinstance(outcome, Refused)
            assert outcome.error.code == "NOT_LOCK_OWNER"


def test_the_request_leads_to_the_lock_token_and_back() -> None:
    assert request_of("a.secret") == "a"
    assert request_of("no dot") == "no dot"
    for made in ("a" * 24, "0123456789abcd-_", "no dot"):
        assert is_request(made)
    for foreign in ("", "a/b", "\0", "a\nb", "\ud800", "a" * 129):
        assert not is_request(foreign)
    assert done_entry("a/b", "r") != done_entry("b", "r")


def test_a_record_is_as_good_as_its_bytes() -> None:
    waiter = Waiter(Claimant("c", "c.x", "C \u00e9", 5, "print", {"why": [1, None, "\x00"]}), "r1", ("p1", "p2"), 3, 4)
    record = LockRecord(2**53 + 1, held_by(A).holds, Offer(waiter, 9), (waiter,), 7)
    for entry, value in (
        (LOCK, record),
        (done_entry(K, "a"), Done(Ending.FORCED, "a.x", "A", "f", 5, 1, 9, "why")),
        (FLOOR, Floor(2**53 + 1)),
    ):
        assert decode(entry, encode(value, ("c1",)))[0] == value


# --- for whoever only looks ------------------------------------------------------------------------------------------


def test_a_hold_that_ran_out_is_not_seen_though_nobody_noticed() -> None:
    record = held_by(A, until=10)
    assert live_holds(record, at(9.999999), {}) == [*record.holds]
    assert live_holds(record, at(10), {}) == []
    assert live_holds(record, at(9.5, 1), {}) == [*record.holds]


def test_time_alone_next_changes_something_when_a_lease_or_an_offer_ends() -> None:
    assert wakes_at(LockRecord(5)) is None
    assert wakes_at(held_by(A, until=10)) == 10 * SECOND
    assert wakes_at(LockRecord(5, offer=Offer(Waiter(B, "r1", ("p1",)), 7))) == 7


def test_a_free_lock_with_nobody_there_is_not_offered() -> None:
    kept = Waiter(B, "r1", (), keep_until_us=100 * SECOND)
    step = step_of({LOCK: LockRecord(5, queue=(kept,))}, Expire(K), at(1))
    assert step == Step(Nothing())


def test_a_session_that_ran_out_is_over_though_nobody_noticed() -> None:
    session = Session("A", 10 * SECOND, 0, 10 * SECOND)
    assert live_session("s", session, at(9.9)) == session
    assert live_session("s", session, at(9.9, 1)) == session  # it may still live
    with pytest.raises(SessionExpired):
        live_session("s", session, at(10))
    with pytest.raises(SessionNotFound):
        live_session("s", None, at(1))
