"""The MySQL store when things go wrong, and with several lock service replicas."""

import pytest

from fencegate.clock import Clock
from fencegate.core.ports import Store
from fencegate.testing.fault_suite import FaultSuite, OpenThrough
from fencegate_lockservice.stores import open_store
from tests.real.mariadb import MariadbServer
from tests.stores.replica_suite import ReplicaSuite


class TestMysqlUnderFaults(FaultSuite):
    commit_mark = b"fencegate_end"

    @pytest.fixture
    def server(self, mysql_server: MariadbServer) -> MariadbServer:
        return mysql_server

    @pytest.fixture
    def open_through(self, mysql_database: str) -> OpenThrough:
        async def open_(address: str, clock: Clock) -> Store:
            return await open_store(f"mysql://root@{address}/{mysql_database}", clock)

        return open_


class TestMysqlWithReplicas(ReplicaSuite):
    @pytest.fixture
    def store_url(self, mysql_url: str) -> str:
        return mysql_url
