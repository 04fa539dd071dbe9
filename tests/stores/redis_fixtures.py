"""Redis servers for tests, and parts of them that no other test uses."""

from collections.abc import AsyncIterator, Iterator

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Store
from fencegate_lockservice.stores import open_store
from tests.real import redis as real

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory, redis_program: str) -> Iterator[real.RedisServer]:
    """A server that forgets nothing when it is killed."""
    server = real.RedisServer(tmp_path_factory.mktemp("redis"), *DURABLE, program=redis_program).start()
    yield server
    server.terminate()


@pytest.fixture
def redis_url(redis_server: real.RedisServer) -> str:
    return f"{redis_server.url}?prefix={SYSTEM.random_id(4)}:"


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    store = await open_store(redis_url)
    yield store
    await store.close()


@pytest.fixture
def prefix(redis_url: str) -> str:
    return redis_url.partition("prefix=")[2]
