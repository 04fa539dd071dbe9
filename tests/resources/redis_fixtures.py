"""A Redis server for the tests of resources, with a database for each test, since fences are named by lock keys."""

import itertools
from collections.abc import Iterator

import pytest

from tests.real import redis as real

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
MANY = ("--databases", "1000")
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory, redis_program: str) -> Iterator[real.RedisServer]:
    """A server that no test kills or flushes."""
    server = real.RedisServer(tmp_path_factory.mktemp("redis"), *DURABLE, *MANY, program=redis_program).start()
    yield server
    server.terminate()


@pytest.fixture
def redis_url(redis_server: real.RedisServer) -> str:
    """A database that no other test uses."""
    return f"redis://{redis_server.address}/{next(_numbers)}"
