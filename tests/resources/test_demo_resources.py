"""The demo over a user's own servers: the point is proved on each of them, and each is left as it was."""

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from fencegate_adapters.objects.bucket.blobs import Blobs
from fencegate_adapters.objects.bucket.url import BucketUrl
from fencegate_demo.footprint import traceless
from fencegate_demo.plan import NotRun, Plan, Run, Wishes, make_plan
from fencegate_demo.stage import perform
from fencegate_demo.startable.here import Here, running
from fencegate_demo.venues import StoreVenue
from tests.real import seaweed
from tests.real.mariadb import MariadbServer
from tests.real.postgres import PostgresServer
from tests.resources.databases import Database, Mariadb, Postgresql
from tests.resources.redis_fixtures import redis_server, redis_url

__all__ = ["redis_server", "redis_url"]


async def prove(urls: list[str], folder: Path) -> None:
    plans = [make_plan(Wishes("gc-pause", resource=url), folder) for url in urls]
    plan: Plan = replace(plans[0], runs=[run for each in plans for run in each.runs])
    async with traceless(plan) as remarks:
        results = await perform(plan, folder, lambda _trial, _event: None)
    assert remarks == []
    assert {result.run.resource.partition(":")[0]: result.proved for result in results} == {
        url.partition(":")[0]: True for url in urls
    }
    for result in results:
        assert result.fenced.verdict.stale_writes > 1
        assert result.unfenced.verdict.stale_accepted == result.unfenced.verdict.stale_writes > 1


async def test_databases_are_left_as_they_were(
    tmp_path: Path, postgres_server: PostgresServer, mysql_server: MariadbServer
) -> None:
    databases: list[Database] = [Postgresql(postgres_server), Mariadb(mysql_server)]
    for database in databases:
        database.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)", "INSERT INTO mine VALUES (7)")
    await prove([database.url for database in databases], tmp_path)
    for database in databases:
        where = "current_schema()" if database.kind == "postgresql" else "database()"
        tables = f"SELECT table_name FROM information_schema.tables WHERE table_schema = {where}"
        assert database.fetch(tables) == [("mine",)]
        assert database.fetch("SELECT id FROM mine") == [(7,)]


async def test_redis_and_buckets_are_left_as_they_were(tmp_path: Path, redis_url: str, seaweed_url: str) -> None:
    with closing(redis.Redis.from_url(redis_url)) as client:
        client.set("mine", "kept")
        await prove([redis_url, seaweed_url], tmp_path)
        assert client.keys("*") == [b"mine"]
    blobs = Blobs("demo", BucketUrl.parse("demo", seaweed_url), 30)
    assert [key async for key in blobs.keys("")] == []
    await blobs.close()


def test_an_s3_server_leaves_nothing_in_the_folder_of_all(tmp_path: Path) -> None:
    if reason := seaweed.missing():
        pytest.skip(reason)
    server = seaweed.SeaweedServer(tmp_path / "s3").start()
    its_own = {str(server.pid), *server.ports}
    server.terminate()
    # Names end in `-PORT.sock` or `.PID`; other servers of this kind may be at work.
    assert [path for path in Path("/tmp").glob("*weed*") if its_own & set(re.split("[-.]", path.name))] == []


def test_a_server_that_can_not_be_started_is_told_with_the_reason(tmp_path: Path) -> None:
    here = Here(missing={"redis": "no server: pip install it"})
    plan = make_plan(Wishes(everything=True, store="sqlite", resource="redis"), tmp_path, here)
    assert plan.runs == []
    assert plan.not_run == [NotRun("redis", "no server: pip install it")]


async def test_a_service_that_does_not_start_is_a_line_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "service.db").mkdir()  # where it wants to keep its values
    async with running((), ("service",), tmp_path) as here:
        assert here.resources == {}
        assert "did not start" in here.missing["service"]


async def test_a_run_that_breaks_off_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    plan = make_plan(Wishes("gc-pause"), tmp_path)
    (good,) = plan.runs
    bad = replace(make_plan(Wishes("gc-pause"), tmp_path).runs[0], store=StoreVenue("no store", "gopher://x"))
    told: list[tuple[Run, str]] = []
    plan = replace(plan, runs=[bad, good])
    (result,) = await perform(
        plan, tmp_path, lambda _trial, _event: None, lambda run, why: told.append((run, why.detail))
    )
    assert result.run is good
    assert result.proved
    ((run, why),) = told
    assert run is bad
    assert "gopher" in why
