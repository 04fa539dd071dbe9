"""A floor that is raised while a holder is at the fence counts for that holder, however it came there."""

import asyncio
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from fencegate.core.errors import StaleToken
from fencegate.core.ports import RowWrite
from fencegate.sql import claimable, fenced
from fencegate_adapters.sql import dialect_postgresql
from fencegate_adapters.sql.dialect import dialect_of
from fencegate_adapters.sql.homes import prepare
from fencegate_adapters.sql.rows import RowsResource
from tests.eventually import eventually_sync
from tests.real.postgres import PostgresServer
from tests.resources.databases import make_database
from tests.resources.sql_notes import engine_of, somebody_waits

_numbers = itertools.count()


@pytest.mark.parametrize("writes_before", [0, 1, 5])  # the more, the shorter the way that the holder takes
def test_a_holder_that_waits_while_a_floor_is_raised_is_refused(
    postgres_server: PostgresServer, writes_before: int
) -> None:
    schema = f"floors{os.getpid()}_{next(_numbers)}"
    postgres_server.execute(f"CREATE SCHEMA {schema}")
    options = f"-csearch_path={schema}"
    url = postgres_server.url.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url, connect_args={"options": options})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (n int)"))

    def write(token: int) -> None:
        with engine.connect() as connection, fenced(connection, lock_key="job:a", token=token):
            connection.execute(text("INSERT INTO numbers VALUES (1)"))

    write(32)
    for _ in range(writes_before):
        write(33)
    with psycopg.connect(postgres_server.url, options=options) as raiser, ThreadPoolExecutor(1) as threads:
        raiser.execute("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")  # as `Dialect.keep_out` does
        raiser.execute("INSERT INTO fencegate_resources VALUES ('r', 'g', 'f', 'enforce', 90)")
        late = threads.submit(write, 33)
        waiting = f"SELECT 1 FROM pg_locks WHERE NOT granted AND relation = '{schema}.fencegate_fences'::regclass"
        eventually_sync(lambda: bool(postgres_server.execute(waiting)) or late.done())
        raiser.commit()
        with pytest.raises(StaleToken):
            late.result(30)
    engine.dispose()


async def test_a_write_through_the_gateway_that_waits_while_a_floor_is_raised_is_refused(
    postgres_server: PostgresServer,
) -> None:
    schema = f"floors{os.getpid()}_{next(_numbers)}"
    postgres_server.execute(f"CREATE SCHEMA {schema}")
    rows = RowsResource("notes", f"{postgres_server.url}?options=-csearch_path%3D{schema}")
    await rows.open()
    write = RowWrite("put", ("a",), {"n": 1})
    await rows.write("notes:a", 33, [write])
    with psycopg.connect(postgres_server.url, options=f"-csearch_path={schema}") as raiser:
        raiser.execute("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")  # as `Dialect.keep_out` does
        raiser.execute("UPDATE fencegate_resources SET floor = 90")
        late = asyncio.create_task(rows.write("notes:a", 33, [write]))
        waiting = f"SELECT 1 FROM pg_locks WHERE NOT granted AND relation = '{schema}.fencegate_fences'::regclass"
        await asyncio.to_thread(eventually_sync, lambda: bool(postgres_server.execute(waiting)) or late.done())
        assert not late.done(), "it passed while a floor was being raised"
        raiser.commit()
        with pytest.raises(StaleToken) as refused:
            await late
    assert refused.value.highest == 90
    await rows.close()


def test_a_holder_that_waits_in_mariadb_while_a_floor_is_raised_is_refused_and_not_given_up_on_as_a_deadlock(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    database = make_database("mariadb", request, tmp_path)
    engine = engine_of(database)

    def write() -> None:
        with engine.connect() as connection, fenced(connection, lock_key="job:a", token=33):
            connection.execute(text("SELECT 1"))

    write()
    database.execute("INSERT INTO fencegate_resources VALUES ('r', 'g', 'f', 'enforce', 1)")
    with engine.connect() as raiser, ThreadPoolExecutor(1) as threads:
        dialect_of("mysql").keep_out(raiser)
        late = threads.submit(write)
        eventually_sync(lambda: somebody_waits(database) or late.done())
        raiser.execute(text("UPDATE fencegate_resources SET floor = 90"))
        raiser.commit()
        with pytest.raises(StaleToken) as refused:
            late.result(30)
    assert refused.value.highest == 90
    engine.dispose()


def test_one_who_stands_still_while_he_raises_a_floor_is_ended_by_the_database(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He keeps everybody from the fences, and nobody who waits for that has a limit of his own."""
    monkeypatch.setattr(dialect_postgresql, "IDLE_MS", 300)
    schema = f"floors{os.getpid()}_{next(_numbers)}"
    postgres_server.execute(f"CREATE SCHEMA {schema}")
    url = make_url(postgres_server.url).set(drivername="postgresql+psycopg")
    engine = create_engine(url, connect_args={"options": f"-csearch_path={schema} -clock_timeout=20s"})
    prepare(engine)
    with pytest.raises(DBAPIError), engine.begin() as raiser:
        dialect_of("postgresql").keep_out(raiser)
        claimable(engine).claim("job:a", 7)
    engine.dispose()
