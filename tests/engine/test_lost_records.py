"""Records that were lost, or cannot be read."""

import asyncio

from fencegate.clock import SYSTEM
from fencegate.core.errors import FencegateError
from fencegate.core.model import Limits, lock_entry
from fencegate.core.ports import Change
from fencegate.engine.codec import encode_line
from fencegate.testing.caller import Caller, engines
from fencegate.testing.faulty_store import CALM, Faults, FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore


async def lose(store: MemoryStore, lock_key: str = "k") -> None:
    """Take the record away, as a flush or a failover with loss would."""
    entry = lock_entry(lock_key)
    version = (await store.load([entry]))[entry].version
    line = (entry, encode_line("elsewhere", None))
    await store.commit([Change(entry, version, "lost")], [line], SYSTEM.now_us() + 60_000_000)


async def test_waiters_whose_record_was_lost_ask_again(store: MemoryStore) -> None:
    async with engines(store, limits=Limits()) as (engine,):
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
    async with engines(faulty, limits=Limits()) as (engine,):
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


async def test_waiters_are_asked_for_again_when_the_record_was_lost_under_a_new_acquire(store: MemoryStore) -> None:
    async with engines(store, limits=Limits()) as (engine,):
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
