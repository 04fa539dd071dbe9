"""A member of etcd that lives, and answers its clients, and is cut off from the other members."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Ambiguous, Unavailable
from fencegate.testing.committing import put, write
from fencegate.testing.crowd import Crowd
from fencegate.testing.fault_proxy import FaultProxy
from fencegate.testing.fault_suite import Replicas, replicas_through
from fencegate_lockservice.stores import open_store
from tests.real import etcd as real
from tests.real.etcd import EtcdCluster, EtcdServer
from tests.stores.test_etcd_faults import through


class Parted:
    """Three members who find each other through proxies of ours."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.cluster = EtcdCluster(folder)
        self._proxies = [stack.enter_context(FaultProxy(member.peer_address)) for member in self.cluster.members]
        for member, proxy in zip(self.cluster.members, self._proxies, strict=True):
            member.found_at = proxy.address
        self.cluster.introduce()
        stack.callback(self.cluster.terminate)
        self.cluster.start()

    def cut_off(self, lost: EtcdServer) -> None:
        """Nobody reaches it, and it reaches nobody; members say who they are at the head of each connection."""
        own = f"X-Server-From: {lost.member_id()}\r\n".encode()
        for member, proxy in zip(self.cluster.members, self._proxies, strict=True):
            if member is lost:
                proxy.cut()
            else:
                proxy.cut_whoever(own)

    def heal(self) -> None:
        for proxy in self._proxies:
            proxy.pass_()


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parted]:
    if reason := real.missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        yield Parted(tmp_path_factory.mktemp("etcd-parted"), stack)


@pytest.fixture
def root() -> str:
    return SYSTEM.random_id(4)


@pytest.fixture
async def replicas(parted: Parted, root: str) -> AsyncIterator[Replicas]:
    async with replicas_through(parted.cluster.addresses, through(root)) as found:
        yield found


@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_a_member_that_is_parted_from_the_others_under_load_grants_nothing_and_shows_nothing_old(
    parted: Parted, replicas: Replicas, root: str, which: str
) -> None:
    leader = await asyncio.to_thread(lambda: parted.cluster.leader)
    lost = leader if which == "leader" else next(one for one in parted.cluster.members if one is not leader)
    number = parted.cluster.members.index(lost)
    for replica in replicas:  # so that all of them talk to this one, and find out for themselves
        for at, proxy in enumerate(replica.proxies):
            if at != number:
                proxy.cut()
    behind = await open_store(f"{lost.url}/{root}")
    try:
        async with Crowd([replica.engine for replica in replicas]) as crowd:
            await crowd.is_served(1)
            await asyncio.to_thread(parted.cut_off, lost)
            try:
                for replica in replicas:
                    replica.each(FaultProxy.pass_)
                asked = asyncio.gather(behind.load(["k"]), write(behind, put("k")), return_exceptions=True)
                await crowd.is_served()
                shown, written = await asked
                assert isinstance(shown, Unavailable)
                assert isinstance(written, Unavailable | Ambiguous)
            finally:
                parted.heal()
            await crowd.is_served()
    finally:
        await behind.close()
