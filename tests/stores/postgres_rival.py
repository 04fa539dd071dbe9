"""Somebody else at work on the tables of a store in PostgreSQL."""

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
        self._schema = schema
        self._connection = psycopg.connect(server.url)
        self._watching = psycopg.connect(server.url, autocommit=True)
        # So that it is we who find a deadlock, and are its victim.
        self._connection.execute("SET deadlock_timeout = '60s'")
        self._connection.commit()

    def take(self, key: str) -> None:
        """Lock a row; waits for whoever has it."""
        self._connection.execute(f"SELECT FROM {self._schema}.fencegate_entries WHERE key = %s FOR UPDATE", [key])

    def take_revision(self) -> None:
        """Lock what every commit takes last."""
        self._connection.execute(f"SELECT FROM {self._schema}.fencegate_meta FOR UPDATE")

    def let_go(self) -> None:
        self._connection.rollback()

    async def is_waited_for(self, backends: int = 1) -> None:
        """Until so many of ours stand behind it, or behind one who does."""
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"

        def stand() -> bool:
            row = self._watching.execute(waiting).fetchone()
            return row is not None and row[0] >= backends

        await eventually(stand)

    def close(self) -> None:
        self._connection.close()
        self._watching.close()


@pytest.fixture
def rival(postgres_server: PostgresServer, postgres_store: Store, postgres_url: str) -> Iterator[Rival]:
    rival = Rival(postgres_server, schema_of(postgres_url))
    yield rival
    rival.close()
