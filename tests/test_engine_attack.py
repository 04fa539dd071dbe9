"""Attack."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from fencegate.clock import SYSTEM, SystemClock
from fencegate.engine import Engine
from fencegate.core.commands import EndSession, Release, ReleaseAll
from fencegate.core.errors import FencegateError, LockHeld, OutcomeUnknown, StoreUnavailable, SessionExpired
from fencegate.core.model import Limits, Terms, members_of
from fencegate.core.ports import Changes, Interval, Unavailable
from fencegate.testing.caller import QUICK, Caller, engines, until
from fencegate.testing.faulty_store import CALM, GONE, Faults, FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore

PATIENT = Limits()
SLOW_OFFERS = Limits(offer_us=60_000_000)
SHARED = Terms(shared=True)
ABOVE = Terms(hierarchical=True)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def test_waiting_for_several_when_it_is_one(store: MemoryStore) -> None:
    async with engines(store, limits=SLOW_OFFERS) as (engine,):
        hold = await Caller(engine, "A").acquire("a")
        waiting = asyncio.ensure_future(Caller(engine, "B").acquire_all("a", wait_s=40))
        await Caller(engine, "A").until_waiting("a", "B")
        await Caller(engine, "A").release("a", hold)
        async with asyncio.timeout(10):
            await waiting


async def test_many_named(store: MemoryStore) -> None:
    async with engines(store, limits=PATIENT) as (engine,):
        keys = [f"k{n}" for n in range(60)]
        got = await Caller(engine, "A").acquire_all(*keys, name="many")
        await Caller(engine, "A").release_all(got)


async def test_many_under_many_sessions(store: MemoryStore) -> None:
    async with engines(store, limits=PATIENT) as (engine,):
        keys = [f"k{n}" for n in range(60)]
        for key in keys:
            s = await Caller(engine, "A").open_session()
            await Caller(engine, "A").acquire(key, terms=Terms(session=s))
        with pytest.raises(LockHeld):
            await Caller(engine, "B").acquire_all(*keys, name="many")


async def test_offer_after_hand_over_all(store: MemoryStore) -> None:
    async with engines(store, limits=SLOW_OFFERS) as (engine,):
        a = Caller(engine, "A")
        holds = await a.acquire_all("a", "b")
        group = asyncio.ensure_future(Caller(engine, "G").acquire_all("a", "b", wait_s=40, terms=SHARED))
        await a.until_waiting("a", "G")
        plain = asyncio.ensure_future(Caller(engine, "P").acquire("a", wait_s=40, terms=SHARED))
        await a.until_waiting("a", "G", "P")
        await a.release_all(holds)
        async with asyncio.timeout(10):
            await group
            await plain


async def test_session_ended_by_a_replica_that_died_then(store: MemoryStore) -> None:
    doomed = FaultyStore(store)
    async with engines(store, doomed, limits=PATIENT) as (one, two):
        a = Caller(two, "A")
        session = await a.open_session(ttl_s=3)
        await a.acquire("k", terms=Terms(session=session))
        waiting = asyncio.ensure_future(Caller(one, "B").acquire("k", wait_s=40))
        await Caller(one, "B").until_waiting("k", "B")
        doomed.faults = Faults(cut=1)
        with pytest.raises(FencegateError):
            await a.end_session(session)
        async with asyncio.timeout(10):
            await waiting


async def test_session_expired_by_lost_commit(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    async with engines(faulty, limits=PATIENT) as (one,):
        a = Caller(one, "A")
        session = await a.open_session(ttl_s=1)
        await a.acquire("k", terms=Terms(session=session))
        waiting = asyncio.ensure_future(Caller(one, "B").acquire("k", wait_s=40))
        await Caller(one, "B").until_waiting("k", "B")
        faulty.faults = Faults(cut=1)

        async def ended() -> bool:
            return b'"expired"' in (await store.load([f"session/{session}"]))[f"session/{session}"].value

        await until(ended)
        await asyncio.sleep(1)
        faulty.faults = CALM
        async with asyncio.timeout(10):
            await waiting


async def test_end_session_cancelled(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    async with engines(faulty, limits=PATIENT) as (one,):
        a = Caller(one, "A")
        session = await a.open_session(ttl_s=60)
        for n in range(100):
            await a.acquire(f"k{n}", terms=Terms(session=session))
        faulty.faults = Faults(max_delay_s=0.05)
        ending = asyncio.ensure_future(a.end_session(session))
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        faulty.faults = CALM

        async def empty() -> bool:
            return not await store.scan(members_of(session), "", 1)

        async with asyncio.timeout(10):
            await until(empty)


class Shifted(FaultyStore):
    shift_us = 0

    def now(self) -> Interval | None:
        found = super().now()
        return found and Interval(found.earliest + self.shift_us, found.latest + self.shift_us)


async def test_a_poll_hears_when_another_of_its_request_is_granted(store: MemoryStore) -> None:
    shifted = Shifted(store)
    async with engines(shifted, limits=PATIENT) as (one,):
        a = Caller(one, "A")
        await Caller(one, "X").acquire("k", ttl_s=5)
        first = asyncio.ensure_future(a.acquire("k", wait_s=40, ttl_s=10, name="r"))
        await a.until_waiting("k", "A")
        shifted.shift_us = 5_100_000
        second = await a.acquire("k", ttl_s=10, name="r")
        async with asyncio.timeout(3):
            assert (await first).token == second.token


async def test_a_store_whose_clock_is_behind_is_not_asked_all_the_time(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    ahead = SystemClock(SYSTEM.now_us() - SYSTEM.monotonic_us() + 5_000_000)
    one = Engine(faulty, ahead, PATIENT)
    await one.start()
    await Caller(one, "X").acquire("k", ttl_s=1.5)
    waiting = asyncio.ensure_future(Caller(one, "B").acquire("k", wait_s=40))
    await Caller(one, "B").until_waiting("k", "B")
    before = faulty.loads
    await waiting
    assert faulty.loads - before < 20
    await one.close()


class Gated(FaultyStore):
    """The stream breaks on demand, and comes back late."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.breaks = asyncio.Event()
        self.again = asyncio.Event()
        self.again.set()
        self.asked = 0

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        self.asked += 1
        await self.again.wait()
        stream = super().changes(since)
        nxt = None
        while True:
            nxt = nxt or asyncio.ensure_future(anext(stream))
            brk = asyncio.ensure_future(self.breaks.wait())
            await asyncio.wait((nxt, brk), return_when=asyncio.FIRST_COMPLETED)
            brk.cancel()
            if nxt.done():
                found = nxt.result()
                nxt = None
                yield found
            elif self.breaks.is_set():
                self.breaks.clear()
                nxt.cancel()
                await asyncio.gather(nxt, return_exceptions=True)
                await stream.aclose()
                raise Unavailable("broke")


async def test_what_happens_while_the_stream_comes_back(store: MemoryStore) -> None:
    gated = Gated(store)
    async with engines(gated, store, limits=SLOW_OFFERS) as (one, two):
        hold = await Caller(two, "A").acquire("k", ttl_s=60)
        waiting = asyncio.ensure_future(Caller(one, "B").acquire("k", wait_s=40))
        await Caller(one, "B").until_waiting("k", "B")
        gated.again.clear()
        gated.breaks.set()
        async with asyncio.timeout(10):
            while gated.asked < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await Caller(two, "A").release("k", hold)
        gated.again.set()
        async with asyncio.timeout(10):
            await waiting


async def test_place_of_a_pending(store: MemoryStore) -> None:
    async with engines(store, limits=PATIENT) as (one,):
        below = await Caller(one, "X").acquire("a/b", ttl_s=60)
        h = Caller(one, "H")
        first = asyncio.ensure_future(h.acquire("a", wait_s=40, ttl_s=10, name="r", terms=ABOVE))
        async def pending() -> bool:
            rec = (await one.look("a")).record
            return rec is not None and any(x.pending for x in rec.holds)
        await until(pending)
        other = asyncio.ensure_future(Caller(one, "O").acquire("a", wait_s=40))
        await h.until_waiting("a", "O")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        # the place stays for a while, before the other
        await until(lambda: _has(one, "a", "H"))


async def _has(engine, key, owner) -> bool:  # type: ignore
    rec = (await engine.look(key)).record
    return any(w.who.owner_id == owner for w in rec.queue)


async def test_session_release_costs_one_commit(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    async with engines(faulty, limits=PATIENT) as (one,):
        a = Caller(one, "A")
        session = await a.open_session(ttl_s=60)
        hold = await a.acquire("k", terms=Terms(session=session))
        loads = faulty.loads
        await a.release("k", hold)
        assert faulty.loads == loads


class SlowScan(FaultyStore):
    async def scan(self, prefix, after, limit):  # type: ignore
        if prefix.startswith("lock/a/"):
            await asyncio.sleep(0.2)
        return await super().scan(prefix, after, limit)


async def test_look_below_is_long(store: MemoryStore) -> None:
    async with engines(SlowScan(store), limits=QUICK) as (one,):
        a = Caller(one, "A")
        holds = await asyncio.gather(*[a.acquire(f"a/{n:04}") for n in range(1100)])
        await asyncio.gather(*[a.release(f"a/{n:04}", hold) for n, hold in enumerate(holds)])
        async with asyncio.timeout(20):
            got = await a.acquire("a", terms=ABOVE)
        assert got.token > max(h.token for h in holds)


async def test_close_ends_pending(store: MemoryStore) -> None:
    async with engines(store, limits=SLOW_OFFERS) as (two,):
        async with engines(SlowScan(store), limits=SLOW_OFFERS) as (one,):
            await Caller(one, "X").acquire("a/b", ttl_s=60)
            h = Caller(one, "H")
            first = asyncio.ensure_future(h.acquire("a", wait_s=40, ttl_s=10, terms=ABOVE))
            async def pending() -> bool:
                rec = (await two.look("a")).record
                return rec is not None and any(x.pending for x in rec.holds)
            await until(pending)
            await asyncio.sleep(0.5)
        await asyncio.gather(first, return_exceptions=True)
        assert not await pending()


async def test_who_waits_for_a_lock_and_one_below_it_asks_once(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    async with engines(faulty, limits=SLOW_OFFERS) as (one,):
        hold = await Caller(one, "X").acquire("t/x", ttl_s=60)
        waiting = asyncio.ensure_future(Caller(one, "B").acquire_all("t", "t/x", wait_s=40))
        await Caller(one, "B").until_waiting("t/x", "B")
        before = faulty.commits
        await asyncio.sleep(0.3)
        assert faulty.commits - before < 5
        await Caller(one, "X").release("t/x", hold)
        async with asyncio.timeout(10):
            await waiting
