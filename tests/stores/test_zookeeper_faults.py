"""The ZooKeeper store when servers and lines fail."""

import inspect
from collections.abc import Iterator, Sequence

import pytest

from fencegate.clock import SYSTEM, Clock
from fencegate.core.ports import Store
from fencegate.testing.fault_suite import FaultSuite, OpenThrough
from fencegate_lockservice.stores import open_store as open_url
from tests.real import zookeeper as real

pytest_plugins = ["tests.stores.zookeeper_fixtures"]


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real.ZooKeeperServer]:
    """A server that tests may kill and stop; they leave it running."""
    if reason := real.missing():
        pytest.skip(reason)
    server = real.ZooKeeperServer(tmp_path_factory.mktemp("zookeeper-own")).start()
    yield server
    server.terminate()


class TestZooKeeperUnderFaults(FaultSuite):
    commit_mark = b"\xff\xff\xff\xff\x01\xff\xff\xff\xff"  # the end of a multi

    @pytest.fixture
    def server(self, request: pytest.FixtureRequest) -> real.ZooKeeperServer:
        server: real.ZooKeeperServer = request.getfixturevalue("own_server")
        return server

    @pytest.fixture
    def addresses(self, request: pytest.FixtureRequest) -> Sequence[str]:
        """Where only lines fail, the server that all use will do."""
        if "server" in inspect.signature(request.function).parameters:
            own: real.ZooKeeperServer = request.getfixturevalue("own_server")
            return own.addresses
        shared: list[str] = request.getfixturevalue("one_server")
        return shared

    @pytest.fixture
    def open_through(self) -> OpenThrough:
        root = f"faults/{SYSTEM.random_id(5)}"

        async def open_(address: str, clock: Clock) -> Store:
            return await open_url(f"zookeeper://{address}/{root}", clock)

        return open_
