"""Redis servers for tests, and parts of them that no other test uses."""

from collections.abc import Iterator

import pytest

from fencegate.clock import SYSTEM
from tests.real import redis as real

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.RedisServer]:
    """A server that forgets nothing when it is killed."""
    if reason := real.missing():
        pytest.skip(reason)
    server = real.RedisServer(tmp_path_factory.mktemp("redis"), *DURABLE).start()
    yield server
    server.terminate()


@pytest.fixture
def redis_url(redis_server: real.RedisServer) -> str:
    return f"{redis_server.url}?prefix={SYSTEM.random_id(4)}:"
