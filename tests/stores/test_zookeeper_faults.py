"""The ZooKeeper store when servers and lines fail."""

import asyncio
import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from fencegate.clock import SYSTEM, Clock
from fencegate.core.ports import Conflict, Store
from fencegate.engine import Engine
from fencegate.testing.caller import Caller
from fencegate.testing.change_log_suite import log_revision
from fencegate.testing.committing import put, write
from fencegate.testing.crowd import Crowd
from fencegate.testing.fault_suite import FaultSuite, OpenThrough, replicas_through
from fencegate.testing.faulty_replicas import asked_again
from fencegate_lockservice.stores import open_store as open_url
from tests.real import zookeeper as real


@pytest.fixture(scope="package")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.ZooKeeperServer]:
    """A server that tests may kill and stop; they leave it running."""
    if reason := real.missing():
        pytest.skip(reason)
    server = real.ZooKeeperServer(tmp_path_factory.mktemp("zookeeper-own")).start()
    yield server
    server.terminate()


class TestZooKeeperUnderFaults(FaultSuite):
    commit_mark = b"\xff\xff\xff\xff\x01\xff\xff\xff\xff"  # the end of a multi

    @pytest.fixture
    def server(self, request: pytest.FixtureRequest) -> real.ZooKeeperServer:
        server: real.ZooKeeperServer = request.getfixturevalue("own_server")
        return server

    @pytest.fixture
    def addresses(self, request: pytest.FixtureRequest) -> Sequence[str]:
        """Where only lines fail, the server that all use will do."""
        if "server" in inspect.signature(request.function).parameters:
            own: real.ZooKeeperServer = request.getfixturevalue("own_server")
            return own.addresses
        shared: list[str] = request.getfixturevalue("zookeeper_server")
        return shared

    @pytest.fixture
    def open_through(self) -> OpenThrough:
        root = f"faults/{SYSTEM.random_id(5)}"

        async def open_(address: str, clock: Clock) -> Store:
            return await open_url(f"zookeeper://{address}/{root}", clock)

        return open_


async def test_after_a_restore_from_a_backup_nothing_comes_twice(
    own_server: real.ZooKeeperServer, tmp_path: Path
) -> None:
    store = await open_url(f"{own_server.url}/restored/{SYSTEM.random_id(4)}")
    engine = Engine(store, SYSTEM)
    await engine.start()
    caller = Caller(engine, "A")
    tokens, versions, revisions = [], [], [await log_revision(store)]

    async def work(count: int) -> None:
        for _ in range(count):
            hold = await asked_again(partial(caller.acquire, "k", ttl_s=60))
            tokens.append(hold.token)
            versions.append((await store.load(["lock/k"]))["lock/k"].version)
            await asked_again(partial(caller.release, "k", hold))
            revisions.append(await log_revision(store))

    await work(3)
    await asyncio.to_thread(own_server.backup, tmp_path / "backup")
    await work(5)
    await asyncio.to_thread(own_server.restore, tmp_path / "backup")
    await work(3)
    for seen in (tokens, revisions):
        assert seen == sorted(set(seen))
    assert len(versions) == len(set(versions))
    with pytest.raises(Conflict):
        await write(store, put("lock/k", versions[5]))
    await engine.close()
    await store.close()


@pytest.fixture
def own_ensemble(tmp_path: Path) -> Iterator[real.Ensemble]:
    """Three servers that this test may kill."""
    if reason := real.missing():
        pytest.skip(reason)
    ensemble = real.Ensemble(tmp_path / "zookeeper-own").start()
    yield ensemble
    ensemble.terminate()


async def test_an_ensemble_whose_leader_is_killed_under_load_and_whose_minority_is_cut_off(
    own_ensemble: real.Ensemble,
) -> None:
    async def open_(address: str, clock: Clock) -> Store:
        return await open_url(f"zookeeper://{address}", clock)

    async with replicas_through(own_ensemble.addresses, open_) as replicas:
        crowd = Crowd([replica.engine for replica in replicas])
        async with crowd:
            await crowd.is_served()
            for _ in range(2):  # by turns another one leads
                leader = await asyncio.to_thread(lambda: own_ensemble.leader)
                await asyncio.to_thread(leader.kill)
                await crowd.is_served(1)
                await asyncio.to_thread(leader.start)
                await crowd.is_served(1)
            first, *rest = own_ensemble.members
            first.stop()  # whoever is connected to it goes on with another
            await crowd.is_served(1)
            for member in rest:
                member.stop()
            first.resume()  # alone it is a minority
            begin_us = SYSTEM.monotonic_us() + 100_000
            await crowd.fails(4)
            crowd.told.outages.append((begin_us, SYSTEM.monotonic_us()))
            for member in rest:
                member.resume()
            await crowd.is_served()
