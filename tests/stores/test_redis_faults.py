"""The Redis store under faults: of the line, of the server, and those that lose data (a flush, a failover)."""

from collections.abc import Iterator

import pytest

from fencegate.clock import Clock
from fencegate.core.ports import Store
from fencegate.testing.crowd import Crowd
from fencegate.testing.fault_suite import FaultSuite, OpenThrough
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.redis.script import Scripts
from tests.real import moved_clock
from tests.real import redis as real
from tests.real.moved_clock import MovedClock
from tests.real.redis import RedisServer
from tests.stores.redis_fixtures import DURABLE


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> MovedClock | None:
    """The clock of the server, where it can be moved."""
    return None if moved_clock.missing() else MovedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module", params=[real.VALKEY, real.REDIS])
def redis_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, clock: MovedClock | None
) -> Iterator[RedisServer]:
    environment, program = clock.environment if clock is not None else None, real.program_of(request.param)
    folder = tmp_path_factory.mktemp("redis")
    server = RedisServer(folder, *DURABLE, environment=environment, program=program).start()
    yield server
    server.terminate()


class TestRedisUnderFaults(FaultSuite):
    commit_mark = Scripts("").commit.sha.encode()

    @pytest.fixture
    def server(self, redis_server: RedisServer) -> RedisServer:
        return redis_server

    @pytest.fixture
    def open_through(self) -> OpenThrough:
        async def open_(address: str, clock: Clock) -> Store:
            return await open_store(f"redis://{address}/0", clock)

        return open_

    async def test_a_server_whose_clock_is_moved(self, crowd: Crowd, clock: MovedClock | None) -> None:
        if clock is None:
            pytest.skip(moved_clock.HOW_TO_GET)
        crowd.told.clocks_moved = True
        async with crowd:
            await crowd.is_served(1)
            try:
                for off_s in (3.0, -3.0, 0.0):
                    clock.move(off_s)
                    await crowd.is_served()
                clock.move(30.0)  # tokens would follow it
                await crowd.fails(4)
            finally:
                clock.move(0.0)
            await crowd.is_served()
