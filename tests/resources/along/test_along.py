"""In PostgreSQL the first statement takes BEGIN and the passage along: whatever comes first, nothing is written without
the fence, and all else is as without one (ADR 29)."""

import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import generators, pq
from sqlalchemy import Engine, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from fencegate.core.errors import ResourceUnavailable, StaleToken
from fencegate.sql import fenced
from fencegate_adapters.sql import straight
from fencegate_adapters.sql.straight import Straight
from tests.eventually import eventually_sync
from tests.resources.along.ways import ADD, TAKE_ALONG, WARM, WAYS, a_lock_is_waited_for, backend, by_driver
from tests.resources.databases import Database
from tests.resources.sql_notes import (
    KEY,
    Lease,
    Note,
    async_engine_of,
    engine_of,
    mark,
    note,
    texts,
)


@pytest.mark.parametrize("way", WAYS)
def test_whatever_comes_first_passes_or_is_refused_as_stale(
    warm: Engine, other: Engine, ways: list[str], way: Callable[[Session], object]
) -> None:
    connection = backend(warm)
    ways.clear()
    with Session(warm) as session, fenced(session, Lease(7)):
        way(session)
    assert ways == ["along" if way in TAKE_ALONG else "alone"]
    written = texts(warm)
    note(other, 8, "of 8")
    with pytest.raises(StaleToken) as refused, Session(warm) as session, fenced(session, Lease(7)):
        way(session)
    assert ways == 2 * ways[:1]
    assert refused.value.highest == 8
    assert texts(warm) == [*written, "of 8"]
    assert backend(warm) == connection


@pytest.mark.parametrize("way", WAYS)
def test_whatever_comes_first_passes_after_the_prepared_statement_was_dropped(
    warm: Engine, way: Callable[[Session], object]
) -> None:
    """As the driver does with all of them when it rolls back."""
    connection = backend(warm)
    with warm.connect() as one:
        one.exec_driver_sql("DEALLOCATE ALL")
        one.commit()
    with Session(warm) as session, fenced(session, Lease(7)):
        way(session)
    assert backend(warm) == connection


@pytest.mark.parametrize("way", WAYS)
def test_whatever_comes_first_is_refused_below_a_floor(
    database: Database, warm: Engine, way: Callable[[Session], object]
) -> None:
    before = texts(warm)
    with psycopg.connect(database.url) as raiser:
        raiser.execute("INSERT INTO fencegate_resources VALUES ('r', 'g', 'f', 'enforce', 90)")
    with pytest.raises(StaleToken) as refused, Session(warm) as session, fenced(session, Lease(7)):
        way(session)
    assert refused.value.highest == 90
    assert texts(warm) == before


def test_a_refusal_that_is_swallowed_opens_no_way_for_cursors_of_the_driver(warm: Engine, other: Engine) -> None:
    note(other, 8, "of 8")
    before = texts(warm)
    with Session(warm) as session, pytest.raises(StaleToken), fenced(session, Lease(7)):
        cursor = session.connection().connection.cursor()
        with pytest.raises(StaleToken):
            cursor.execute(ADD, ["written"])
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            cursor.execute(ADD, ["written"])
        session.commit()  # of nothing: the server rolls it back
        session.execute(insert(Note).values(text="written"))
    assert texts(warm) == before


def test_one_who_raises_the_mark_at_this_moment_is_waited_for(database: Database, warm: Engine, other: Engine) -> None:
    """Its row is locked, so it is passed over; and the usual way waits."""
    with psycopg.connect(database.url) as newer:
        newer.execute("UPDATE fencegate_fences SET token = 8 WHERE lock_key = %s", [KEY.encode()])
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(note, warm, 7, "late")
            eventually_sync(lambda: a_lock_is_waited_for(database) or waiting.done())
            assert not waiting.done()
            newer.commit()
            with pytest.raises(StaleToken):
                waiting.result(30)
            assert mark(other) == 8
        newer.rollback()


def test_a_cursor_of_the_driver_does_not_pass_one_who_raises_the_mark_at_this_moment(
    database: Database, warm: Engine
) -> None:
    before = texts(warm)
    with psycopg.connect(database.url) as newer:
        newer.execute("UPDATE fencegate_fences SET token = 8 WHERE lock_key = %s", [KEY.encode()])
        with pytest.raises(ResourceUnavailable) as refused, Session(warm) as session, fenced(session, Lease(7)):
            by_driver(session)
        assert refused.value.outcome == "not-written"
        newer.rollback()
    assert texts(warm) == before
    note(warm, 7, "on it goes")


def test_a_transaction_of_one_statement_waits_twice(warm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """For BEGIN, the passage and the statement together, and for COMMIT. Without a fence it waits three times."""
    for number in range(3):  # until the driver has prepared its statement, too
        note(warm, 7, f"warm {number}")
    messages = []

    def counted(pgconn: Any) -> Any:
        messages.append(pgconn)
        return (yield from generators.fetch_many(pgconn))

    waits: list[int] = []
    wait = psycopg.Connection.wait

    def noted(self: Any, *given: Any, **named: Any) -> Any:
        is_idle = self.pgconn.transaction_status == pq.TransactionStatus.IDLE
        result = wait(self, *given, **named)
        if not is_idle or self.pgconn.transaction_status != pq.TransactionStatus.IDLE:  # else the driver said nothing
            waits.append(self.pgconn.transaction_status)
        return result

    monkeypatch.setattr(straight, "fetch_many", counted)
    monkeypatch.setattr(psycopg.Connection, "wait", noted)
    note(warm, 7, "written")
    assert waits == [pq.TransactionStatus.INTRANS, pq.TransactionStatus.IDLE]
    assert len(messages) == 3  # the passage, the statement, and the end of the one message


def test_a_first_statement_that_fails_undoes_its_transaction_and_no_more(warm: Engine, ways: list[str]) -> None:
    connection = backend(warm)
    ways.clear()
    with pytest.raises(IntegrityError), Session(warm) as session, fenced(session, Lease(7)):
        session.execute(insert(Note).values(text="0"))  # which is there already
    with Session(warm) as session, fenced(session, Lease(7)):
        with pytest.raises(IntegrityError), session.begin_nested():
            session.execute(insert(Note).values(text="0"))
        session.execute(insert(Note).values(text="written"))
    assert ways == ["along", "alone"]
    assert texts(warm)[WARM:] == ["written"]
    assert backend(warm) == connection


@pytest.mark.parametrize("way", WAYS)
def test_behind_a_value_that_the_driver_does_not_know_the_fence_is_still_to_be_passed(
    warm: Engine, other: Engine, ways: list[str], way: Callable[[Session], object]
) -> None:
    """The driver finds that out before it sends anything."""
    note(other, 8, "of 8")
    before = texts(warm)
    ways.clear()
    with pytest.raises(StaleToken), Session(warm) as session, fenced(session, Lease(7)):
        with pytest.raises(DBAPIError) as unknown:
            session.execute(text("SELECT :value"), {"value": object()})
        assert "cannot adapt" in str(unknown.value)
        assert ways == ["along"]
        way(session)
    assert texts(warm) == before
    backend(warm)


def test_a_statement_that_was_to_be_prepared_along_a_passage_that_failed_is_not_taken_for_prepared(
    warm: Engine, other: Engine, ways: list[str]
) -> None:
    statement = insert(Note).returning(Note.id)
    note(other, 8, "of 8")
    ways.clear()
    for number in range(12):  # the driver prepares what it has met five times
        token = 7 if number % 2 else 8
        with (
            contextlib.nullcontext() if token == 8 else pytest.raises(StaleToken),
            Session(warm) as session,
            fenced(session, Lease(token)),
        ):
            session.execute(statement.values(text=f"{token} {number}"))
    assert ways.count("along") == 12
    assert texts(warm)[WARM + 1 :] == [f"8 {number}" for number in range(0, 12, 2)]


@pytest.mark.parametrize(
    ("cursors", "several"),
    [
        (psycopg.ClientCursor, f"DELETE FROM notes; {ADD % '%(text)s'}; SELECT 1"),
        (psycopg.Cursor, f"DELETE FROM notes; {ADD % repr('written')}; SELECT 1"),
    ],
)
def test_several_statements_in_one_are_executed_as_without_a_fence(
    database: Database, warm: Engine, ways: list[str], cursors: type, several: str
) -> None:
    """The driver sends them without values: it has put those in itself, or none is asked for."""
    engine = engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1, connect_args={"cursor_factory": cursors})
    for _ in range(WARM):
        with Session(engine) as session, fenced(session, Lease(7)):
            session.execute(select(1))
    ways.clear()
    for _ in range(2 * WARM):  # the driver prepares what it has met five times
        with Session(engine) as session, fenced(session, Lease(7)):
            session.connection().exec_driver_sql(several, {"text": "written"})
    assert ways.count("alone") == 2 * WARM
    assert texts(warm) == ["written"]
    note(warm, 8, "of 8")
    with pytest.raises(StaleToken), Session(engine) as session, fenced(session, Lease(7)):
        session.connection().exec_driver_sql(several, {"text": "stale"})
    assert texts(warm) == ["written", "of 8"]
    backend(engine)
    engine.dispose()


@pytest.mark.parametrize("threshold", [5, 0])
def test_a_first_statement_that_cannot_be_sent_is_an_error_of_its_own(
    database: Database, warm: Engine, other: Engine, ways: list[str], threshold: int
) -> None:
    """It has more values than the protocol has room for, which is found out behind the passage."""
    engine = engine_of(
        database, pool_size=1, max_overflow=0, pool_timeout=1, connect_args={"prepare_threshold": threshold}
    )
    for _ in range(WARM):
        with Session(engine) as session, fenced(session, Lease(7)):
            session.execute(select(1))
    connection = backend(engine)
    values = {f"v{number}": number for number in range(65_536)}
    too_many = text("SELECT " + ", ".join(f":{name}" for name in values))
    ways.clear()
    with Session(engine) as session, fenced(session, Lease(7)):
        with pytest.raises(DBAPIError, match="number of parameters") as failed:
            session.execute(too_many, values)
        assert not failed.value.connection_invalidated
        session.add(Note(text="on it goes"))
    assert ways == ["along"]
    assert texts(warm)[WARM:] == ["on it goes"]
    note(other, 8, "of 8")
    with pytest.raises(StaleToken), Session(engine) as session, fenced(session, Lease(7)):
        session.execute(too_many, values)
    assert backend(engine) == connection
    engine.dispose()


def test_a_first_statement_that_cannot_be_prepared_is_not_taken_for_prepared(
    database: Database, warm: Engine, ways: list[str]
) -> None:
    """Where the caller goes on without a rollback, by which the driver would forget it."""
    engine = engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1, connect_args={"prepare_threshold": 0})
    for _ in range(WARM):
        with Session(engine) as session, fenced(session, Lease(7)):
            session.execute(select(1))
    statement = text("SELECT * FROM later WHERE id = :id")
    ways.clear()
    with Session(engine) as session, fenced(session, Lease(7)):
        with pytest.raises(DBAPIError, match="does not exist"):
            session.execute(statement, {"id": 1})
        session.commit()  # of nothing: the server rolls it back
    assert ways == ["along"]
    database.execute("CREATE TABLE later (id integer)")
    with Session(engine) as session:
        assert session.execute(statement, {"id": 1}).all() == []
    engine.dispose()


def test_a_statement_that_is_executed_behind_a_second_look_stays_prepared(
    database: Database, warm: Engine, ways: list[str]
) -> None:
    """What the driver believes to be prepared is there: here it prepares at once, and drops all when it rolls back."""
    engine = engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1, connect_args={"prepare_threshold": 0})
    for number in range(2 * WARM):
        with Session(engine) as session, fenced(session, Lease(7)):
            session.execute(insert(Note).values(text=f"written {number}"))
            assert session.scalar(text("SELECT 1 + :value"), {"value": number}) == number + 1
        if number % 2:
            with Session(engine) as session:
                session.execute(text("SELECT :value"), {"value": 1})
                session.rollback()
    assert ways.count("along") > WARM
    assert len(texts(warm)) == 3 * WARM
    engine.dispose()


def test_a_driver_that_sends_a_statement_in_another_way_than_is_known_writes_nothing(
    warm: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another release of it might. It is too late to pass, but not to undo."""
    before = texts(other)

    def not_taken(self: Straight, driver: Any) -> None:
        self.is_planned = False
        del driver.__dict__["wait"]

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Straight, "take_along", not_taken)
        with pytest.raises(ResourceUnavailable) as refused, Session(warm) as session, fenced(session, Lease(7)):
            session.execute(insert(Note).values(text="alone"))
    assert refused.value.outcome == "not-written"
    assert texts(other) == before
    note(warm, 7, "on it goes")


async def by_async_flush(session: AsyncSession) -> None:
    session.add(Note(text="written"))


async def by_async_driver(session: AsyncSession) -> None:
    pooled = await (await session.connection()).get_raw_connection()
    driver: Any = pooled.driver_connection
    await driver.execute(ADD, ["written"])


async def by_async_stream(session: AsyncSession) -> None:
    found = await session.stream(select(Note.text).where(Note.text == "0"))
    await found.all()


@pytest.mark.parametrize(
    ("way", "how"), [(by_async_flush, "along"), (by_async_driver, "alone"), (by_async_stream, "alone")]
)
async def test_whatever_comes_first_in_an_async_session_passes_or_is_refused_as_stale(
    database: Database, warm: Engine, ways: list[str], way: Callable[[AsyncSession], Awaitable[None]], how: str
) -> None:
    engine = async_engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1)
    for _ in range(WARM):
        async with AsyncSession(engine) as session, fenced(session, Lease(7)):
            await session.execute(select(1))
    ways.clear()
    async with AsyncSession(engine) as session, fenced(session, Lease(7)):
        await way(session)
    assert ways == [how]
    note(warm, 8, "of 8")
    before = texts(warm)
    with pytest.raises(StaleToken) as refused:
        async with AsyncSession(engine) as session, fenced(session, Lease(7)):
            await way(session)
    assert refused.value.highest == 8
    assert texts(warm) == before
    async with AsyncSession(engine) as session, fenced(session, Lease(8)):
        session.add(Note(text="on it goes"))
    await engine.dispose()
    assert texts(warm) == [*before, "on it goes"]
