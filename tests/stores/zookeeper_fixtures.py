"""ZooKeeper servers for the tests: started once, but for the tests that kill them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Store
from fencegate.testing.committing import OpenStore
from fencegate_lockservice.stores import open_store as open_url
from tests.real import zookeeper as real

if TYPE_CHECKING:
    from kazoo.client import KazooClient


@pytest.fixture(scope="package")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    yield from _started(real.ZooKeeperServer, tmp_path_factory.mktemp("zookeeper"))


@pytest.fixture(scope="package")
def zookeeper_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    yield from _started(real.Ensemble, tmp_path_factory.mktemp("ensemble"))


def _started(make: Callable[[Path], real.ZooKeeperServer | real.Ensemble], folder: Path) -> Iterator[list[str]]:
    """The addresses of servers that are ended afterwards."""
    if reason := real.missing():
        pytest.skip(reason)
    servers = make(folder).start()
    yield servers.addresses
    servers.terminate()


def url_of(addresses: list[str]) -> str:
    """A part of the tree that no other test uses."""
    return f"zookeeper://{','.join(addresses)}/test/{SYSTEM.random_id(5)}"


def opens(url: str) -> OpenStore:
    async def open_() -> Store:
        return await open_url(url)

    return open_


def opening_of(url: str) -> str:
    """The same, for another process."""
    return (
        f"from fencegate_lockservice import stores\nasync def open_store(): return await stores.open_store({url!r})\n"
    )


@contextmanager
def looking_at(url: str) -> Iterator["KazooClient"]:
    """The tree as another client sees it, and can change it."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts=url.split("/")[2])
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()
