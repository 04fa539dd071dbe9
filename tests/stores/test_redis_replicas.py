"""Several lock service processes over one Redis server."""

import pytest

from tests.real.redis import RedisServer
from tests.stores.redis_fixtures import redis_server
from tests.stores.replica_suite import ReplicaSuite

__all__ = ["redis_server"]


class TestRedisWithReplicas(ReplicaSuite):
    @pytest.fixture
    def store_url(self, redis_server: RedisServer) -> str:
        return redis_server.url
