"""The etcd store against real servers, one and three: the whole store suite, and what is particular to it."""

from collections.abc import Iterator

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Store
from fencegate.testing.committing import OpenStore
from fencegate.testing.store_suite import StoreSuite
from fencegate_lockservice.stores import open_store as open_url
from tests.real import etcd as real


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.EtcdServer]:
    if reason := real.missing():
        pytest.skip(reason)
    server = real.EtcdServer(tmp_path_factory.mktemp("etcd")).start()
    yield server
    server.terminate()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.EtcdCluster]:
    if reason := real.missing():
        pytest.skip(reason)
    cluster = real.EtcdCluster(tmp_path_factory.mktemp("etcd")).start()
    yield cluster
    cluster.terminate()


class _Suite(StoreSuite):
    @pytest.fixture
    def open_store(self, url: str) -> OpenStore:
        async def open_() -> Store:
            return await open_url(url)

        return open_

    @pytest.fixture
    def opening(self, url: str) -> str:
        return (
            "from fencegate_lockservice import stores\n"
            f"async def open_store(): return await stores.open_store({url!r})\n"
        )


class TestEtcdStore(_Suite):
    @pytest.fixture
    def url(self, server: real.EtcdServer) -> str:
        """A part of the server that no other test uses."""
        return f"{server.url}/{SYSTEM.random_id(4)}"


class TestEtcdClusterStore(_Suite):
    @pytest.fixture
    def url(self, cluster: real.EtcdCluster) -> str:
        return f"{cluster.url}/{SYSTEM.random_id(4)}"
