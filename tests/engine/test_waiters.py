"""Waiters when things go wrong: who died, slept or was cut off keeps the others from nothing."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from fencegate.core.commands import ForceRelease, Release
from fencegate.core.errors import LockHeld, TooManyWaiters
from fencegate.core.model import Hold, Limits
from fencegate.core.ports import Change, Changes, Store, Unavailable
from fencegate.engine import Engine
from fencegate.testing.caller import QUICK, Caller, engines, until
from fencegate.testing.faulty_store import CALM, GONE, Faults, FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore


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


async def test_thousands_who_ask_for_one_lock_at_once_are_all_answered(store: MemoryStore) -> None:
    async with engines(store, limits=Limits()) as (engine,), asyncio.timeout(120):
        asked = [Caller(engine, f"owner-{number}").acquire("k", ttl_s=600) for number in range(3000)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(result, LockHeld) for result in results) == 2999
        hold = next(result for result in results if isinstance(result, Hold))
        for _ in range(3000):
            hold = await Caller(engine, hold.who.owner_id).renew("k", hold)


async def test_force_release_hands_over_to_the_waiter(store: MemoryStore) -> None:
    async with engines(store, store, limits=Limits()) as (one, two):
        hold = await Caller(one, "A").acquire("k")
        waiting = asyncio.ensure_future(Caller(two, "B").acquire("k", wait_s=20))
        await Caller(one, "A").until_waiting("k", "B")
        await one.run(ForceRelease("k", "stuck"))
        async with asyncio.timeout(30):
            assert (await waiting).token > hold.token


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
    async with engines(small, limits=Limits()) as (engine,):
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
