"""A client straight on a store that can't be reached when it is first used."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencegate import StoreUnavailable, connect, sync
from tests.real import redis as real_redis
from tests.stores.redis_fixtures import DURABLE


@pytest.fixture
def server(tmp_path: Path) -> Iterator[real_redis.RedisServer]:
    """Not started yet."""
    server = real_redis.RedisServer(tmp_path, *DURABLE, program=real_redis.program_of(real_redis.VALKEY))
    yield server
    server.terminate()


async def test_whoever_waits_for_a_lock_waits_for_its_store_too(server: real_redis.RedisServer) -> None:
    async with connect(server.url) as locks:
        waiting = asyncio.create_task(locks.hold("k", wait=30).acquire())
        with pytest.raises(StoreUnavailable):  # of the same connection, so that one was tried before it
            await locks.hold("j").acquire()
        assert not waiting.done()
        await asyncio.to_thread(server.start)
        lease = await asyncio.wait_for(waiting, 30)
        assert lease.held


def test_a_wait_for_a_store_that_does_not_come_ends_in_time_and_says_why(server: real_redis.RedisServer) -> None:
    with sync.connect(server.url) as locks, pytest.raises(StoreUnavailable, match="can't be reached"):
        locks.hold("k", wait=0.3).acquire()
    server.start()
    with sync.connect(server.url) as locks, locks.hold("k", wait=0.3) as lease:
        lease.ensure_held()
