"""Somebody else at work on the tables of a store in PostgreSQL."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from fencegate.core.ports import Store
from tests.eventually import eventually
from tests.real.postgres import PostgresServer
from tests.stores.postgres_fixtures import schema_of


class Rival:
    """Somebody else's transaction on our tables."""

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self._server = server
        self._schema = schema
        self._connection = psycopg.connect(server.url)
        # So that it is we who find a deadlock, and are its victim.
        self._connection.execute("SET deadlock_timeout = '60s'")

    def take(self, key: str) -> None:
        """Lock a row; waits for whoever has it."""
        table = f"{self._schema}.fencegate_entries"
        self._connection.execute(f"SELECT FROM {table} WHERE key = %s FOR UPDATE", [key])

    def let_go(self) -> None:
        self._connection.rollback()

    async def is_waited_for(self) -> None:
        """Until a commit of ours stands behind it."""
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        pid = self._connection.info.backend_pid

        async def stands() -> bool:
            return await asyncio.to_thread(self._server.execute, waiting, [pid]) != [(0,)]

        await eventually(stands)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def rival(postgres_server: PostgresServer, postgres_store: Store, postgres_url: str) -> Iterator[Rival]:
    rival = Rival(postgres_server, schema_of(postgres_url))
    yield rival
    rival.close()
