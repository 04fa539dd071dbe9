"""PostgreSQL fails over to a standby that missed commits: those are gone, and still nothing is given out twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import LockExpired, LockHeld, NotOwner, OutcomeUnknown, StoreUnavailable
from fencegate.core.ports import Conflict, Store, Unavailable
from fencegate.testing.caller import Caller
from fencegate.testing.change_log_suite import first_answer, log_revision
from fencegate.testing.committing import gather_log, put, write
from fencegate.testing.crowd import Crowd
from fencegate.testing.fault_proxy import FaultProxy
from fencegate.testing.faulty_replicas import Replicas, replicas_through
from fencegate.testing.said import Said
from fencegate.testing.told import Grant, Told
from fencegate_lockservice.stores import open_store
from tests.eventually import eventually
from tests.real.postgres import PostgresServer
from tests.stores.postgres_fixtures import in_new_schema

FAILED = (StoreUnavailable, OutcomeUnknown, LockHeld, LockExpired, NotOwner)


class Pair:
    """A primary, and a standby that follows it over a line which can be cut."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer, line: FaultProxy) -> None:
        self.primary = primary
        self.standby = standby
        self.line = line

    async def follows(self) -> None:
        """Until the standby has all that was committed so far."""
        ((here,),) = self.primary.execute("SELECT pg_current_wal_lsn()")
        replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        await eventually(lambda: self.standby.execute(replayed, [here]) == [(True,)])

    def fail_over(self, replicas: Replicas) -> None:
        """The primary is gone, the standby takes its place, and its address too."""
        self.primary.kill()
        assert self.standby.execute("SELECT pg_promote()") == [(True,)]
        for replica in replicas:
            replica.each(lambda proxy: proxy.retarget(f"127.0.0.1:{self.standby.port}"))


@pytest.fixture
def pair(postgres_server: PostgresServer) -> Iterator[Pair]:
    with FaultProxy(f"127.0.0.1:{postgres_server.port}") as line:
        standby = postgres_server.standby(line.address)
        try:
            standby.start()
            yield Pair(postgres_server, standby, line)
        finally:
            standby.terminate()
            postgres_server.kill()
            postgres_server.start()


@contextlib.asynccontextmanager
async def replicas_on(primary: PostgresServer) -> AsyncIterator[Replicas]:
    url = in_new_schema(primary.url)
    address = f"127.0.0.1:{primary.port}"

    async def open_(through: str, clock: Clock) -> Store:
        return await open_store(url.replace(address, through), clock)

    async with replicas_through([address], open_) as replicas:
        yield replicas


class Workers:
    """Take and release two locks through both replicas, each time as a new request."""

    def __init__(self, replicas: Replicas) -> None:
        self.told = Told(clocks_moved=True)  # leases that were lost may overlap: only the tokens keep holders apart
        self._callers = [Caller(replica.engine, f"owner-{number}") for number, replica in enumerate(replicas)]
        self._keys = [f"failover:{SYSTEM.random_id(4)}" for _ in range(2)]
        self._stopping = False

    async def work(self, number: int) -> None:
        caller, lock_key = self._callers[number % 2], self._keys[number // 2 % 2]
        while not self._stopping:
            asked_us, request = SYSTEM.monotonic_us(), SYSTEM.random_id()
            with contextlib.suppress(*FAILED):
                hold = await caller.acquire(lock_key, wait_s=0.5, ttl_s=1, name=request)
                now_us = SYSTEM.monotonic_us()
                self.told.granted(Grant(lock_key, request, hold, asked_us, now_us, now_us))
                await caller.release(lock_key, hold)
            await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        works = [asyncio.ensure_future(self.work(number)) for number in range(4)]
        try:
            yield
        finally:
            self._stopping = True
            await asyncio.gather(*works)
        self.told.judge()

    async def are_served(self) -> None:
        """Until every lock was granted ten times more."""
        before = len(self.told.grants)

        def served() -> bool:
            new = [grant.lock_key for grant in self.told.grants[before:]]
            return all(new.count(lock_key) >= 10 for lock_key in self._keys)

        await eventually(served, within_s=60)


async def until_reached(store: Store) -> None:
    async def reached() -> bool:
        with contextlib.suppress(Unavailable):
            await store.load(["k"])
            return True
        return False

    await eventually(reached)


async def test_a_lagging_standby_that_is_promoted_under_load_gives_out_no_token_and_no_version_twice(
    pair: Pair,
) -> None:
    async with replicas_on(pair.primary) as replicas:
        store = replicas[0].engine.store
        kept, lost = put("kept"), put("lost")
        await write(store, kept)
        workers = Workers(replicas)
        async with workers.at_work():
            await workers.are_served()
            await pair.follows()
            pair.line.cut()
            await write(store, lost)
            changed = put("kept", kept.version)
            await write(store, changed)
            await workers.are_served()  # none of which the standby hears of
            newest = await log_revision(store)
            await asyncio.to_thread(pair.fail_over, replicas)
            await workers.are_served()
        await until_reached(store)
        assert "lost" not in await store.load(["lost"])
        assert (await store.load(["kept"]))["kept"].version == kept.version
        for stale in (put("lost", lost.version), put("kept", changed.version)):
            with pytest.raises(Conflict):
                await write(store, stale)
        await write(store, put("kept", kept.version))
        for stale in (put("kept", kept.version), put("kept", changed.version)):
            with pytest.raises(Conflict):
                await write(store, stale)
        assert await log_revision(store) > newest


async def test_whoever_follows_the_change_log_is_told_that_a_standby_which_lost_lines_was_promoted(
    pair: Pair,
) -> None:
    async with replicas_on(pair.primary) as replicas:
        store, idle = (replica.engine.store for replica in replicas)
        stream = store.changes(None)
        await first_answer(stream)
        await write(store, put("kept"))
        await pair.follows()
        pair.line.cut()
        await write(store, put("lost"))
        lost = (await gather_log(stream, 2))[-1]
        assert lost.key == "lost"
        replicas[0].each(lambda proxy: proxy.cut())
        await asyncio.to_thread(pair.fail_over, replicas[1:])
        await until_reached(idle)
        await write(idle, put("new"))  # its number is higher than that of the line that was lost
        newest = await log_revision(idle)
        assert newest > lost.revision
        replicas[0].each(lambda proxy: proxy.retarget(f"127.0.0.1:{pair.standby.port}"))
        replicas[0].each(lambda proxy: proxy.pass_())
        async with asyncio.timeout(30):
            changes = await anext(stream)
        assert changes.reset
        await until_reached(store)
        assert (await first_answer(store.changes(lost.revision))).reset
        await write(idle, put("after"))
        assert "after" in [line.key for line in await gather_log(stream, 1)]
        await stream.aclose()


async def test_a_standby_is_refused_as_a_store_and_passed_over_among_several_hosts(pair: Pair) -> None:
    with pytest.raises(Unavailable, match=r"read-only|standby|recovery"):
        await open_store(pair.standby.url)
    url = in_new_schema(pair.primary.url)
    store = await open_store(url.replace("@", f"@127.0.0.1:{pair.standby.port},"))
    await write(store, put("k"))
    found = await store.inspect()
    assert [finding.level for finding in found if "asynchronously" in finding.what] == ["warning"]
    await store.close()


async def test_a_synchronous_standby_that_is_promoted_under_load_has_lost_nothing(pair: Pair) -> None:
    pair.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    pair.primary.execute("SELECT pg_reload_conf()")
    synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
    await eventually(lambda: pair.primary.execute(synchronous) == [(1,)])
    try:
        async with replicas_on(pair.primary) as replicas:
            store, said = replicas[0].engine.store, Said()
            async with Crowd([replica.engine for replica in replicas]) as crowd:
                await crowd.is_served()
                works = [asyncio.ensure_future(said.commit(store, 0.01 * number)) for number in range(100)]
                await asyncio.sleep(0.3)
                await asyncio.to_thread(pair.fail_over, replicas)
                await asyncio.gather(*works)
                await crowd.is_served()
            await said.is_back(store)
            await said.judge(store)
    finally:
        (pair.primary.data / "postgresql.auto.conf").write_text("")
