"""The ZooKeeper store: the whole store suite on one server, and on an ensemble of three."""

import pytest

from fencegate.testing.committing import OpenStore
from fencegate.testing.store_suite import StoreSuite
from tests.stores.replica_suite import ReplicaSuite
from tests.stores.zookeeper_fixtures import opening_of, opens, url_of


class TestZooKeeperStore(StoreSuite):
    @pytest.fixture
    def url(self, zookeeper_server: list[str]) -> str:
        return url_of(zookeeper_server)

    @pytest.fixture
    def open_store(self, url: str) -> OpenStore:
        return opens(url)

    @pytest.fixture
    def opening(self, url: str) -> str:
        return opening_of(url)


class TestZooKeeperStoreOnAnEnsemble(TestZooKeeperStore):
    @pytest.fixture
    def url(self, zookeeper_ensemble: list[str]) -> str:
        return url_of(zookeeper_ensemble)


class TestZooKeeperWithReplicas(ReplicaSuite):
    @pytest.fixture
    def store_url(self, zookeeper_ensemble: list[str]) -> str:
        return url_of(zookeeper_ensemble)
