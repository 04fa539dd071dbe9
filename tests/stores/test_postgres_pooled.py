"""PostgreSQL through a transaction-pooling proxy: each statement may run on another connection."""

import asyncio
from collections.abc import Iterator

import pytest

from fencegate.clock import SYSTEM
from fencegate.engine import Engine
from fencegate.testing.caller import Caller
from fencegate.testing.change_log_suite import first_answer
from fencegate.testing.committing import OpenStore, put, write
from fencegate.testing.crowd import Crowd
from fencegate.testing.store_suite import StoreSuite
from fencegate_lockservice.stores import open_store as open_by_url
from fencegate_lockservice.stores.postgres.store import PostgresStore
from tests.eventually import eventually
from tests.real import pgbouncer
from tests.real.pgbouncer import Pgbouncer
from tests.real.postgres import PostgresServer
from tests.stores.postgres_fixtures import in_new_schema, opener
from tests.stores.test_postgres_commits import terminating


@pytest.fixture(scope="module")
def pooler(postgres_server: PostgresServer) -> Iterator[Pgbouncer]:
    reason = pgbouncer.missing()
    if reason is not None:
        pytest.skip(reason)
    pooler = Pgbouncer(postgres_server)
    yield pooler
    pooler.terminate()


@pytest.fixture
def pooled_url(pooler: Pgbouncer, postgres_server: PostgresServer, postgres_url: str) -> str:
    return postgres_url.replace(f":{postgres_server.port}/", f":{pooler.port}/")


async def test_tables_are_made_through_a_pooler(pooler: Pgbouncer) -> None:
    store = await open_by_url(in_new_schema(pooler.url))
    await write(store, put("k"))
    await store.close()


class TestPostgresStoreThroughAPooler(StoreSuite):
    @pytest.fixture
    def open_store(self, pooled_url: str) -> OpenStore:
        return opener(pooled_url)

    @pytest.fixture
    def opening(self, pooled_url: str) -> str:
        return (
            "from fencegate_lockservice import stores\n"
            f"async def open_store(): return await stores.open_store({pooled_url!r})\n"
        )


async def test_commits_and_loads_of_many_replicas_go_through_a_small_pool(pooled_url: str) -> None:
    stores = [await open_by_url(pooled_url) for _ in range(5)]
    for turn in range(10):
        changes = [put(f"{turn}-{number}") for number in range(20)]
        await asyncio.gather(*(write(stores[at % 5], change) for at, change in enumerate(changes)))
        found = await stores[turn % 5].load([change.key for change in changes])
        assert {key: entry.version for key, entry in found.items()} == {c.key: c.version for c in changes}
    assert any("pooler" in finding.what for finding in await stores[0].inspect())
    for store in stores:
        await store.close()


async def test_a_lock_is_handed_over_between_replicas_behind_a_pooler(pooled_url: str) -> None:
    stores = [await open_by_url(pooled_url) for _ in range(2)]
    engines = [Engine(store, SYSTEM, replica=f"replica-{number}") for number, store in enumerate(stores)]
    for engine in engines:
        await engine.start()
    one, two = Caller(engines[0], "one"), Caller(engines[1], "two")
    tokens = []
    for _ in range(5):
        hold = await one.acquire("k", wait_s=60, ttl_s=600)
        waiting = asyncio.ensure_future(two.acquire("k", wait_s=60, ttl_s=600))
        await one.until_waiting("k", "two")
        await one.release("k", hold)
        async with asyncio.timeout(30):
            handed = await waiting
        tokens += [hold.token, handed.token]
        await two.release("k", handed)
    assert tokens == sorted(set(tokens))
    for engine, store in zip(engines, stores, strict=True):
        await engine.close()
        await store.close()


@pytest.mark.parametrize("pooled", [True, False])
async def test_notifications_are_used_where_they_can_arrive_and_only_there(
    postgres_url: str, pooled: bool, request: pytest.FixtureRequest
) -> None:
    store = await open_by_url(request.getfixturevalue("pooled_url") if pooled else postgres_url)
    assert isinstance(store, PostgresStore)
    stream = store.changes(None)
    await first_answer(stream)
    if pooled:
        await eventually(lambda: store._tail.is_pooled)
    else:
        await eventually(lambda: store._tail.listens)
    await stream.aclose()
    await store.close()


async def test_backends_ended_behind_a_pooler_break_no_promise(
    postgres_server: PostgresServer, pooled_url: str
) -> None:
    stores = [await open_by_url(pooled_url) for _ in range(2)]
    engines = [Engine(store, SYSTEM, replica=f"replica-{number}") for number, store in enumerate(stores)]
    for engine in engines:
        await engine.start()
    # A pooler replaces a backend that ended between two transactions, and nobody hears of it: many have to be at work.
    async with Crowd(engines, size=24, locks=24) as crowd:
        await crowd.is_served(1)
        async with terminating(postgres_server):
            await crowd.fails(3)
        await crowd.is_served()
    for engine, store in zip(engines, stores, strict=True):
        await engine.close()
        await store.close()
