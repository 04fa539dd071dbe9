"""Several lock service processes over one etcd."""

import pytest

from tests.stores.replica_suite import ReplicaSuite


class TestEtcdWithReplicas(ReplicaSuite):
    @pytest.fixture
    def store_url(self, etcd_url: str) -> str:
        return etcd_url
