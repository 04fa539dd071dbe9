"""The etcd store while etcd is killed, stopped and cut off: one member, and members of a cluster under load."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fencegate.clock import SYSTEM, Clock
from fencegate.core.ports import Ambiguous, Conflict, Store, Unavailable
from fencegate.testing.committing import gather_log, put, write
from fencegate.testing.crowd import Crowd
from fencegate.testing.fault_proxy import FaultProxy
from fencegate.testing.fault_suite import FaultSuite, OpenThrough, Replicas, replicas_through
from fencegate_lockservice.stores import open_store
from tests.real.etcd import EtcdCluster, EtcdServer


def through(root: str) -> OpenThrough:
    async def open_(address: str, clock: Clock) -> Store:
        return await open_store(f"etcd://{address}/{root}", clock)

    return open_


class TestEtcdUnderFaults(FaultSuite):
    commit_mark = b"/fencegate/gate"

    @pytest.fixture
    def server(self, etcd: EtcdServer) -> EtcdServer:
        return etcd

    @pytest.fixture
    def open_through(self) -> OpenThrough:
        return through(SYSTEM.random_id(4))


# --- a cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def replicas(etcd_cluster: EtcdCluster) -> AsyncIterator[Replicas]:
    """Two replicas, each with lines of its own to all three members."""
    async with replicas_through(etcd_cluster.addresses, through(SYSTEM.random_id(4))) as found:
        yield found


@pytest.fixture
def crowd(replicas: Replicas) -> Crowd:
    return Crowd([replica.engine for replica in replicas])


async def test_a_leader_that_is_killed_under_load_and_comes_back(crowd: Crowd, etcd_cluster: EtcdCluster) -> None:
    async with crowd:
        for _ in range(2):
            await crowd.is_served(1)
            leader = await asyncio.to_thread(lambda: etcd_cluster.leader)
            await asyncio.to_thread(leader.kill)
            try:
                await crowd.is_served()
            finally:
                await asyncio.to_thread(leader.start)
        await crowd.is_served()


@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_a_member_that_is_cut_off_under_load_holds_nobody_up_for_long(
    crowd: Crowd, replicas: Replicas, etcd_cluster: EtcdCluster, which: str
) -> None:
    leader = await asyncio.to_thread(lambda: etcd_cluster.leader)
    lost = leader if which == "leader" else next(one for one in etcd_cluster.members if one is not leader)
    number = etcd_cluster.members.index(lost)
    for replica in replicas:  # so that all of them talk to this one
        others = [proxy for at, proxy in enumerate(replica.proxies) if at != number]
        for proxy in others:
            proxy.cut()
    async with crowd:
        await crowd.is_served(1)
        for replica in replicas:
            replica.each(FaultProxy.pass_)
        lost.stop()
        try:
            await crowd.is_served()
        finally:
            lost.resume()
        await crowd.is_served()


async def test_a_member_without_the_others_grants_nothing_and_shows_nothing_old(
    crowd: Crowd, replicas: Replicas, etcd_cluster: EtcdCluster
) -> None:
    store = replicas[0].engine.store
    async with crowd:
        await crowd.is_served(1)
        alone, *others = etcd_cluster.members
        for member in others:
            await asyncio.to_thread(member.kill)
        try:
            await crowd.fails(2)
            begin_us = SYSTEM.monotonic_us()
            await crowd.fails(4)
            with pytest.raises(Unavailable):
                await store.load(["k"])
            assert [finding.level for finding in await store.inspect()].count("unsafe") == 1
            crowd.told.outages.append((begin_us, SYSTEM.monotonic_us()))
        finally:
            await asyncio.to_thread(etcd_cluster.start_again, others)
        assert alone.pid
        await crowd.is_served()


async def test_who_follows_through_a_member_that_stands_still_hears_all_the_same(
    replicas: Replicas, etcd_cluster: EtcdCluster
) -> None:
    one, two = (replica.engine.store for replica in replicas)
    stream = one.changes(None)
    await anext(stream)
    await write(two, put("before"))
    assert [line.key for line in await gather_log(stream, 1)] == ["before"]
    at = etcd_cluster.members[one._client._at]  # type: ignore[attr-defined]
    at.stop()
    try:
        await again_and_again(two, "after")
        assert [line.key for line in await gather_log(stream, 1)] == ["after"]
    finally:
        at.resume()
    await stream.aclose()


async def again_and_again(store: Store, key: str) -> None:
    """Commit as soon as somebody takes it."""
    change = put(key)
    async with asyncio.timeout(30):
        while True:
            try:
                await write(store, change)
                return
            except Conflict:  # an earlier try has landed
                return
            except (Unavailable, Ambiguous):
                await asyncio.sleep(0.05)
