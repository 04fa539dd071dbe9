"""The redlock store under faults: all nodes at once by the fault suite, some of them here."""

from collections.abc import Sequence

import pytest

from fencegate.clock import SYSTEM, Clock
from fencegate.core.ports import Store
from fencegate.testing.fault_suite import FaultSuite, OpenThrough
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.redlock.node import ACCEPT
from tests.stores.redlock_fixtures import Five


class All:
    """All nodes as one server."""

    def __init__(self, servers: Five) -> None:
        self.servers = servers

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def resume(self) -> None:
        for server in self.servers:
            server.resume()


@pytest.fixture
def open_through() -> OpenThrough:
    """The nodes have names, since each replica finds them at addresses of its own."""
    prefix = SYSTEM.random_id(4)

    async def open_(address: str, clock: Clock) -> Store:
        return await open_store(f"redlock://{address}?names=a,b,c,d,e&prefix={prefix}:", clock)

    return open_


class TestRedlockUnderFaults(FaultSuite):
    commit_mark = ACCEPT.digest.encode()

    @pytest.fixture
    def server(self, lasting_five: Five) -> All:
        return All(lasting_five)

    @pytest.fixture
    def addresses(self, lasting_five: Five) -> Sequence[str]:
        return [f"{server.host}:{server.port}" for server in lasting_five]
