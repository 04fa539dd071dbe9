"""Where the store has no clock, a lease ends when it was watched unchanged for its length, by one clock alone."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from fencegate.clock import SYSTEM, SystemClock
from fencegate.core.errors import FencegateError, LockHeld
from fencegate.core.machine import shifted
from fencegate.core.model import (
    Claimant,
    Ending,
    Hold,
    LockRecord,
    Offer,
    Record,
    Revocation,
    RevokedLock,
    Session,
    Terms,
    Waiter,
)
from fencegate.core.ports import Capabilities, Change, Changes, Interval, Store
from fencegate.engine import Engine
from fencegate.engine.observed import Observed
from fencegate.testing.caller import QUICK, Caller
from fencegate.testing.committing import OpenStore, put, write
from fencegate.testing.faulty_store import FaultyStore
from fencegate.testing.store_suite import StoreSuite
from fencegate_lockservice.route_change import _watched
from fencegate_lockservice.stores.memory import MemoryStore

NEVER_US = 2**62
SECOND = 1_000_000


class Clockless(FaultyStore):
    """A store that does not tell the time, nor judge by it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.capabilities = Capabilities(clock=False, several_processes=False, durable=False)

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        await super().commit(changes, log, NEVER_US)

    def now(self) -> Interval | None:
        return None


class TestClocklessStore(StoreSuite):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        store = Clockless(MemoryStore())

        async def open_() -> Store:
            return store

        return open_


class OffClock(SystemClock):
    """A clock that is wrong by so many seconds."""

    def __init__(self, off_s: float) -> None:
        super().__init__(SYSTEM.now_us() - SYSTEM.monotonic_us() + int(off_s * SECOND))


@asynccontextmanager
async def replica(store: Store, name: str, off_s: float = 0, *, visiting: bool = False) -> AsyncIterator[Caller]:
    engine = Engine(store, OffClock(off_s), QUICK, replica=name, visiting=visiting)
    await engine.start()
    try:
        yield Caller(engine, name)
    finally:
        await engine.close()


@pytest.fixture
def store() -> Clockless:
    return Clockless(MemoryStore())


async def heard(store: Clockless, caller: Caller, entry: str) -> None:
    """Return when this replica has heard of the version that is there."""
    observed = caller.engine._lanes.observed
    assert observed is not None
    async with asyncio.timeout(30):
        while True:
            found = (await store.load([entry])).get(entry)
            if (
                found is not None
                and (sight := observed._seen.get(entry)) is not None
                and sight.version == found.version
            ):
                return
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(("first_off_s", "second_off_s"), [(0, 0), (8, -8), (-8, 8)])
async def test_a_lease_ends_on_another_replica_neither_early_nor_by_whose_clock_is_ahead(
    store: Clockless, first_off_s: float, second_off_s: float
) -> None:
    async with replica(store, "A", first_off_s) as a, replica(store, "B", second_off_s) as b:
        for round_ in range(2):
            key = f"k{round_}"
            before_us = SYSTEM.monotonic_us()
            hold = await a.acquire(key, ttl_s=1.5)
            next_ = await b.acquire(key, wait_s=20)
            waited_us = SYSTEM.monotonic_us() - before_us
            assert next_.token > hold.token
            assert waited_us >= 1_500_000
            assert waited_us < 15_000_000  # and not by the sixteen seconds that the clocks differ
            a, b = b, a


async def test_a_first_try_need_not_begin_the_wait_when_the_lease_was_heard_of(store: Clockless) -> None:
    async with replica(store, "B", off_s=-5) as b:
        async with replica(store, "A") as a:
            hold = await a.acquire("k", ttl_s=1.5)
            await heard(store, b, "lock/k")
        loads = store.loads
        with pytest.raises(LockHeld):
            await b.acquire("k")
        assert store.loads > loads
        await asyncio.sleep(1.7)
        assert (await b.acquire("k")).token > hold.token  # at once, not after another lease
        async with replica(store, "C") as late:
            with pytest.raises(LockHeld):
                await late.acquire("k")  # it has never seen it before: it counts from here


async def test_lines_about_what_is_neither_lock_nor_session_do_not_break_the_change_stream(
    store: Clockless, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica(store, "A") as a, replica(store, "B") as b:
        await a.acquire("k0")
        await heard(store, b, "lock/k0")
        await write(store, put("beside"))
        await a.acquire("k1")
        await heard(store, b, "lock/k1")
    assert "can't be followed" not in caplog.text


class Followed(Clockless):
    """Counts those who follow it."""

    followers = 0

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        self.followers += 1
        try:
            async with contextlib.aclosing(super().changes(since)) as told:
                async for changes in told:
                    yield changes
        finally:
            self.followers -= 1


async def asks_for_a_lock(visitor: Caller, other: Caller, hold: Hold) -> None:
    await visitor.acquire("another")


async def renews(visitor: Caller, other: Caller, hold: Hold) -> None:
    await Caller(visitor.engine, other.owner_id).renew("k", hold)


async def looks(visitor: Caller, other: Caller, hold: Hold) -> None:
    assert (await visitor.engine.look("k")).holds


async def lists(visitor: Caller, other: Caller, hold: Hold) -> None:
    assert await visitor.engine.scan("", "", 10)


@pytest.mark.parametrize("first", [asks_for_a_lock, renews, looks, lists])
async def test_a_visitor_follows_the_change_log_from_the_first_that_is_asked_of_it(
    first: Callable[[Caller, Caller, Hold], Awaitable[None]],
) -> None:
    """The engine of a client's renewal thread is seldom asked anything, and following costs more than a lock does."""
    store = Followed(MemoryStore())
    async with replica(store, "A", off_s=-5) as a, replica(store, "V", off_s=5, visiting=True) as visitor:
        hold = await a.acquire("k", ttl_s=30)
        await heard(store, a, "lock/k")
        assert store.followers == 1  # which is A
        await first(visitor, a, hold)
        async with asyncio.timeout(30):
            while store.followers < 2:
                await asyncio.sleep(0.005)
            while True:  # what it hears of from here on counts from when it was told
                hold = await a.acquire("k2", ttl_s=1.5)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await heard(store, visitor, "lock/k2")
                        break
                await a.release("k2", hold)
        await asyncio.sleep(1.7)
        assert (await visitor.acquire("k2")).token > hold.token
    assert store.followers == 0


async def test_a_visitor_whom_nobody_asked_anything_leaves_nothing_behind() -> None:
    store = Followed(MemoryStore())
    async with replica(store, "V", visiting=True) as visitor:
        pass
    with contextlib.suppress(FencegateError):
        await visitor.acquire("k")
    await asyncio.sleep(0.05)
    assert store.followers == 0


async def test_a_lease_does_not_end_early_for_a_visitor_who_comes_late(store: Clockless) -> None:
    async with replica(store, "V", off_s=8, visiting=True) as visitor:
        async with replica(store, "A", off_s=-8) as a:
            hold = await a.acquire("k", ttl_s=1.5)
            await asyncio.sleep(1)
            await a.renew("k", hold)
        begun_us = SYSTEM.monotonic_us()  # not before: the visitor has seen nothing of it
        assert (await visitor.acquire("k", wait_s=20)).token > hold.token
        assert 1_500_000 <= SYSTEM.monotonic_us() - begun_us < 15_000_000


async def test_what_is_renewed_does_not_end_however_often_others_try(store: Clockless) -> None:
    async with replica(store, "A", 4) as a, replica(store, "B", -4) as b:
        hold = await a.acquire("k", ttl_s=3)
        for _ in range(8):
            await asyncio.sleep(0.5)
            await a.renew("k", hold)
            with pytest.raises(LockHeld):
                await b.acquire("k")
        assert (await b.acquire("k", wait_s=25)).token > hold.token


async def test_tries_that_fail_to_commit_do_not_begin_the_wait_anew(store: Clockless) -> None:
    """Whoever noted a version as seen before its commit landed would push the end of the lease away, for ever."""
    async with replica(store, "A") as a, replica(store, "B") as b:
        hold = await a.acquire("k", ttl_s=1.5)
        await heard(store, b, "lock/k")
        begun_us = SYSTEM.monotonic_us()

        async def storm(caller: Caller) -> Hold:
            while True:
                try:
                    return await caller.acquire("k")
                except FencegateError:
                    await asyncio.sleep(0.01)
                assert SYSTEM.monotonic_us() - begun_us < 20_000_000

        storms = [asyncio.ensure_future(storm(caller)) for caller in (b, Caller(b.engine, "C"))]
        done, others = await asyncio.wait(storms, return_when=asyncio.FIRST_COMPLETED)
        assert done.pop().result().token > hold.token
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class SlowNews(Clockless):
    """Calls and news take a while, as over a network."""

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        await asyncio.sleep(0.02)
        await super().commit(changes, log, not_after_us)

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        async for changes in super().changes(since):
            await asyncio.sleep(0.02)
            yield changes


async def test_the_end_of_a_lease_does_not_move_away_while_others_come_and_go() -> None:
    """Whoever queues up writes to the record: were all its times moved each time, they would add up."""
    slow = SlowNews(MemoryStore())
    async with replica(slow, "A") as a, replica(slow, "B") as b, replica(slow, "C") as c:
        hold = await a.acquire("k", ttl_s=3)
        over = asyncio.Event()

        async def come_and_go(caller: Caller) -> None:
            while not over.is_set():
                with contextlib.suppress(FencegateError):
                    await caller.acquire("k", wait_s=0.05)
                    return

        crowd = [asyncio.ensure_future(come_and_go(caller)) for caller in (b, c, a)]
        ends: dict[str, list[int]] = {"A": [], "B": [], "C": []}
        while not any(task.done() for task in crowd):
            for caller in (a, b, c):
                holds = (await caller.engine.look("k")).holds
                if holds and holds[0].token == hold.token:
                    ends[caller.owner_id].append(holds[0].expires_us)
            await asyncio.sleep(0.02)
        over.set()
        await asyncio.gather(*crowd, return_exceptions=True)
        for seen in ends.values():
            assert max(seen) == seen[0]


async def test_a_session_ends_by_being_watched_and_frees_its_locks(store: Clockless) -> None:
    async with replica(store, "B", off_s=6) as b:
        async with replica(store, "A", off_s=-6) as a:
            session = await a.open_session(ttl_s=2)
            hold = await a.acquire("k", terms=Terms(session=session))
            for _ in range(4):
                await asyncio.sleep(0.7)
                await a.renew_session(session)
                with pytest.raises(LockHeld):
                    await b.acquire("k")
        assert (await b.acquire("k", wait_s=25)).token > hold.token


async def test_what_ran_out_while_nobody_watched_does_not_keep_routes_from_being_changed(store: Clockless) -> None:
    async with replica(store, "A") as a:
        await a.acquire("orders:1", ttl_s=1.5)
    looking = Engine(store, SYSTEM, QUICK)
    tasks = asyncio.all_tasks()
    found = await _watched(looking, "here", {"orders:": "elsewhere"})
    assert asyncio.all_tasks() == tasks  # it was never started, and nobody will close it
    assert found.held == []
    assert found.highest > 0


def test_what_was_seen_first_counts_and_a_new_version_begins_anew() -> None:
    observed = Observed(SYSTEM)
    first = observed.saw("k", "v1")
    assert observed.saw("k", "v1", first + 5) == first
    assert observed.saw("k", "v1", first - 5) == first - 5
    second = observed.saw("k", "v2")
    assert second > first
    record = LockRecord(7, (Hold(Claimant("r", "r.x", "A", 10), 7, 100, 110),), touched_us=100)
    moved = observed.here("k", "v2", record, 100)
    assert isinstance(moved, LockRecord)
    assert moved.holds[0].expires_us == 110 + second - 100
    assert observed.here("k", "v2", record, 0) is record


WHO = Claimant("r", "r.x", "A", 5 * SECOND, special=Terms(lock_delay_us=7, max_hold_us=8, session="s"))
EVERYTHING: list[Record] = [
    LockRecord(
        11,
        (Hold(WHO, 11, 101, 102, 3, 1), Hold(WHO, 10, 103, 104)),
        Offer(Waiter(WHO, "A", ("p",), 105, 106), 107),
        (Waiter(WHO, "A", ("p",)), Waiter(WHO, "B", (), 108, 109)),
        110,
        111,
        True,
        Revocation(112, "why"),
    ),
    LockRecord(11),
    Session("A", 5 * SECOND, 101, 102, 3, Ending.EXPIRED, 103, (RevokedLock("k", 11, Revocation(104, "why")),)),
    Session("A", 5 * SECOND, 101, 102),
]


def numbers(value: object, name: str = "") -> list[tuple[str, object]]:
    """Every leaf of a record, by name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [leaf for field in dataclasses.fields(value) for leaf in numbers(getattr(value, field.name), field.name)]
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in numbers(item, name)]
    return [(name, value)]


@pytest.mark.parametrize("record", EVERYTHING)
def test_moving_a_record_moves_every_time_in_it_and_nothing_else(record: Record) -> None:
    times = {"granted_us", "expires_us", "keep_until_us", "suspect_us", "until_us", "touched_us", "closed_until_us"}
    times |= {"at_us", "opened_us", "ended_us"}
    lengths = {"ttl_us", "lock_delay_us", "max_hold_us"}
    for (name, before), (_, after) in zip(numbers(record), numbers(shifted(record, 1000)), strict=True):
        assert not name.endswith("_us") or name in times | lengths, f"is {name} a time, or a length?"
        moves = name in times and before
        assert after == (before + 1000 if moves and isinstance(before, int) else before), name
    assert shifted(record, 0) is record


async def test_a_holder_who_is_told_again_by_a_replica_that_saw_it_late_holds_it_alone(store: Clockless) -> None:
    """The late one tells of more time than those who saw it early would give; so they have to hear of it."""
    async with replica(store, "A") as a, replica(store, "B") as b:
        hold = await a.acquire("k", ttl_s=2, name="once")
        await heard(store, a, "lock/k")
        await asyncio.sleep(1.2)
        observed = b.engine._lanes.observed
        assert observed is not None
        observed._seen.clear()  # as if no news had come: it counts from what it loads now
        b.engine._lanes.known.forget(["lock/k"])
        asked_us = SYSTEM.monotonic_us()
        again = await Caller(b.engine, "A").acquire("k", ttl_s=2, name="once")
        until_us = asked_us + again.expires_us - b.engine.now().latest
        assert again.token == hold.token
        await a.acquire("k", wait_s=20, name="the next")
        assert SYSTEM.monotonic_us() >= until_us
