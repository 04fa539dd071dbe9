"""A wait is made of polls that overlap: somebody stands at the place in the queue from the first to the last."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fencegate import connect
from fencegate.client.acquisition import Acquisition
from fencegate.client.asks import OneLock
from fencegate.client.grant import Grant
from fencegate.client.plain import PlainAcquisition
from fencegate.client.polls import overlap_ms
from fencegate.client.terms import wish_for_one
from fencegate.clock import SYSTEM
from fencegate.core.commands import Release
from fencegate.core.errors import LockHeld
from fencegate.core.model import LockRecord, Waiter, lock_entry
from fencegate.core.ports import Change
from fencegate.engine import Engine
from fencegate.engine.codec import decode
from fencegate.testing.caller import Caller, engines
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.over_store import StoreApi
from fencegate_lockservice.stores.memory import MemoryStore
from tests.servers import Server

WAYS = pytest.mark.parametrize("way", [PlainAcquisition, Acquisition])
"""Straight to the engine, and as by REST."""


class Queues(MemoryStore):
    """Knows what every commit left in the queues, and takes its time for it."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__()
        self.seen: list[tuple[Waiter, ...]] = []
        self.takes_s = takes_s

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        await asyncio.sleep(self.takes_s)
        await super().commit(changes, log, not_after_us)
        for change in changes:
            if change.key.startswith("lock/") and change.value is not None:
                record = decode(change.key, change.value).record
                assert isinstance(record, LockRecord)
                self.seen.append(record.queue)

    def polls(self) -> set[str]:
        return {attempt for queue in self.seen for waiter in queue for attempt in waiter.attempts}

    def nobody_there(self) -> list[Waiter]:
        return [waiter for queue in self.seen for waiter in queue if not waiter.attempts]


def asks(way: type[Acquisition[Any]], engine: Engine, owner: str, wait_s: float) -> asyncio.Future[Grant]:
    acquisition = way(OneLock("k", wish_for_one({"ttl": 1, "wait": wait_s})), owner, SYSTEM, 5.0)
    return asyncio.ensure_future(acquisition.run(StoreApi(engine, LockSettings())))


async def several_polls(store: Queues, number: int = 4) -> None:
    async with asyncio.timeout(30):
        while len(store.polls()) < number:
            await asyncio.sleep(0.01)


async def let_go(engine: Engine, lock_token: str) -> None:
    await engine.run(Release("k", lock_token))


@WAYS
async def test_somebody_stands_at_the_place_until_the_lock_comes(way: type[Acquisition[Any]]) -> None:
    store = Queues()
    async with engines(store) as (engine,):
        held = await Caller(engine, "A").acquire("k", ttl_s=600)
        waiting = asks(way, engine, "B", 60)
        await several_polls(store)
        await let_go(engine, held.who.lock_token)
        granted_us = SYSTEM.monotonic_us()
        grant = await waiting
        assert store.nobody_there() == []
        assert grant.token > held.token
        assert granted_us - 400_000 < grant.started_us  # it counts from a poll, and not from when the wait began


@WAYS
async def test_whoever_waits_for_longer_than_a_poll_is_not_overtaken(way: type[Acquisition[Any]]) -> None:
    store = Queues(takes_s=0.01)  # so that the moment between two polls would be long
    async with engines(store) as (engine,):
        held = await Caller(engine, "A").acquire("k", ttl_s=600)
        order: list[int] = []

        async def one(number: int) -> None:
            grant = await asks(way, engine, f"B{number}", 60)
            order.append(number)
            await asyncio.sleep(0.2)
            await let_go(engine, grant.lock_token)

        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(one(number)))
            await Caller(engine, "A").until_waiting("k", *[f"B{each}" for each in range(number + 1)])
        await let_go(engine, held.who.lock_token)
        await asyncio.gather(*tasks)
        assert order == sorted(order)
        assert store.nobody_there() == []


@WAYS
async def test_a_wait_that_is_over_leaves_the_queue_and_the_lock_can_be_had_at_once(
    way: type[Acquisition[Any]],
) -> None:
    store = Queues()
    async with engines(store) as (engine,):
        held = await Caller(engine, "A").acquire("k", ttl_s=600)
        begun_us = SYSTEM.monotonic_us()
        with pytest.raises(LockHeld):
            await asks(way, engine, "B", 1.1)
        assert 1_100_000 <= SYSTEM.monotonic_us() - begun_us < 20_000_000
        assert len(store.polls()) > 3
        await let_go(engine, held.who.lock_token)
        assert (await Caller(engine, "C").acquire("k")).token > held.token


@WAYS
async def test_what_is_cancelled_while_two_polls_stand_leaves_nothing_behind(way: type[Acquisition[Any]]) -> None:
    store = Queues()
    async with engines(store) as (engine,):
        held = await Caller(engine, "A").acquire("k", ttl_s=600)
        tasks = asyncio.all_tasks()
        waiting = asks(way, engine, "B", 60)
        async with asyncio.timeout(30):
            while not any(len(waiter.attempts) > 1 for queue in store.seen[-1:] for waiter in queue):
                await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.wait([waiting])
        async with asyncio.timeout(30):
            while asyncio.all_tasks() != tasks or engine._lanes.waited_for():
                await asyncio.sleep(0.01)
        await let_go(engine, held.who.lock_token)
        assert (await Caller(engine, "C").acquire("k")).token > held.token


@WAYS
async def test_a_grant_that_comes_while_two_polls_stand_is_one_hold(way: type[Acquisition[Any]]) -> None:
    store = Queues()
    async with engines(store) as (engine,):
        for _ in range(3):
            held = await Caller(engine, "A").acquire("k", ttl_s=600)
            tasks = asyncio.all_tasks()
            waiting = asks(way, engine, "B", 60)
            await asyncio.sleep(0)
            async with asyncio.timeout(30):
                while not any(len(waiter.attempts) > 1 for queue in store.seen[-1:] for waiter in queue):
                    await asyncio.sleep(0.001)
            await let_go(engine, held.who.lock_token)
            grant = await waiting
            async with asyncio.timeout(30):
                while asyncio.all_tasks() != tasks:
                    await asyncio.sleep(0.01)
            found = await store.load([lock_entry("k")])
            record = decode("lock/k", found[lock_entry("k")].value).record
            assert isinstance(record, LockRecord)
            assert [hold.token for hold in record.holds] == [grant.token]
            assert record.queue == ()
            await let_go(engine, grant.lock_token)
            assert not (await engine.look("k")).holds


class Counter:
    """A way to a real server that knows when each poll was under way, and when it was answered."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.begun: list[float] = []
        self.answered: list[float] = []
        self.most_at_once = 0

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)

        async def requests() -> None:
            while data := await reader.read(65536):
                if b"waitMillis" in data:
                    self.begun.append(SYSTEM.monotonic_us() / 1e6)
                    self.most_at_once = max(self.most_at_once, len(self.begun) - len(self.answered))
                back.write(data)

        async def answers() -> None:
            while data := await there.read(65536):
                self.answered.append(SYSTEM.monotonic_us() / 1e6)
                writer.write(data)

        tasks = [asyncio.create_task(requests()), asyncio.create_task(answers())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        back.close()
        writer.close()


async def test_over_http_the_next_poll_is_sent_before_the_last_is_answered_and_there_are_two_at_most(
    server: Server,
) -> None:
    counter = Counter(int(server.url.rpartition(":")[2]))
    listener = await asyncio.start_server(counter.pass_on, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener, connect(server.url) as holder, connect(url) as waiter, holder.hold("polls:http", ttl=60):
        with pytest.raises(LockHeld):
            await waiter.hold("polls:http", ttl=6, wait=5).acquire()
    assert len(counter.begun) >= 3
    assert all(later < earlier for later, earlier in zip(counter.begun[1:], counter.answered, strict=False))
    assert counter.most_at_once == 2


def test_polls_overlap_by_a_quarter_and_by_a_second_at_most() -> None:
    assert [overlap_ms(ms) for ms in (1, 334, 4000, 10_000, 60_000)] == [0, 83, 1000, 1000, 1000]
