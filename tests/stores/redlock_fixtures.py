"""Five independent servers, as a redlock store asks for."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fencegate.clock import SYSTEM
from tests.real.redis import RedisServer, missing

SAFE = ("--appendonly", "yes", "--appendfsync", "always")
Five = list[RedisServer]


@contextmanager
def started(folder: Path, number: int = 5, *options: str) -> Iterator[Five]:
    """So many servers, started, and ended afterwards."""
    if reason := missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        servers = []
        for place in range(number):
            server = RedisServer(folder / str(place), *(options or SAFE))
            stack.callback(server.terminate)
            servers.append(server.start())
        yield servers


def address(servers: Five) -> str:
    return "redlock://" + ",".join(f"{server.host}:{server.port}" for server in servers)


@pytest.fixture(scope="package")
def lasting_five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Five]:
    """Servers for all tests that do them no harm: each has a prefix of its own."""
    with started(tmp_path_factory.mktemp("redlock")) as servers:
        yield servers


@pytest.fixture
def redlock_url(lasting_five: Five) -> str:
    return f"{address(lasting_five)}?prefix={SYSTEM.random_id(4)}:"


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Five]:
    """Servers that may be killed, stopped and wiped."""
    with started(tmp_path) as servers:
        yield servers
