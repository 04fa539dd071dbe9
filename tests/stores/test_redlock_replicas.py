"""Several lock services over one redlock store."""

import pytest

from tests.stores.replica_suite import ReplicaSuite


class TestRedlockWithReplicas(ReplicaSuite):
    @pytest.fixture
    def store_url(self, redlock_url: str) -> str:
        return redlock_url
