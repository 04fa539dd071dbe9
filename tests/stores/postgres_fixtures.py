"""One PostgreSQL for all tests of a worker, and the stores in it."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Store
from fencegate.testing.committing import OpenStore
from fencegate_lockservice.stores import open_store as open_by_url
from tests.real import postgres
from tests.real.postgres import PostgresServer

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    reason = postgres.missing()
    if reason is not None:
        pytest.skip(reason)
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.terminate()


@pytest.fixture(scope="session")
def postgres_shared_url(postgres_server: PostgresServer) -> str:
    """One schema for many tests: to make tables takes longer than most of them."""
    url = in_new_schema(postgres_server.url)
    asyncio.run(_opened_once(url))
    return url


async def _opened_once(url: str) -> None:
    await (await open_by_url(url)).close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_shared_url: str) -> str:
    """A store with nothing in it."""
    schema = schema_of(postgres_shared_url)
    for table in ("distributed_locks", "fencegate_entries", "fencegate_log"):
        postgres_server.execute(f"DELETE FROM {schema}.{table}")
    postgres_server.execute(f"UPDATE {schema}.fencegate_meta SET compacted = 0, lines_written = 0, lines_dropped = 0")
    return postgres_shared_url


@pytest.fixture
def postgres_fresh_url(postgres_server: PostgresServer) -> str:
    """A schema that is not there yet."""
    return in_new_schema(postgres_server.url)


@pytest.fixture
async def postgres_store(postgres_url: str) -> AsyncIterator[Store]:
    store = await open_by_url(postgres_url)
    yield store
    await store.close()


def in_new_schema(url: str) -> str:
    return f"{url}?schema=s{os.getpid()}_{next(_numbers)}"


def schema_of(url: str) -> str:
    return url.rpartition("=")[2]


def opener(url: str) -> OpenStore:
    async def open_() -> Store:
        return await open_by_url(url, SYSTEM)

    return open_
