"""etcd servers for the tests of the store: one, and a cluster of three, each started once; and some of a test's own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import OutcomeUnknown, StoreUnavailable
from fencegate.core.ports import Ambiguous, Unavailable
from tests.real import etcd as real
from tests.real.etcd import EtcdCluster, EtcdServer

T = TypeVar("T")


@pytest.fixture(scope="package")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One member; whoever kills it starts it again."""
    if reason := real.missing():
        pytest.skip(reason)
    server = EtcdServer(tmp_path_factory.mktemp("etcd")).start()
    yield server
    server.terminate()


@pytest.fixture(scope="package")
def etcd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Three members; whoever kills one starts it again."""
    if reason := real.missing():
        pytest.skip(reason)
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd")).start()
    yield cluster
    cluster.terminate()


@pytest.fixture
def etcd_url(etcd: EtcdServer) -> str:
    """A part of the server that no other test uses."""
    return f"{etcd.url}/{SYSTEM.random_id(4)}"


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Callable[..., EtcdServer]]:
    """Starts servers of this test's own."""
    if reason := real.missing():
        pytest.skip(reason)
    started: list[EtcdServer] = []

    def start(*options: str, scheme: str = "http") -> EtcdServer:
        server = EtcdServer(tmp_path / f"etcd-{len(started)}", "one", *options)
        started.append(server)
        server.scheme = scheme
        server.launch()
        return server if scheme == "https" else server.wait()

    yield start
    for server in started:
        server.terminate()


async def when_it_is_back(ask: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except (Unavailable, StoreUnavailable, OutcomeUnknown, Ambiguous):
                await asyncio.sleep(0.05)
