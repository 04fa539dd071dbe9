"""What is over is forgotten, in the store and in the process."""

import asyncio
import gc
from collections.abc import Sequence

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.commands import Expire
from fencegate.core.model import Ending, Floor, Limits, Session, floor_entry, lock_entry, member_entry, session_entry
from fencegate.core.ports import Change, Conflict, Entry
from fencegate.engine import known as known_module
from fencegate.engine import tending as tending_module
from fencegate.engine.codec import decode, encode
from fencegate.engine.timer import Alarms
from fencegate.testing.caller import Caller, engines
from fencegate.testing.faulty_store import FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore


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
    async with engines(store, store, limits=Limits()) as (one, two):
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


async def test_a_command_leaves_no_garbage_that_only_a_collection_would_find(store: MemoryStore) -> None:
    async with engines(store, limits=Limits()) as (engine,):
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
