"""Transactions of a fenced block that end behind our back, in ways that no driver sees: none goes on unfenced."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pymysql
import pytest
from sqlalchemy import Engine, event, insert, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencegate.core.errors import ResourceUnavailable, StaleToken, UnsafeConfiguration
from fencegate.sql import fenced
from fencegate_adapters.sql.endings import ends
from tests.eventually import eventually_sync
from tests.resources.databases import Database, make_database
from tests.resources.sql_notes import Lease, Note, async_engine_of, engine_of, note, notes_in, somebody_waits, texts


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database(request.param, request, tmp_path)


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    with notes_in(database) as engine:
        yield engine


@pytest.fixture
async def async_engine(database: Database, engine: Engine) -> AsyncIterator[AsyncEngine]:
    made = async_engine_of(database)
    yield made
    await made.dispose()


on_mariadb = pytest.mark.parametrize("database", ["mariadb"], indirect=True)


@pytest.mark.parametrize("times", [1, 6])  # with psycopg, the first statement may take the fence along
@pytest.mark.parametrize("said", ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "/* on */ commit and chain", "BEGIN"])
def test_a_text_behind_which_there_is_another_transaction_ends_the_block(
    database: Database, engine: Engine, said: str, times: int
) -> None:
    if said == "BEGIN" and database.kind == "postgresql":
        pytest.skip("it changes nothing there")
    for number in range(times):
        note(engine, 7, f"{number}")
    before = texts(engine)
    other = engine_of(database)
    with pytest.raises(ResourceUnavailable) as ended, Session(engine) as session, fenced(session, Lease(7)):
        session.connection().exec_driver_sql(said)
        note(other, 8, "of 8")
        with pytest.raises(ResourceUnavailable):
            session.execute(insert(Note).values(text="stale"))
    assert ended.value.outcome == "unknown"
    other.dispose()
    assert texts(engine) == [*before, "of 8"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("postgresql", "BEGIN"),
        ("sqlite", "BEGIN IMMEDIATE"),
        ("mariadb", "ROLLBACK TO SAVEPOINT a"),
        ("postgresql", "rollback work to savepoint a"),
        ("postgresql", "COMMIT PREPARED 'a'"),
        ("mysql", "START SLAVE"),
        ("mysql", "SELECT 1 -- COMMIT"),
        ("mysql", "ENDOW"),
        ("mariadb", "ANALYZE FORMAT=JSON SELECT 1"),
        ("postgresql", "ANALYZE TABLE"),
        ("mysql", "/*!50000 SELECT */ 1"),
    ],
)
def test_what_ends_no_transaction_is_not_taken_for_it(kind: str, said: str) -> None:
    assert not ends(kind, said)


def by_execution(session: Session) -> None:
    session.execute(update(Note).where(Note.text == "b").values(token=2))


def by_fetching(session: Session) -> None:
    """The first row is large enough to be sent before the second one is locked."""
    wanted = "SELECT id, repeat('x', 2000000) FROM notes WHERE id <= 2 ORDER BY id FOR UPDATE"
    session.execute(text(wanted).execution_options(stream_results=True)).all()


def lose_to_a_rival(session: Session, database: Database, how: Callable[[Session], None] = by_execution) -> None:
    """Make the database end this transaction, since two wait for each other and the other one has more to lose."""
    engine = engine_of(database)

    def rival() -> None:
        with Session(engine) as other:
            other.add_all(Note(text=f"of the rival {number}") for number in range(30))
            other.execute(update(Note).where(Note.text == "b").values(token=1))
            has_b.set_result(None)
            other.execute(update(Note).where(Note.text == "a").values(token=1))
            other.commit()

    has_b: Future[None] = Future()
    session.execute(update(Note).where(Note.text == "a").values(token=2))
    with ThreadPoolExecutor(1) as threads:
        winning = threads.submit(rival)
        has_b.result(30)
        eventually_sync(lambda: somebody_waits(database))
        with pytest.raises(DBAPIError, match="Deadlock"):
            how(session)
        winning.result(30)
    note(engine, 8, "of 8")
    engine.dispose()


@on_mariadb
@pytest.mark.parametrize("how", [by_execution, by_fetching])
@pytest.mark.parametrize("another_executes", [False, True])
def test_a_deadlock_that_is_swallowed_ends_the_block(
    database: Database, engine: Engine, how: Callable[[Session], None], another_executes: bool
) -> None:
    """It has rolled back all that came before, and the driver does not learn that from the error."""
    note(engine, 7, "a")
    note(engine, 7, "b")
    if another_executes:

        @event.listens_for(engine, "do_execute")
        def execute(cursor: Any, statement: str, parameters: Any, _context: object) -> bool:
            cursor.execute(statement, parameters)
            return True

    with pytest.raises(ResourceUnavailable), Session(engine) as session, fenced(session, Lease(7)):
        lose_to_a_rival(session, database, how)
        session.execute(insert(Note).values(text="stale"))
    assert "stale" not in texts(engine)


@on_mariadb
async def test_a_deadlock_that_is_swallowed_ends_an_async_block(
    database: Database, engine: Engine, async_engine: AsyncEngine
) -> None:
    note(engine, 7, "a")
    note(engine, 7, "b")
    with pytest.raises(ResourceUnavailable):
        async with AsyncSession(async_engine) as session, fenced(session, Lease(7)):
            await session.run_sync(lose_to_a_rival, database)
            await session.execute(insert(Note).values(text="stale"))
    assert "stale" not in texts(engine)


@on_mariadb
def test_where_nobody_can_tell_what_an_error_undid_the_block_ends(
    database: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question behind the error fails, on a connection that goes on."""

    def unanswered(*_: object, **__: object) -> None:
        raise pymysql.err.InterfaceError("no answer")

    note(engine, 7, "a")
    note(engine, 7, "b")
    with pytest.raises(ResourceUnavailable) as ended, Session(engine) as session, fenced(session, Lease(7)):
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(pymysql.Connection, "ping", unanswered)
            lose_to_a_rival(session, database)
        session.execute(insert(Note).values(text="stale"))
    assert ended.value.outcome == "unknown"
    assert "stale" not in texts(engine)


@on_mariadb
def test_an_error_that_is_swallowed_and_undid_one_statement_only_changes_nothing(engine: Engine) -> None:
    note(engine, 7, "first")
    with Session(engine) as session, fenced(session, Lease(7)):
        with pytest.raises(DBAPIError, match="Duplicate"):
            session.execute(insert(Note).values(text="first"))
        session.execute(insert(Note).values(text="second"))
    assert texts(engine) == ["first", "second"]


@on_mariadb
def test_a_refusal_by_the_second_of_two_fences_leaves_no_token_in_the_connection(
    database: Database, engine: Engine
) -> None:
    note(engine, 8, "of 8", "job:b")
    pooled = engine_of(database, pool_size=1, max_overflow=0)
    with (
        pytest.raises(StaleToken),
        Session(pooled) as session,
        fenced(session, Lease(3, "job:a"), Lease(7, "job:b")),
    ):
        session.connection()
    with pooled.connect() as connection:
        assert connection.execute(text("SELECT @fencegate_token, @fencegate_lock")).one() == (None, None)
    pooled.dispose()


@on_mariadb
def test_a_transaction_of_two_phases_leaves_no_token_in_the_connection(database: Database, engine: Engine) -> None:
    pooled = engine_of(database, pool_size=1, max_overflow=0)
    settings = text("SELECT @fencegate_token, @fencegate_lock")
    with Session(pooled, twophase=True) as session, fenced(session, Lease(7)):
        session.execute(insert(Note).values(text="of 7"))
        session.prepare()
        session.commit()
        session.execute(insert(Note).values(text="of 7, too"))
    with Session(pooled, twophase=True) as session, fenced(session, Lease(7)):
        session.execute(insert(Note).values(text="prepared"))
        session.prepare()
    with pooled.connect() as connection, fenced(connection, Lease(7)):
        transaction = connection.begin_twophase()
        connection.execute(insert(Note).values(text="at once"))
        transaction.commit()
    with pooled.connect() as connection:
        assert connection.execute(settings).one() == (None, None)
    with pytest.raises(ZeroDivisionError), Session(pooled, twophase=True) as session, fenced(session, Lease(7)):
        session.execute(insert(Note).values(text="undone"))
        _ = 1 // 0
    with pooled.connect() as connection:
        assert connection.execute(settings).one() == (None, None)
    pooled.dispose()
    assert database.fetch("XA RECOVER") == []
    assert texts(engine) == ["of 7", "of 7, too", "prepared", "at once"]


@on_mariadb
@pytest.mark.parametrize(
    "said",
    [
        "ANALYZE TABLE notes",
        "OPTIMIZE LOCAL TABLE notes",
        "CHECK TABLE notes",
        "REPAIR NO_WRITE_TO_BINLOG TABLE notes",
        "/*!50000 BEGIN */",
        "/*!50000 COMMIT AND CHAIN */",
        "/*M!100000 COMMIT AND CHAIN */",
    ],
)
def test_a_statement_that_commits_and_says_that_there_is_a_transaction_ends_the_block(
    database: Database, engine: Engine, said: str
) -> None:
    if database.is_mysql and said.startswith("/*M!"):
        pytest.skip("MySQL takes it for a comment")
    other = engine_of(database)
    with pytest.raises(ResourceUnavailable) as ended, Session(engine) as session, fenced(session, Lease(7)):
        session.execute(text(said)).close()
        note(other, 8, "of 8")
        session.execute(insert(Note).values(text="stale"))
    assert ended.value.outcome == "unknown"
    assert texts(engine) == ["of 8"]
    other.dispose()


@on_mariadb
@pytest.mark.parametrize("said", ["LOCK TABLES notes WRITE", "/* all */ lock table notes read"])
def test_locks_of_tables_which_would_stay_in_the_connection_are_refused(engine: Engine, said: str) -> None:
    """They commit, and neither a commit nor a rollback lets them go."""
    with pytest.raises(UnsafeConfiguration), Session(engine) as session, fenced(session, Lease(7)):
        session.execute(insert(Note).values(text="undone"))
        session.execute(text(said))
    note(engine, 7, "of 7")
    assert texts(engine) == ["of 7"]


def test_a_refusal_that_is_swallowed_lets_nothing_be_committed_that_was_to_have_two_phases(engine: Engine) -> None:
    """Without the first phase, and by a cursor of the driver, which is met by nobody."""
    note(engine, 8, "of 8")
    with pytest.raises(StaleToken), engine.connect() as connection, fenced(connection, Lease(7)):
        transaction = connection.begin_twophase()
        with pytest.raises(StaleToken):
            connection.execute(insert(Note).values(text="stale"))
        with contextlib.closing(connection.connection.cursor()) as cursor:
            cursor.execute("INSERT INTO notes (text) VALUES ('stale')")
        transaction.commit()
    assert texts(engine) == ["of 8"]


def test_what_was_refused_in_two_phases_is_rolled_back_and_its_connection_is_kept(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    note(engine, 8, "of 8")
    with pytest.raises(StaleToken), Session(engine, twophase=True) as session, fenced(session, Lease(7)):
        session.execute(insert(Note).values(text="stale"))
    assert caplog.text == ""
