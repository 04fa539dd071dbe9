"""Losses of data in Redis, under load: whatever is forgotten, tokens only grow and no two grants share one."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import FencegateError, LockExpired, LockHeld, NotOwner, OutcomeUnknown, StoreUnavailable
from fencegate.core.ports import Conflict, Store, Unavailable
from fencegate.engine import Engine
from fencegate.testing.caller import QUICK, Caller
from fencegate.testing.committing import put, write
from fencegate.testing.fault_proxy import FaultProxy
from fencegate.testing.told import Grant, Told
from fencegate_lockservice.stores import open_store
from tests.eventually import eventually
from tests.real.redis import RedisServer, redis_program

__all__ = ["redis_program"]

LOCKS = ["loss:a", "loss:b"]
REFUSED = (LockHeld, LockExpired, NotOwner, StoreUnavailable, OutcomeUnknown)


@pytest.fixture
def primary(tmp_path: Path, redis_program: str) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "primary", "--repl-diskless-sync-delay", "0", program=redis_program).start()
    yield server
    server.terminate()


@pytest.fixture
def replica(primary: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    following = ("--replicaof", primary.host, str(primary.port))
    server = RedisServer(tmp_path / "replica", *following, program=primary.program).start()
    yield server
    server.terminate()


class Rush:
    """Callers who take and release two locks through several engines; what they were told is judged in the end."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.engines = [Engine(store, limits=QUICK, replica=SYSTEM.random_id(4)) for store in stores]
        self.told = Told(clocks_moved=True)  # who holds what was forgotten: only the tokens keep holders apart
        self._over = False

    async def work(self, number: int) -> None:
        caller = Caller(self.engines[number % len(self.engines)], f"owner-{number}")
        while not self._over:
            lock_key, request = LOCKS[number % len(LOCKS)], SYSTEM.random_id()
            asked_us = SYSTEM.monotonic_us()
            with suppress(*REFUSED):
                hold = await caller.acquire(lock_key, wait_s=0.5, ttl_s=1.0)
                told_us = SYSTEM.monotonic_us()
                self.told.granted(Grant(lock_key, request, hold, asked_us, told_us, told_us))
                await caller.release(lock_key, hold)
            await asyncio.sleep(0.005)

    async def grants(self, more: int) -> None:
        """Return when so many more were granted of each lock, by each engine's callers together."""
        before = len(self.told.grants)

        def enough() -> bool:
            new = [grant.lock_key for grant in self.told.grants[before:]]
            return all(new.count(lock_key) >= more for lock_key in LOCKS)

        await eventually(enough)


@asynccontextmanager
async def rush(*urls: str) -> AsyncIterator[Rush]:
    async with AsyncExitStack() as stack:
        stores = []
        for url in urls:
            stores.append(await open_store(url))
            stack.push_async_callback(stores[-1].close)
        found = Rush(stores)
        for engine in found.engines:
            await engine.start()
            stack.push_async_callback(engine.close)
        works = [asyncio.ensure_future(found.work(number)) for number in range(8)]
        try:
            await found.grants(5)
            yield found
        finally:
            found._over = True
            await asyncio.gather(*works)
    found.told.judge()


async def test_tokens_only_grow_while_the_server_is_flushed_again_and_again(primary: RedisServer) -> None:
    async with rush(primary.url, primary.url) as crowd:
        for number in range(12):
            primary.ask("FLUSHALL")
            await crowd.grants(1 + number % 3)


async def test_who_waits_while_the_server_is_flushed_gets_the_lock(primary: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        callers = []
        for number in range(3):
            store = await open_store(primary.url)
            stack.push_async_callback(store.close)
            engine = Engine(store, limits=QUICK, replica=f"replica-{number}")
            await engine.start()
            stack.push_async_callback(engine.close)
            callers.append(Caller(engine, f"owner-{number}"))
        first = await callers[0].acquire("k", ttl_s=120)
        waiting = [asyncio.ensure_future(caller.acquire("k", wait_s=110, ttl_s=120)) for caller in callers[1:]]
        await eventually(lambda: _are_queued(callers[0], 2))
        primary.ask("FLUSHALL")
        async with asyncio.timeout(60):
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            second = done.pop().result()
            assert second.token > first.token
            for caller in callers[1:]:
                with suppress(FencegateError):
                    await caller.release("k", second)
            third = [(await work).token for work in waiting if (await work) is not second]
        assert third
        assert third[0] > second.token


async def _are_queued(caller: Caller, count: int) -> bool:
    return len(await caller.waiters("k")) == count


async def test_tokens_only_grow_over_a_failover_to_a_replica_that_missed_writes(
    primary: RedisServer, replica: RedisServer
) -> None:
    await eventually(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
    with FaultProxy(f"{primary.host}:{primary.port}") as one, FaultProxy(f"{primary.host}:{primary.port}") as two:
        async with rush(f"redis://{one.address}/0", f"redis://{two.address}/0") as crowd:
            replica.ask("REPLICAOF", "NO", "ONE")
            await crowd.grants(20)  # all of which the replica misses
            primary.kill()
            for proxy in (one, two):
                proxy.retarget(f"{replica.host}:{replica.port}")
                proxy.pass_()
            await crowd.grants(20)


async def test_a_version_that_was_lost_in_a_failover_never_fits_again(
    primary: RedisServer, replica: RedisServer
) -> None:
    await eventually(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
    with FaultProxy(f"{primary.host}:{primary.port}") as proxy:
        store = await open_store(f"redis://{proxy.address}/0")
        kept = put("k", value=b'"kept"')
        await write(store, kept)
        await eventually(lambda: kept.version.encode() in replica.ask("GET", ":k"))
        replica.ask("REPLICAOF", "NO", "ONE")
        lost, created = put("k", kept.version), put("created")
        await write(store, lost)
        await write(store, created)
        primary.kill()
        proxy.retarget(f"{replica.host}:{replica.port}")
        await eventually(lambda: _is_back(store))
        for stale in (put("k", lost.version), put("created", created.version)):
            with pytest.raises(Conflict):
                await write(store, stale)
        assert dict(await store.load(["k", "created"])) == {"k": (kept.version, kept.value)}
        await write(store, put("k", kept.version))
        with pytest.raises(Conflict):
            await write(store, put("k", lost.version))
        await store.close()


async def _is_back(store: Store) -> bool:
    try:
        await store.load(["k"])
    except Unavailable:
        return False
    return True
