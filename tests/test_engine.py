"""The engine when things go wrong: what is lost, cut, late or stopped leaves neither a lock nor a place behind."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fencegate.clock import SYSTEM, ManualClock
from fencegate.core.commands import Expire, ForceRelease, Release
from fencegate.core.errors import (
    FencegateError,
    LockHeld,
    OutcomeUnknown,
    ShuttingDown,
    StoreUnavailable,
    TooManyWaiters,
)
from fencegate.core.model import (
    Claimant,
    Ending,
    Floor,
    Hold,
    Limits,
    LockRecord,
    Offer,
    Revocation,
    Session,
    Terms,
    Waiter,
    floor_entry,
    lock_entry,
    member_entry,
    session_entry,
)
from fencegate.core.ports import Ambiguous, Change, Changes, Conflict, Entry, Interval, Store, Unavailable
from fencegate.engine import Engine, resolving
from fencegate.engine import known as known_module
from fencegate.engine import lanes as lanes_module
from fencegate.engine import tending as tending_module
from fencegate.engine.codec import decode, encode, encode_line
from fencegate.engine.timer import Alarms
from fencegate.testing.caller import QUICK, Caller, engines, until
from fencegate.testing.faulty_store import CALM, GONE, Faults, FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore

PATIENT = Limits()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def faulty(store: MemoryStore) -> FaultyStore:
    return FaultyStore(store)


async def free(engine: Engine, lock_key: str = "k") -> None:
    """Return as soon as nobody holds the lock or waits for it."""
    async with asyncio.timeout(30):
        while True:
            record = (await engine.look(lock_key)).record
            if record is None or not (record.holds or record.offer or record.queue):
                return
            await asyncio.sleep(0.005)


# --- unknown outcomes ------------------------------------------------------------------------------------------------


async def test_an_acquire_of_unknown_outcome_is_said_to_be_unknown_and_leaves_no_lock_behind(
    store: MemoryStore, faulty: FaultyStore
) -> None:
    async with engines(store, faulty) as (one, two):
        faulty.faults = Faults(cut=1)
        with pytest.raises(OutcomeUnknown):
            await Caller(two, "A").acquire("k")
        assert (await one.look("k")).record is not None  # it had landed
        faulty.faults = CALM
        await free(one)


class Late(FaultyStore):
    """Commits at once; while it `is_late` it says so after an hour, when every lease is over."""

    is_late = False

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemoryStore(clock))
        self._clock = clock

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        await super().commit(changes, log, not_after_us)
        if self.is_late:
            self._clock.advance(3600)


async def _acquire(caller: Caller) -> None:
    await caller.acquire("k")


async def _acquire_all(caller: Caller) -> None:
    await caller.acquire_all("k", "other")


async def _renew(caller: Caller) -> None:
    await caller.renew("mine", (await caller.engine.look("mine")).holds[0])


async def _open_session(caller: Caller) -> None:
    await caller.open_session()


@pytest.mark.parametrize("ask", [_acquire, _acquire_all, _renew, _open_session])
async def test_nobody_is_told_to_hold_what_ran_out_before_its_commit_was_answered(
    ask: Callable[[Caller], Awaitable[None]],
) -> None:
    store = Late(clock := ManualClock())
    caller = Caller(Engine(store, clock), "A")
    await caller.acquire("mine")
    store.is_late = True
    with pytest.raises(OutcomeUnknown):
        await ask(caller)
    store.is_late = False
    await caller.engine.close()


async def test_nobody_who_waited_is_told_to_hold_what_ran_out_before_its_commit_was_answered() -> None:
    store = Late(clock := ManualClock())
    engine = Engine(store, clock)
    holder, waiter = Caller(engine, "A"), Caller(engine, "B")
    held = await holder.acquire("k")
    waiting = asyncio.ensure_future(waiter.acquire("k", wait_s=10))
    await waiter.until_waiting("k", "B")
    store.is_late = True
    await holder.release("k", held)
    with pytest.raises(OutcomeUnknown):
        await waiting
    store.is_late = False
    await engine.close()


async def test_a_wait_of_unknown_outcome_leaves_no_place_behind(store: MemoryStore, faulty: FaultyStore) -> None:
    async with engines(store, faulty) as (one, two):
        holder = Caller(one, "A")
        hold = await holder.acquire("k")
        await two.look("k")
        faulty.faults = Faults(cut=1)
        with pytest.raises(OutcomeUnknown):
            await Caller(two, "B").acquire("k", wait_s=20)
        assert await holder.waiters("k") == ["B"]
        faulty.faults = CALM
        await holder.until_waiting("k")
        await holder.release("k", hold)


async def test_an_unknown_acquire_with_a_name_is_found_again_by_a_repeat(
    store: MemoryStore, faulty: FaultyStore
) -> None:
    async with engines(store, faulty) as (one, two):
        faulty.faults = Faults(cut=1)
        with pytest.raises(OutcomeUnknown):
            await Caller(two, "A").acquire("k", name="r1")
        landed = (await one.look("k")).record
        assert landed is not None
        assert [await Caller(one, "A").acquire("k", name="r1")] == list(landed.holds)
        faulty.faults = CALM
        assert await Caller(two, "A").acquire("k", name="r1") == landed.holds[0]


async def test_an_acquire_that_never_reached_the_store_is_refused_and_granted_nothing(
    store: MemoryStore, faulty: FaultyStore
) -> None:
    async with engines(store, faulty) as (one, two):
        faulty.faults = GONE
        with pytest.raises(StoreUnavailable):
            await Caller(two, "A").acquire("k")
        assert (await one.look("k")).record is None


@pytest.mark.parametrize(
    "faults", [Faults(unheard=1), Faults(lost=0.6), Faults(late=0.6), Faults(conflict=0.5)], ids=lambda it: str(it)
)
async def test_lost_answers_are_found_out_and_done_once(
    store: MemoryStore, faulty: FaultyStore, faults: Faults
) -> None:
    async with engines(faulty) as (engine,):
        faulty.faults = faults
        caller = Caller(engine, "A")
        tokens = []
        for _ in range(5):
            hold = await caller.acquire("k", reentrant=True)
            inner = await caller.acquire("k", reentrant=True)
            assert inner.token == hold.token
            assert (await caller.renew("k", hold)).token == hold.token
            assert await caller.release("k", inner) == 1
            assert await caller.release("k", hold) == 0
            tokens.append(hold.token)
        assert tokens == sorted(set(tokens))
        faulty.faults = CALM
    await faulty.close()


async def test_a_waiter_whose_take_up_was_cut_off_hears_of_its_lock_when_the_store_is_back(
    store: MemoryStore, faulty: FaultyStore
) -> None:
    async with engines(store, faulty) as (one, two):
        hold = await Caller(one, "A").acquire("k")
        waiting = asyncio.ensure_future(Caller(two, "B").acquire("k", wait_s=60, ttl_s=60))
        await Caller(one, "A").until_waiting("k", "B")
        faulty.faults = Faults(cut=1)
        await Caller(one, "A").release("k", hold)
        async with asyncio.timeout(30):
            while True:
                record = (await one.look("k")).record
                assert record is not None
                if [other.who.owner_id for other in record.holds] == ["B"]:
                    break
                await asyncio.sleep(0.01)
        assert not waiting.done()
        faulty.faults = CALM
        async with asyncio.timeout(30):
            assert (await waiting).token == record.last_token


async def test_a_waiter_that_slept_through_its_offer_gets_the_lock_when_the_store_is_back(
    store: MemoryStore, faulty: FaultyStore
) -> None:
    async with engines(store, faulty) as (one, two):
        hold = await Caller(one, "A").acquire("k")
        waits = []
        for name in ("B", "C"):
            waits.append(asyncio.ensure_future(Caller(two, name).acquire("k", wait_s=20)))
            await Caller(one, "A").until_waiting("k", "B", *(["C"] if name == "C" else []))
        faulty.faults = Faults(unavailable=1)
        await Caller(one, "A").release("k", hold)
        await asyncio.sleep(2 * QUICK.offer_us / 1_000_000)
        faulty.faults = CALM
        async with asyncio.timeout(30):
            got = await waits[0]
            await Caller(two, "B").release("k", got)
            assert (await waits[1]).token > got.token


async def test_a_place_that_nobody_stands_at_costs_the_others_of_its_replica_one_offer(store: MemoryStore) -> None:
    async with engines(store, limits=replace(QUICK, suspect_us=600_000_000)) as (engine,):
        caller = Caller(engine, "A")
        hold = await caller.acquire("k", ttl_s=600)
        ghost = Caller(engine, "ghost").asks("k", wait=True, ttl_s=600)
        await engine.run(ghost)  # as after a leave that could not be committed
        waiting = asyncio.ensure_future(Caller(engine, "B").acquire("k", wait_s=60))
        await caller.until_waiting("k", "ghost", "B")
        await caller.release("k", hold)
        async with asyncio.timeout(30):
            await waiting


async def test_a_hundred_dead_waiters_do_not_delay_the_next_live_one_by_more_than_a_moment(
    store: MemoryStore, faulty: FaultyStore
) -> None:
    async with engines(store, faulty) as (one, two):
        holder = Caller(one, "A")
        hold = await holder.acquire("k")
        names = [f"dead-{number}" for number in range(100)]
        dead = []
        for number, name in enumerate(names):  # every other one is of a replica that will be gone
            caller = Caller(two if number % 2 else one, name)
            dead.append(asyncio.ensure_future(caller.acquire("k", wait_s=60, name=name)))
        await until(lambda: all_wait(holder, 100))
        waiting = asyncio.ensure_future(Caller(one, "B").acquire("k", wait_s=60))
        await until(lambda: all_wait(holder, 101))
        for left in dead[::2]:  # and the others hung up; their places are kept for a while
            left.cancel()
        await asyncio.gather(*dead[::2], return_exceptions=True)
        await until(lambda: none_of(one, "k", names[::2]))
        faulty.faults = GONE
        await holder.release("k", hold)
        async with asyncio.timeout(50 * QUICK.offer_us / 1_000_000 / 2):  # half of what an offer to each would take
            assert (await waiting).token > hold.token
        for left in dead[1::2]:
            left.cancel()
        await asyncio.gather(*dead, return_exceptions=True)


async def all_wait(caller: Caller, count: int) -> bool:
    return len(await caller.waiters("k")) == count


async def none_of(engine: Engine, lock_key: str, owners: Sequence[str]) -> bool:
    """Whether nobody of these stands at their place any more."""
    record = (await engine.look(lock_key)).record
    return record is not None and not any(w.attempts for w in record.queue if w.who.owner_id in owners)


class BreaksOnce(FaultyStore):
    """Its change stream ends when it has something to tell, and what that was is lost; the next one goes on."""

    broken = False

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        async with contextlib.aclosing(super().changes(since)) as stream:
            async for changes in stream:
                if changes.entries and not self.broken:
                    self.broken = True
                    raise Unavailable("the change stream broke")
                yield changes


async def test_waiters_are_woken_when_the_change_stream_had_broken(store: MemoryStore) -> None:
    deaf_once = BreaksOnce(store)
    async with engines(store, deaf_once, limits=Limits(offer_us=60_000_000)) as (one, two):
        hold = await Caller(one, "A").acquire("k")
        deaf_once.broken = True  # not yet
        waiting = asyncio.ensure_future(Caller(two, "B").acquire("k", wait_s=60))
        await Caller(one, "A").until_waiting("k", "B")
        deaf_once.broken = False
        await Caller(one, "A").release("k", hold)
        async with asyncio.timeout(5):  # its wait alone would look again in the middle of its minute
            await waiting
        assert deaf_once.broken


class Deaf(FaultyStore):
    """Hears of nothing that others do."""

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        del since
        yield Changes(0)
        await asyncio.Event().wait()


async def test_who_is_offered_the_lock_when_its_wait_ends_gets_it_and_not_the_next(store: MemoryStore) -> None:
    """On a slow line a poll may be over before it hears of its offer. If the lock went on to the next then, whose poll
    is over too when that is heard of, it might go round for ever."""
    async with engines(store, Deaf(store), limits=Limits(offer_us=60_000_000)) as (one, deaf):
        holder = Caller(one, "A")
        hold = await holder.acquire("k", ttl_s=60)
        first = asyncio.ensure_future(Caller(deaf, "B").acquire("k", wait_s=3))
        await holder.until_waiting("k", "B")
        second = asyncio.ensure_future(Caller(one, "C").acquire("k", wait_s=60))
        await holder.until_waiting("k", "B", "C")
        await holder.release("k", hold)
        assert (await first).who.owner_id == "B"
        await Caller(deaf, "B").release("k", first.result())
        await second


class ClocklessAfterCommit(FaultyStore):
    """Its clock is out of reach from the moment that a commit landed."""

    clockless = False

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        await super().commit(changes, log, not_after_us)
        self.clockless = True

    def now(self) -> Interval | None:
        return None if self.clockless else super().now()


async def test_a_grant_whose_time_cannot_be_told_is_unknown_and_the_next_ones_are_served(store: MemoryStore) -> None:
    blinking = ClocklessAfterCommit(store)
    async with engines(blinking) as (engine,), asyncio.timeout(30):
        with pytest.raises(OutcomeUnknown):
            await Caller(engine, "A").acquire("k", name="r1")
        with pytest.raises(StoreUnavailable):
            await Caller(engine, "B").acquire("k")
        landed = (await store.load([lock_entry("k")]))[lock_entry("k")]
        assert b"r1" in landed.value


async def test_what_goes_wrong_after_a_commit_is_heard_and_the_next_ones_are_served(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engines(store) as (engine,), asyncio.timeout(30):
        notice = engine._lanes._noticed
        with monkeypatch.context() as patch:
            patch.setattr(engine._lanes, "_noticed", lambda *_: 1 / 0)
            await Caller(engine, "A").acquire("k", name="r1")
            with pytest.raises(LockHeld):
                await Caller(engine, "B").acquire("k")
        assert engine._lanes._noticed == notice
        await Caller(engine, "A").acquire("k", name="r1")


async def test_thousands_who_ask_for_one_lock_at_once_are_all_answered(store: MemoryStore) -> None:
    async with engines(store, limits=PATIENT) as (engine,), asyncio.timeout(120):
        asked = [Caller(engine, f"owner-{number}").acquire("k", ttl_s=600) for number in range(3000)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(result, LockHeld) for result in results) == 2999
        hold = next(result for result in results if isinstance(result, Hold))
        for _ in range(3000):
            hold = await Caller(engine, hold.who.owner_id).renew("k", hold)


# --- lost records ----------------------------------------------------------------------------------------------------


async def lose(store: MemoryStore, lock_key: str = "k") -> None:
    """Take the record away, as a flush or a failover with loss would."""
    entry = lock_entry(lock_key)
    version = (await store.load([entry]))[entry].version
    line = (entry, encode_line("elsewhere", None))
    await store.commit([Change(entry, version, "lost")], [line], SYSTEM.now_us() + 60_000_000)


async def test_waiters_whose_record_was_lost_ask_again(store: MemoryStore) -> None:
    async with engines(store, limits=PATIENT) as (engine,):
        first = await Caller(engine, "A").acquire("k")
        waits = [asyncio.ensure_future(Caller(engine, name).acquire("k", wait_s=20)) for name in ("B", "C")]
        await Caller(engine, "A").until_waiting("k", "B", "C")
        await lose(store)
        async with asyncio.timeout(30):
            got = await waits[0]
            assert got.token > first.token
            await Caller(engine, "B").release("k", got)
            assert (await waits[1]).token > got.token


async def test_a_waiter_that_left_while_others_asked_again_is_not_queued_again(
    store: MemoryStore, faulty: FaultyStore
) -> None:
    async with engines(faulty, limits=PATIENT) as (engine,):
        await Caller(engine, "A").acquire("k")
        waits = [asyncio.ensure_future(Caller(engine, name).acquire("k", wait_s=20)) for name in ("B", "C")]
        await Caller(engine, "A").until_waiting("k", "B", "C")
        faulty.faults = Faults(max_delay_s=0.1)
        await lose(store)
        got = await waits[0]  # it was asked for again; and now the next one is
        waits[1].cancel()
        await asyncio.gather(waits[1], return_exceptions=True)
        faulty.faults = CALM
        await Caller(engine, "A").until_waiting("k")
        await asyncio.sleep(0.2)
        assert await Caller(engine, "A").waiters("k") == []
        await Caller(engine, "B").release("k", got)


async def test_a_record_that_cannot_be_read_is_an_error_for_everybody_who_asks_and_hangs_nobody(
    store: MemoryStore, faulty: FaultyStore
) -> None:
    await store.commit([Change(lock_entry("k"), None, "v", b"junk")], [], SYSTEM.now_us() + 60_000_000)
    faulty.faults = Faults(max_delay_s=0.05)
    async with engines(faulty) as (engine,), asyncio.timeout(30):
        asked = []
        for number in range(4):
            asked.append(asyncio.ensure_future(Caller(engine, f"owner-{number}").acquire("k", wait_s=number % 2)))
            await asyncio.sleep(0.005)  # while the load for the first one is under way
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(result, FencegateError) for result in results), results
        assert await Caller(engine, "A").acquire("another")


# --- stopping --------------------------------------------------------------------------------------------------------


async def test_stopping_sends_waiters_away_at_once_and_keeps_only_named_places(store: MemoryStore) -> None:
    async with engines(store, store, limits=PATIENT) as (one, two):
        holder = Caller(one, "A")
        await holder.acquire("k")
        unnamed = asyncio.ensure_future(Caller(two, "B").acquire("k", wait_s=20))
        await holder.until_waiting("k", "B")
        named = asyncio.ensure_future(Caller(two, "C").acquire("k", wait_s=20, name="c1"))
        await holder.until_waiting("k", "B", "C")
        async with asyncio.timeout(30):
            await two.close()
            for waiting in (unnamed, named):
                with pytest.raises(ShuttingDown):
                    await waiting
        assert await holder.waiters("k") == ["C"]
        with pytest.raises(ShuttingDown):
            await Caller(two, "D").acquire("k", wait_s=1)


class StuckStore(FaultyStore):
    """Takes commits and never answers."""

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        await asyncio.Event().wait()


async def test_stopping_does_not_wait_for_a_store_that_never_answers(store: MemoryStore) -> None:
    async with asyncio.timeout(60):
        async with engines(StuckStore(store)) as (engine,):
            asking = asyncio.ensure_future(Caller(engine, "A").acquire("k"))
            await asyncio.sleep(0.01)
            asking.cancel()


async def test_force_release_hands_over_to_the_waiter(store: MemoryStore) -> None:
    async with engines(store, store, limits=PATIENT) as (one, two):
        hold = await Caller(one, "A").acquire("k")
        waiting = asyncio.ensure_future(Caller(two, "B").acquire("k", wait_s=20))
        await Caller(one, "A").until_waiting("k", "B")
        await one.run(ForceRelease("k", "stuck"))
        async with asyncio.timeout(30):
            assert (await waiting).token > hold.token


# --- bounded memory --------------------------------------------------------------------------------------------------


async def test_idle_records_are_forgotten_and_tokens_go_on_above_them(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tending_module, "SWEEP_EVERY_S", 0.02)
    async with engines(store, limits=Limits(idle_us=50_000)) as (engine,):
        caller = Caller(engine, "A")
        kept = await caller.acquire("held", ttl_s=600)
        hold = await caller.acquire("k")
        await caller.release("k", hold)
        async with asyncio.timeout(30):
            while lock_entry("k") in await store.load([lock_entry("k")]):
                await asyncio.sleep(0.01)
        entry = floor_entry("k")
        floor = decode(entry, (await store.load([entry]))[entry].value).record
        assert floor == Floor(hold.token)
        assert (await caller.acquire("k")).token > hold.token
        assert (await caller.renew("held", kept)).token == kept.token


async def test_what_cannot_be_read_keeps_nothing_else_from_being_cleaned_up(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tending_module, "SWEEP_EVERY_S", 0.02)
    monkeypatch.setattr(tending_module, "PAGE", 2)
    for entry in (lock_entry("b"), lock_entry("c"), lock_entry("d"), member_entry("gone", "r", "b")):
        await store.commit([Change(entry, None, "v", b"junk")], [], SYSTEM.now_us() + 60_000_000)
    ended = Session("A", 1_000_000, 1, 1, ended=Ending.EXPIRED, ended_us=1)
    async with engines(store, limits=Limits(idle_us=50_000, retention_us=1)) as (engine,):
        caller = Caller(engine, "A")
        for lock_key in ("a", "e"):
            await caller.release(lock_key, await caller.acquire(lock_key))
        for session in ("gone", "unused"):
            change = Change(session_entry(session), None, "v", encode(ended))
            await store.commit([change], [], SYSTEM.now_us() + 60_000_000)
        async with asyncio.timeout(10):
            while await store.load([lock_entry("a"), lock_entry("e"), session_entry("unused")]):
                await asyncio.sleep(0.01)


async def test_many_idle_records_are_forgotten_side_by_side_and_no_two_raise_one_floor_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Crowded(FaultyStore):
        under_way = 0
        most = 0
        widest = 0
        conflicts = 0

        async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
            self.widest = max(self.widest, limit)
            return await super().scan(prefix, after, limit)

        async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                await asyncio.sleep(0)
                await super().commit(changes, log, not_after_us)
            except Conflict:
                self.conflicts += 1
                raise
            finally:
                self.under_way -= 1

    store = Crowded(MemoryStore())
    async with engines(store) as (engine,):
        one = Caller(engine, "A")
        for number in range(200):
            await one.release(f"k{number}", await one.acquire(f"k{number}"))
    monkeypatch.setattr(tending_module, "SWEEP_EVERY_S", 0.02)
    store.most = 0
    async with engines(store, limits=Limits(idle_us=1_000)) as (engine,):
        async with asyncio.timeout(30):
            while await engine.scan("", "", 1):
                await asyncio.sleep(0.01)
    assert store.most > 8
    assert store.widest <= tending_module.PAGE  # however many there are, no more of them are read at once
    assert store.conflicts <= 64  # a floor that was never seen is guessed to be absent, once


async def test_a_replica_that_knows_many_locks_forgets_some_but_never_its_waiters(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_module, "MAX_KNOWN", 20)
    async with engines(store, store, limits=PATIENT) as (one, two):
        hold = await Caller(one, "A").acquire("k")
        waiting = asyncio.ensure_future(Caller(two, "B").acquire("k", wait_s=20))
        await Caller(one, "A").until_waiting("k", "B")
        for number in range(200):
            other = await Caller(two, "C").acquire(f"k{number}")
            await Caller(two, "C").release(f"k{number}", other)
        assert len(two._lanes) == 1
        assert len(two._lanes.known) <= 20
        await Caller(one, "A").release("k", hold)
        async with asyncio.timeout(30):
            await waiting


async def test_alarms_ring_once_in_order_and_keep_one_place_for_a_lock() -> None:
    rung: list[str] = []
    alarms = Alarms(SYSTEM.now_us, rung.append)
    now_us = SYSTEM.now_us()
    for _ in range(1000):
        alarms.set("often", now_us + 40_000)
    alarms.set("second", now_us + 30_000)
    alarms.set("first", now_us + 60_000)
    alarms.set("first", now_us + 10_000)
    alarms.set("past", now_us - 1_000_000)
    assert len(alarms._heap) <= 5
    async with asyncio.timeout(30):
        while len(rung) < 4:
            await asyncio.sleep(0.01)
    assert rung == ["past", "first", "second", "often"]
    alarms.set("never", SYSTEM.now_us() + 10_000)
    alarms.close()
    alarms.set("nor this", SYSTEM.now_us() + 10_000)  # by a commit that was under way
    await asyncio.sleep(0.03)
    assert rung == ["past", "first", "second", "often"]


async def test_expire_of_a_lock_that_never_was_writes_nothing(faulty: FaultyStore) -> None:
    async with engines(faulty) as (engine,):
        await engine.run(Expire("nothing"))
        assert faulty.commits == 0


# --- all faults at once ----------------------------------------------------------------------------------------------

STORM = Faults(
    unavailable=0.03, lost=0.03, unheard=0.05, late=0.03, conflict=0.05, broken_stream=0.05, max_delay_s=0.004
)


class Crowd:
    """Callers who take one lock in turn while everything fails, and what they saw."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.inside: dict[str, int] = {}
        self.tokens: list[int] = []

    async def work(self, caller: Caller, until_us: int) -> None:
        while SYSTEM.monotonic_us() < until_us:
            await self.turn(caller)

    async def turn(self, caller: Caller) -> None:
        command = caller.asks("k", ttl_s=1, wait=True)
        try:
            hold = await caller.engine.acquire(command, 300_000)
        except LockHeld:
            assert command.who.request not in await self.holders(), "told that it has not what it has"
            return
        except (StoreUnavailable, OutcomeUnknown):
            return
        now_us = SYSTEM.now_us()
        if hold.expires_us > now_us:
            self.inside = {owner: until for owner, until in self.inside.items() if until > now_us}
            assert not self.inside, "two at once"
            there = command.who.request in await self.holders()
            assert there or hold.expires_us <= SYSTEM.now_us(), "told that it has what it has not"
            self.inside[caller.owner_id] = hold.expires_us
        self.tokens.append(hold.token)
        await asyncio.sleep(0.002)
        self.inside.pop(caller.owner_id, None)
        with contextlib.suppress(FencegateError):
            await caller.release("k", hold)

    async def holders(self) -> list[str]:
        entry = lock_entry("k")
        found = (await self.store.load([entry])).get(entry)
        record = decode(entry, found.value)[0] if found is not None else None
        now_us = SYSTEM.now_us()
        return [hold.who.request for hold in getattr(record, "holds", ()) if hold.expires_us > now_us]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_in_a_storm_of_faults_nobody_is_told_wrong_and_after_it_all_is_well(
    store: MemoryStore, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "fencegate")
    stores = [FaultyStore(store, seed * 10 + number, STORM) for number in range(2)]
    crowd = Crowd(store)
    async with engines(*stores) as replicas:
        until_us = SYSTEM.monotonic_us() + 2_000_000
        callers = [Caller(replicas[number % 2], f"owner-{number}") for number in range(6)]
        await asyncio.gather(*(crowd.work(caller, until_us) for caller in callers))
        assert crowd.tokens
        assert len(crowd.tokens) == len(set(crowd.tokens)), "a token was given out twice"
        for one in stores:
            one.faults = CALM
        before = len(crowd.tokens)
        holds = []
        async with asyncio.timeout(60):
            for caller in callers:
                holds.append(await caller.acquire("k", wait_s=30, ttl_s=30))
                await caller.release("k", holds[-1])
        assert [hold.token for hold in holds] == sorted(hold.token for hold in holds)
        assert min(hold.token for hold in holds) > max(crowd.tokens[:before])
    for one in stores:
        await one.close()


# --- long queues -----------------------------------------------------------------------------------------------------


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


async def test_waiters_are_asked_for_again_when_the_record_was_lost_under_a_new_acquire(store: MemoryStore) -> None:
    async with engines(store, limits=PATIENT) as (engine,):
        await Caller(engine, "A").acquire("k")
        waiting = asyncio.ensure_future(Caller(engine, "B").acquire("k", wait_s=30))
        await Caller(engine, "A").until_waiting("k", "B")
        entry = lock_entry("k")
        version = (await store.load([entry]))[entry].version
        await store.commit([Change(entry, version, "lost")], [], SYSTEM.now_us() + 1_000_000)  # and nobody is told
        engine._lanes.known.forget([entry])
        hold = await Caller(engine, "C").acquire("k")
        await Caller(engine, "A").until_waiting("k", "B")
        await Caller(engine, "C").release("k", hold)
        async with asyncio.timeout(30):
            assert (await waiting).token > hold.token


async def test_a_command_leaves_no_garbage_that_only_a_collection_would_find(store: MemoryStore) -> None:
    async with engines(store, limits=PATIENT) as (engine,):
        caller = Caller(engine, "A")

        async def cycles() -> None:
            for _ in range(100):
                await caller.release("k", await caller.acquire("k"))

        await cycles()
        gc.collect()
        gc.disable()
        try:
            await cycles()
            assert gc.collect() < 100  # less than one object for each of them, whatever else goes on
        finally:
            gc.enable()


class SmallValues(FaultyStore):
    """A store that takes no value above so many bytes, and declares less."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.capabilities = replace(store.capabilities, max_value=6000)
        self.largest = 0

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        self.largest = max([self.largest, *(len(change.value or b"") for change in changes)])
        await super().commit(changes, log, not_after_us)


async def test_who_waits_beyond_what_the_store_keeps_for_one_lock_is_refused_and_the_others_are_served(
    store: MemoryStore,
) -> None:
    small = SmallValues(store)
    async with engines(small, limits=PATIENT) as (engine,):
        callers = [Caller(engine, f"owner-{number}") for number in range(60)]
        hold = await callers[0].acquire("k", ttl_s=60)
        waits = [asyncio.ensure_future(caller.acquire("k", wait_s=60, ttl_s=60)) for caller in callers[1:]]
        async with asyncio.timeout(60):
            while True:  # those who came too late were refused, though all asked at once
                refused = [wait for wait in waits if wait.done()]
                standing = await callers[0].waiters("k")
                if refused and len(standing) + len(refused) == len(waits):
                    break
                await asyncio.sleep(0.005)
            assert standing
            for wait in refused:
                assert isinstance(wait.exception(), TooManyWaiters)
            held = callers[0]
            renewed = await held.renew("k", hold)
            assert small.largest <= 6000 + 1000
            await held.release("k", renewed)
            for wait in waits:
                if wait not in refused:
                    got = await wait
                    await callers[0].engine.run(Release("k", got.who.lock_token))
            await callers[0].acquire("k")


class SlowAndUnsure(FaultyStore):
    """Every call takes long, and says nothing in the end."""

    slow = False

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        if self.slow:
            await asyncio.sleep(0.15)
            raise Ambiguous("no answer")
        await super().commit(changes, log, not_after_us)


async def test_whoever_asked_does_not_wait_for_ever_for_what_became_of_a_lost_commit(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolving, "WITHIN_S", 0.2)
    monkeypatch.setattr(resolving, "TRIES", 10_000)
    unsure = SlowAndUnsure(store)
    async with engines(unsure) as (engine,):
        unsure.slow = True
        async with asyncio.timeout(30):
            with pytest.raises(OutcomeUnknown):
                await Caller(engine, "A").acquire("k")
        unsure.slow = False
        async with asyncio.timeout(30):
            await Caller(engine, "B").acquire("k", wait_s=20)  # and the next ones are served


class Overtaken(FaultyStore):
    """Somebody else was faster, so many times."""

    times = 0
    lost = 0

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        if self.lost < self.times:
            self.lost += 1
            raise Conflict
        await super().commit(changes, log, not_after_us)


async def test_whoever_is_overtaken_more_than_a_dozen_times_goes_on_for_a_while(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "TRY_FOR_US", 60_000_000)  # a busy machine may stand still for the usual three
    overtaken = Overtaken(store)
    async with engines(overtaken) as (engine,):
        overtaken.times = lanes_module.TRIES + 6
        await Caller(engine, "A").acquire("k")
        assert overtaken.lost == overtaken.times


async def test_whoever_is_overtaken_without_end_is_told_that_nothing_was_done(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "TRY_FOR_US", 0)
    overtaken = Overtaken(store)
    async with engines(overtaken) as (engine,):
        overtaken.times = 10_000
        with pytest.raises(StoreUnavailable, match="too much is going on"):
            await Caller(engine, "A").acquire("k")
        assert lanes_module.TRIES <= overtaken.lost <= lanes_module.TRIES + 1  # and the first, on what was known
        overtaken.times = 0
        await Caller(engine, "B").acquire("k")


async def working_slowly(engine: Engine) -> "asyncio.Future[Hold]":
    """An acquire whose work has become a task, which has not begun yet."""
    asking = asyncio.ensure_future(Caller(engine, "A").acquire("k"))
    async with asyncio.timeout(30):
        while not engine._lanes._slow:
            await asyncio.sleep(0)
    return asking


async def test_work_that_is_ended_with_the_process_is_told_as_unknown_and_not_logged_as_an_error(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    unsure = SlowAndUnsure(store)
    async with engines(unsure) as (engine,):
        unsure.slow = True
        asking = await working_slowly(engine)
        await asyncio.sleep(0.01)
        for task in engine._lanes._slow:  # as the loop does with what is left when it ends
            task.cancel()
        with pytest.raises(OutcomeUnknown, match="stopping"):
            await asking
        unsure.slow = False
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("begun", [False, True], ids=["before it began", "under way"])
async def test_work_that_is_ended_with_the_loop_is_told_and_whoever_asks_next_is_served(
    store: MemoryStore, begun: bool
) -> None:
    """At its end a loop cancels all tasks, ours too; and those of the application may want to release."""
    unsure = SlowAndUnsure(store)
    async with engines(unsure) as (engine,):
        unsure.slow = True
        asking = await working_slowly(engine)
        async with asyncio.timeout(30):
            if begun:
                await asyncio.sleep(0.01)
            for task in list(engine._lanes._slow):
                task.cancel()
            unsure.slow = False
            with pytest.raises(OutcomeUnknown, match="stopping"):
                await asking
            await Caller(engine, "B").acquire("k", wait_s=20)
