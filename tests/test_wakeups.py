"""Whoever waits is woken by what happened, and not by the end of an offer or of their patience."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from typing import TypeVar

import pytest

from fencegate.clock import SYSTEM, ManualClock, SystemClock
from fencegate.core.errors import FencegateError
from fencegate.core.model import Limits, Terms, members_of, session_entry
from fencegate.core.ports import Changes, Entry, Store, Unavailable
from fencegate.engine import Engine
from fencegate.testing.caller import QUICK, Caller, engines, until
from fencegate.testing.faulty_store import CALM, Faults, FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore

LONG_OFFERS = Limits(offer_us=600_000_000)
"""A wake-up that is missed shows: no offer lapses that would heal it."""
SHARED = Terms(shared=True)
ABOVE = Terms(hierarchical=True)

T = TypeVar("T")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def engine(store: MemoryStore) -> AsyncIterator[Engine]:
    async with engines(store, limits=LONG_OFFERS) as (one,):
        yield one


async def soon(waiting: Awaitable[T]) -> T:
    async with asyncio.timeout(30):
        return await waiting


async def is_pending(engine: Engine, lock_key: str) -> bool:
    record = (await engine.look(lock_key)).record
    return record is not None and any(hold.pending for hold in record.holds)


async def has_no_members(store: Store, session: str) -> bool:
    return not await store.scan(members_of(session), "", 1)


# --- offers ----------------------------------------------------------------------------------------------------------


async def test_who_comes_after_a_group_of_readers_is_served_with_them(engine: Engine) -> None:
    caller = Caller(engine, "A")
    holds = await caller.acquire_all("a", "b")
    group = asyncio.ensure_future(Caller(engine, "G").acquire_all("a", "b", wait_s=60, terms=SHARED))
    await caller.until_waiting("a", "G")
    reader = asyncio.ensure_future(Caller(engine, "R").acquire("a", wait_s=60, terms=SHARED))
    await caller.until_waiting("a", "G", "R")
    await caller.release_all(holds)
    assert (await soon(group))["a"].token == (await soon(reader)).token


async def test_a_poll_hears_of_what_was_granted_to_another_of_its_request() -> None:
    clock = ManualClock(SYSTEM.now_us())
    async with engines(MemoryStore(clock), limits=LONG_OFFERS) as (engine,):
        await Caller(engine, "X").acquire("k", ttl_s=100)
        caller = Caller(engine, "A")
        waiting = asyncio.ensure_future(caller.acquire("k", wait_s=300, name="r"))
        await caller.until_waiting("k", "A")
        clock.advance(101)  # nobody has noticed yet that the lease is over
        granted = await caller.acquire("k", name="r")
        assert (await soon(waiting)).token == granted.token


async def test_who_waits_for_a_lock_and_for_one_below_it_asks_once_and_not_all_the_time(store: MemoryStore) -> None:
    counting = FaultyStore(store)
    async with engines(counting, limits=LONG_OFFERS) as (engine,):
        hold = await Caller(engine, "A").acquire("t/x", ttl_s=60)
        waiting = asyncio.ensure_future(Caller(engine, "B").acquire_all("t", "t/x", wait_s=60))
        await Caller(engine, "A").until_waiting("t/x", "B")
        before = counting.commits
        await asyncio.sleep(0.2)
        assert counting.commits - before < 5
        await Caller(engine, "A").release("t/x", hold)
        await soon(waiting)


# --- sessions --------------------------------------------------------------------------------------------------------


async def test_a_session_that_another_replica_ended_and_then_died_frees_its_locks_when_its_time_is_over(
    store: MemoryStore,
) -> None:
    doomed = FaultyStore(store)
    async with engines(store, doomed, limits=LONG_OFFERS) as (one, two):
        session = await Caller(two, "A").open_session(ttl_s=3)
        await Caller(two, "A").acquire("k", terms=Terms(session=session))
        waiting = asyncio.ensure_future(Caller(one, "B").acquire("k", wait_s=60))
        await Caller(one, "B").until_waiting("k", "B")
        doomed.faults = Faults(cut=1)
        with pytest.raises(FencegateError):
            await Caller(two, "A").end_session(session)
        await soon(waiting)


async def test_a_session_whose_end_was_committed_unheard_frees_its_locks(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyStore(store)
    async with engines(faulty, limits=LONG_OFFERS) as (engine,):
        session = await Caller(engine, "A").open_session(ttl_s=1)
        await Caller(engine, "A").acquire("k", terms=Terms(session=session))
        waiting = asyncio.ensure_future(Caller(engine, "B").acquire("k", wait_s=60))
        await Caller(engine, "B").until_waiting("k", "B")
        faulty.faults = Faults(cut=1)

        async def has_given_up() -> bool:
            return "ExpireSession failed" in caplog.text

        await until(has_given_up)
        entry = session_entry(session)
        assert b'"ended":"expired"' in (await store.load([entry]))[entry].value
        faulty.faults = CALM
        await soon(waiting)
        await until(lambda: has_no_members(store, session))


async def test_a_session_is_ended_to_the_last_lock_though_the_caller_hung_up(store: MemoryStore) -> None:
    slow = FaultyStore(store)
    async with engines(slow, limits=LONG_OFFERS) as (engine,):
        caller = Caller(engine, "A")
        session = await caller.open_session(ttl_s=600)
        for number in range(10):
            await caller.acquire(f"k{number}", terms=Terms(session=session))
        slow.faults = Faults(max_delay_s=0.02)
        ending = asyncio.ensure_future(caller.end_session(session))
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        await until(lambda: has_no_members(store, session))


async def test_a_lock_under_a_session_is_given_back_without_a_load(store: MemoryStore) -> None:
    counting = FaultyStore(store)
    async with engines(counting, limits=LONG_OFFERS) as (engine,):
        session = await Caller(engine, "A").open_session()
        hold = await Caller(engine, "A").acquire("k", terms=Terms(session=session))
        before = counting.loads
        await Caller(engine, "A").release("k", hold)
        assert counting.loads == before


# --- hierarchy -------------------------------------------------------------------------------------------------------


async def test_a_pending_lock_whose_poll_hung_up_keeps_its_place_for_the_next_poll(engine: Engine) -> None:
    below = await Caller(engine, "X").acquire("a/b", ttl_s=60)
    caller = Caller(engine, "A")
    first = asyncio.ensure_future(caller.acquire("a", wait_s=60, name="r", terms=ABOVE))
    await until(lambda: is_pending(engine, "a"))
    other = asyncio.ensure_future(Caller(engine, "B").acquire("a", wait_s=60, terms=ABOVE))
    await caller.until_waiting("a", "B")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await caller.until_waiting("a", "A")  # it is the other's turn to look below, and A would be next
    again = asyncio.ensure_future(caller.acquire("a", wait_s=60, name="r", terms=ABOVE))
    await Caller(engine, "X").release("a/b", below)
    await Caller(engine, "B").release("a", await soon(other))
    await soon(again)


class SlowToLook(FaultyStore):
    """A store that takes its time to list what lies below `a`."""

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        if prefix == "lock/a/":
            await asyncio.sleep(QUICK.offer_us * 0.7 / 1_000_000)
        return await super().scan(prefix, after, limit)


async def test_looking_below_may_take_longer_than_a_pending_lock_lasts(store: MemoryStore) -> None:
    async with engines(SlowToLook(store), limits=QUICK) as (engine,):
        caller = Caller(engine, "A")
        holds = await asyncio.gather(*(caller.acquire(f"a/{number}") for number in range(600)))
        await asyncio.gather(*(caller.release(f"a/{number}", hold) for number, hold in enumerate(holds)))
        above = await soon(caller.acquire("a", terms=ABOVE))
        assert above.token > max(hold.token for hold in holds)


async def test_a_reader_joins_another_as_soon_as_the_writer_above_them_gives_up(engine: Engine) -> None:
    caller = Caller(engine, "A")
    await caller.acquire("a/b", ttl_s=600, terms=SHARED)
    above = asyncio.ensure_future(Caller(engine, "W").acquire("a", wait_s=60, terms=ABOVE))
    await until(lambda: is_pending(engine, "a"))
    joining = asyncio.ensure_future(Caller(engine, "B").acquire("a/b", wait_s=600, terms=SHARED))
    await caller.until_waiting("a/b", "B")
    above.cancel()
    await soon(joining)


# --- the change stream, and time -------------------------------------------------------------------------------------


class LateStream(FaultyStore):
    """A store whose change stream breaks on demand, and begins when it is let."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.broken, self.begins = asyncio.Event(), asyncio.Event()
        self.asked = 0
        self.begins.set()

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        self.asked += 1
        await self.begins.wait()
        async with aclosing(super().changes(since)) as stream:
            yield await anext(stream)
            breaks = asyncio.ensure_future(self.broken.wait())
            while not self.broken.is_set():
                coming = asyncio.ensure_future(anext(stream))
                try:
                    await asyncio.wait((coming, breaks), return_when=asyncio.FIRST_COMPLETED)
                    if not self.broken.is_set():
                        yield await coming
                finally:
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
        raise Unavailable("the change stream broke")


async def test_what_is_committed_while_the_change_stream_comes_back_is_not_missed(store: MemoryStore) -> None:
    late = LateStream(store)
    async with engines(late, store, limits=LONG_OFFERS) as (one, two):
        hold = await Caller(two, "A").acquire("k", ttl_s=600)
        waiting = asyncio.ensure_future(Caller(one, "B").acquire("k", wait_s=60))
        await Caller(one, "B").until_waiting("k", "B")
        late.begins.clear()
        late.broken.set()

        async def is_asked_again() -> bool:
            return late.asked == 2

        await until(is_asked_again)
        await asyncio.sleep(0.05)  # whatever it looks at by itself, it has looked at
        await Caller(two, "A").release("k", hold)
        late.broken.clear()
        late.begins.set()
        await soon(waiting)


async def test_a_replica_whose_clock_is_ahead_of_the_store_does_not_ask_all_the_time(store: MemoryStore) -> None:
    counting = FaultyStore(store)
    ahead = SystemClock(SYSTEM.now_us() - SYSTEM.monotonic_us() + 60_000_000)
    engine = Engine(counting, ahead, LONG_OFFERS)
    await engine.start()
    await Caller(engine, "A").acquire("k", ttl_s=1.5)
    waiting = asyncio.ensure_future(Caller(engine, "B").acquire("k", wait_s=60))
    await Caller(engine, "B").until_waiting("k", "B")
    before = counting.loads
    await soon(waiting)
    assert counting.loads - before < 20
    await engine.close()
