"""PostgreSQL under faults, and under several replicas."""

import pytest

from fencegate.clock import Clock
from fencegate.core.ports import Store
from fencegate.testing.fault_suite import FaultSuite
from fencegate.testing.faulty_replicas import FaultyServer, OpenThrough
from fencegate_lockservice.stores import open_store
from tests.real.postgres import PostgresServer
from tests.stores.replica_suite import ReplicaSuite


class TestPostgresUnderFaults(FaultSuite):
    commit_mark = b"fencegate_commit"

    @pytest.fixture
    def server(self, postgres_server: PostgresServer) -> FaultyServer:
        return postgres_server

    @pytest.fixture
    def open_through(self, postgres_server: PostgresServer, postgres_shared_url: str) -> OpenThrough:
        async def open_(address: str, clock: Clock) -> Store:
            return await open_store(postgres_shared_url.replace(f"127.0.0.1:{postgres_server.port}", address), clock)

        return open_


class TestPostgresWithReplicas(ReplicaSuite):
    @pytest.fixture
    def store_url(self, postgres_shared_url: str) -> str:
        return postgres_shared_url
