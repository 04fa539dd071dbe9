"""The Redis store under faults: of the line, of the server, and those that lose data (a flush, a failover)."""

import pytest

from fencegate.clock import Clock
from fencegate.core.ports import Store
from fencegate.testing.fault_suite import FaultSuite, FaultyServer, OpenThrough
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.redis_script import COMMIT
from tests.real.redis import RedisServer
from tests.stores.redis_fixtures import redis_server

__all__ = ["redis_server"]


class TestRedisUnderFaults(FaultSuite):
    commit_mark = COMMIT.sha.encode()

    @pytest.fixture
    def server(self, redis_server: RedisServer) -> FaultyServer:
        return redis_server

    @pytest.fixture
    def addresses(self, redis_server: RedisServer) -> list[str]:
        return [f"{redis_server.host}:{redis_server.port}"]

    @pytest.fixture
    def open_through(self) -> OpenThrough:
        async def open_(address: str, clock: Clock) -> Store:
            return await open_store(f"redis://{address}/0", clock)

        return open_
