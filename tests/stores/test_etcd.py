"""The etcd store against real servers, one and three: the whole store suite, and what is particular to it."""

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Store
from fencegate.testing.committing import OpenStore
from fencegate.testing.store_suite import StoreSuite
from fencegate_lockservice.stores import open_store as open_url
from tests.real.etcd import EtcdCluster


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
    def url(self, etcd_url: str) -> str:
        return etcd_url


class TestEtcdClusterStore(_Suite):
    @pytest.fixture
    def url(self, etcd_cluster: EtcdCluster) -> str:
        """A part of the cluster that no other test uses."""
        return f"{etcd_cluster.url}/{SYSTEM.random_id(4)}"
