"""`fence.enforce` on real databases, by each kind of session and connection that it takes."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fencegate.core.errors import StaleToken, UnsafeConfiguration
from fencegate.middleware import Fence, FenceMiddleware, require_fence
from tests.resources.databases import Database, make_database

INSERT = "INSERT INTO notes VALUES ('n')"
Work = Callable[[Fence], Awaitable[None]]


@pytest.fixture
def postgresql(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return with_notes(make_database("postgresql", request, tmp_path))


@pytest.fixture
def mariadb(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return with_notes(make_database("mariadb", request, tmp_path))


def with_notes(database: Database) -> Database:
    database.execute("CREATE TABLE notes (note VARCHAR(20))")
    return database


async def put(work: Work, *tokens: int) -> list[int]:
    """The statuses of requests with these tokens, one after the other."""

    async def handler(request: Request) -> Response:
        await work(require_fence("job:x"))
        return Response(status_code=204)

    app = FenceMiddleware(Starlette(routes=[Route("/", handler, methods=["PUT"])]))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return [(await client.put("/", headers={"Fencing-Token": str(token)})).status_code for token in tokens]


async def assert_fenced(work: Work, database: Database) -> None:
    assert await put(work, 7, 7, 8, 7, 8) == [204, 204, 204, 412, 204]
    assert len(database.fetch("SELECT note FROM notes")) == 4


@pytest.fixture
def engine_of() -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(database: Database, driver: str) -> Any:
        made.append(create_engine(make_url(database.url).set(drivername=driver)))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


@pytest.fixture
async def async_engine(postgresql: Database) -> AsyncIterator[Any]:
    engine = create_async_engine(make_url(postgresql.url).set(drivername="postgresql+psycopg"))
    yield engine
    await engine.dispose()


async def test_a_session_on_postgresql(postgresql: Database, engine_of: Callable[..., Any]) -> None:
    engine = engine_of(postgresql, "postgresql+psycopg")

    async def work(fence: Fence) -> None:
        with Session(engine) as session, fence.enforce(session):
            session.execute(text(INSERT))

    await assert_fenced(work, postgresql)


async def test_a_connection_on_postgresql_that_the_handler_commits(
    postgresql: Database, engine_of: Callable[..., Any]
) -> None:
    engine = engine_of(postgresql, "postgresql+psycopg")

    async def work(fence: Fence) -> None:
        with engine.connect() as connection:
            fence.enforce(connection)
            connection.execute(text(INSERT))
            connection.commit()

    await assert_fenced(work, postgresql)


async def pass_often(engine: Any, token: int) -> None:
    """Until a connection of psycopg is quick enough to let its first statement take the fence along."""

    async def work(fence: Fence) -> None:
        with Session(engine) as session, fence.enforce(session):
            session.execute(text(INSERT))

    assert await put(work, *[token] * 6) == [204] * 6


async def test_it_checks_at_once_where_the_first_statement_could_take_the_fence_along(
    postgresql: Database, engine_of: Callable[..., Any]
) -> None:
    engine = engine_of(postgresql, "postgresql+psycopg")

    async def work(fence: Fence) -> None:
        with Session(engine) as session:
            fence.enforce(session)

    await pass_often(engine, 7)
    postgresql.execute("UPDATE fencegate_fences SET token = 8")
    assert await put(work, 7, 8) == [412, 204]


@pytest.mark.parametrize("is_block", [False, True])
@pytest.mark.parametrize("is_quick", [False, True])
async def test_a_refusal_of_a_later_transaction_that_the_handler_swallows_is_still_no_success(
    postgresql: Database, engine_of: Callable[..., Any], is_block: bool, is_quick: bool
) -> None:
    engine = engine_of(postgresql, "postgresql+psycopg")

    async def work(fence: Fence) -> None:
        with Session(engine) as session, fence.enforce(session) if is_block else nullcontext(fence.enforce(session)):
            session.execute(text(INSERT))
            session.commit()
            postgresql.execute("UPDATE fencegate_fences SET token = 8")
            with pytest.raises(StaleToken):
                session.execute(text(INSERT))
            session.rollback()

    if is_quick:
        await pass_often(engine, 7)
    before = postgresql.fetch("SELECT note FROM notes")
    assert await put(work, 7) == [503]  # a part of it is there
    assert len(postgresql.fetch("SELECT note FROM notes")) == len(before) + 1


async def test_what_a_session_does_behind_its_block_is_not_taken_for_a_passage(
    postgresql: Database, engine_of: Callable[..., Any]
) -> None:
    engine = engine_of(postgresql, "postgresql+psycopg")

    async def work(fence: Fence) -> None:
        with Session(engine) as session:
            with fence.enforce(session):
                session.execute(text(INSERT))
            postgresql.execute("UPDATE fencegate_fences SET token = 8")
            with pytest.raises(StaleToken):
                fence.enforce(session)
            session.execute(text("SELECT 1"))

    assert await put(work, 7) == [503]


async def test_an_async_session_that_nobody_awaited_the_fence_of_can_not_commit_what_it_has_begun(
    postgresql: Database, async_engine: Any
) -> None:
    async def work(fence: Fence) -> None:
        async with AsyncSession(async_engine) as session:
            fence.enforce(session)
            with pytest.raises(UnsafeConfiguration, match="awaited"):
                await session.execute(text(INSERT))
            await session.execute(text(INSERT))
            with pytest.raises(UnsafeConfiguration, match="awaited"):
                await session.commit()

    assert await put(work, 7) == [500]
    assert postgresql.fetch("SELECT note FROM notes") == []


async def test_a_scoped_session_on_mariadb(mariadb: Database, engine_of: Callable[..., Any]) -> None:
    sessions = scoped_session(sessionmaker(engine_of(mariadb, "mysql+pymysql")))

    async def work(fence: Fence) -> None:
        try:
            with fence.enforce(sessions):
                sessions.execute(text(INSERT))
        finally:
            sessions.remove()

    await assert_fenced(work, mariadb)


async def test_an_async_session_on_postgresql(postgresql: Database, async_engine: Any) -> None:
    async def work(fence: Fence) -> None:
        async with AsyncSession(async_engine) as session, fence.enforce(session):
            await session.execute(text(INSERT))

    await assert_fenced(work, postgresql)


async def test_an_async_connection_on_postgresql_that_the_handler_commits(
    postgresql: Database, async_engine: Any
) -> None:
    async def work(fence: Fence) -> None:
        async with async_engine.connect() as connection:
            await fence.enforce(connection)
            await connection.execute(text(INSERT))
            await connection.commit()

    await assert_fenced(work, postgresql)


async def test_an_async_connection_that_nobody_awaited_the_fence_of_can_not_begin(
    postgresql: Database, async_engine: Any
) -> None:
    async def work(fence: Fence) -> None:
        async with async_engine.connect() as connection:
            fence.enforce(connection)
            await connection.execute(text(INSERT))
            await connection.commit()

    assert await put(work, 7) == [500]
    assert postgresql.fetch("SELECT note FROM notes") == []


async def test_a_connection_of_psycopg(postgresql: Database) -> None:
    async def work(fence: Fence) -> None:
        with psycopg.connect(postgresql.url) as connection, fence.enforce(connection):
            connection.execute(INSERT)

    await assert_fenced(work, postgresql)


async def test_an_async_connection_of_psycopg(postgresql: Database) -> None:
    async def work(fence: Fence) -> None:
        async with await psycopg.AsyncConnection.connect(postgresql.url) as connection, fence.enforce(connection):
            await connection.execute(INSERT)

    await assert_fenced(work, postgresql)


async def test_a_rollback_that_the_handler_raises_as_psycopg_has_it_is_no_error(postgresql: Database) -> None:
    async def work(fence: Fence) -> None:
        with psycopg.connect(postgresql.url) as connection, fence.enforce(connection):
            connection.execute(INSERT)
            raise psycopg.Rollback

    async def async_work(fence: Fence) -> None:
        async with await psycopg.AsyncConnection.connect(postgresql.url) as connection, fence.enforce(connection):
            await connection.execute(INSERT)
            raise psycopg.Rollback

    assert [await put(work, 7), await put(async_work, 7)] == [[204], [204]]
    assert postgresql.fetch("SELECT note FROM notes") == []


async def test_a_connection_of_psycopg_without_a_block_is_rolled_back_and_never_answered_as_done(
    postgresql: Database,
) -> None:
    async def work(fence: Fence) -> None:
        connection = psycopg.connect(postgresql.url)
        fence.enforce(connection)
        connection.execute(INSERT)

    assert await put(work, 7) == [500]
    assert postgresql.fetch("SELECT note FROM notes") == []
