"""What becomes of what was asked, when the store's answer is lost, late or never comes: it is told, or told as unknown,
and leaves neither a lock nor a place behind."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from fencegate.clock import ManualClock
from fencegate.core.errors import LockHeld, OutcomeUnknown, StoreUnavailable
from fencegate.core.model import lock_entry
from fencegate.core.ports import Change, Conflict, Interval
from fencegate.engine import Engine, resolving
from fencegate.engine import lanes as lanes_module
from fencegate.testing.caller import Caller, engines
from fencegate.testing.faulty_store import CALM, GONE, Faults, FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore
from tests.engine.unsure import SlowAndUnsure


async def free(engine: Engine, lock_key: str = "k") -> None:
    """Return as soon as nobody holds the lock or waits for it."""
    async with asyncio.timeout(30):
        while True:
            record = (await engine.look(lock_key)).record
            if record is None or not (record.holds or record.offer or record.queue):
                return
            await asyncio.sleep(0.005)


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
