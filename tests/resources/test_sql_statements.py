"""Every statement of a fenced block is met before it is executed, however SQLAlchemy executes it and whoever else
listens; and passing in SQLite waits for the writer before it once."""

import gc
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, insert, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from fencegate.core.errors import ResourceUnavailable, StaleToken
from fencegate.sql import fenced
from fencegate_adapters.sql import homes
from fencegate_adapters.sql.homes import home_of
from tests.resources.databases import KINDS, Sqlite, make_database
from tests.resources.sql_notes import Lease, Note, note, notes_in, texts

STATEMENTS: dict[str, Callable[[Connection], object]] = {
    "one": lambda connection: connection.execute(insert(Note).values(id=2, text="stale")),
    "many": lambda connection: connection.execute(
        text("INSERT INTO notes (id, text) VALUES (:id, :text)"), [{"id": 2, "text": "b"}, {"id": 3, "text": "c"}]
    ),
    "many that return": lambda connection: connection.execute(
        insert(Note).returning(Note.id), [{"id": 2, "text": "b"}, {"id": 3, "text": "c"}]
    ),
    "without parameters": lambda connection: connection.execution_options(no_parameters=True).exec_driver_sql(
        "INSERT INTO notes (id, text) VALUES (2, 'stale')"
    ),
    "a look": lambda connection: connection.execute(select(Note.text)).all(),
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with notes_in(Sqlite(tmp_path)) as engine:
        yield engine


@pytest.mark.parametrize("how", STATEMENTS)
@pytest.mark.parametrize("another_executes", [False, True])
def test_no_statement_is_executed_before_the_fence_was_passed(engine: Engine, how: str, another_executes: bool) -> None:
    note(engine, 8, "of 8")
    reached = []

    def execute(cursor: sqlite3.Cursor, statement: str, parameters: object, _context: object) -> bool:
        """A listener that does the work itself, after which SQLAlchemy asks no other."""
        reached.append(statement)
        cursor.execute(statement, parameters)  # type: ignore[arg-type]
        return True

    if another_executes:
        engine = create_engine(engine.url)
        event.listen(engine, "do_execute", execute)
    with engine.connect() as connection, pytest.raises(StaleToken), fenced(connection, Lease(7)):
        STATEMENTS[how](connection)
        pytest.fail("it was executed, and is judged only at the end")
    assert not [statement for statement in reached if "notes" in statement]
    assert texts(engine) == ["of 8"]
    engine.dispose()


def test_no_statement_goes_by_a_listener_that_came_later_and_executes_for_all_engines(engine: Engine) -> None:
    note(engine, 8, "of 8")

    def execute(cursor: sqlite3.Cursor, statement: str, parameters: object, _context: object) -> bool:
        cursor.execute(statement, parameters)  # type: ignore[arg-type]
        return True

    event.listen(Engine, "do_execute", execute)
    try:
        refused(engine)
    finally:
        event.remove(Engine, "do_execute", execute)
    assert texts(engine) == ["of 8"]


@pytest.mark.parametrize("insert_before", [False, True])
def test_no_statement_goes_by_a_listener_that_came_later_and_executes(engine: Engine, insert_before: bool) -> None:
    note(engine, 8, "of 8")

    def execute(cursor: sqlite3.Cursor, statement: str, parameters: object, _context: object) -> bool:
        cursor.execute(statement, parameters)  # type: ignore[arg-type]
        return True

    event.listen(engine, "do_execute", execute, insert=insert_before)
    refused(engine)
    assert texts(engine) == ["of 8"]


def test_a_listener_that_came_later_and_only_looks_on_changes_nothing(engine: Engine) -> None:
    note(engine, 8, "of 8")
    met = []
    event.listen(engine, "do_execute", lambda _cursor, statement, *_: met.append(statement))
    refused(engine)
    note(engine, 8, "again")
    assert [statement for statement in met if "INSERT INTO notes" in statement]
    assert texts(engine) == ["of 8", "again"]


def test_the_dialect_may_be_asked_to_execute_by_others(engine: Engine) -> None:
    """Who has no connection of SQLAlchemy has no context to give."""
    note(engine, 8, "of 8")
    driver = engine.raw_connection()
    cursor = driver.cursor()
    engine.dialect.do_execute(cursor, "SELECT text FROM notes WHERE id = ?", (1,))
    assert cursor.fetchall() == [("of 8",)]
    engine.dialect.do_execute_no_params(cursor, "SELECT text FROM notes")
    assert cursor.fetchall() == [("of 8",)]
    driver.close()


def test_an_engine_that_is_forgotten_is_not_kept_by_what_its_connection_was_given(tmp_path: Path) -> None:
    with notes_in(Sqlite(tmp_path)) as engine:
        url = engine.url
    forgotten = create_engine(url)
    note(forgotten, 7, "of 7")
    note(forgotten, 7, "of 7 again")
    known = weakref.ref(forgotten)
    del forgotten
    gc.collect()
    assert known() is None, "and its files stay open"


def test_a_session_may_find_an_engine_that_is_new_to_us_in_the_middle_of_the_block(tmp_path: Path) -> None:
    database = Sqlite(tmp_path)
    with notes_in(database) as engine:
        for token in (8, 7):
            with (
                Session() as session,
                pytest.raises(StaleToken) if token < 8 else nullcontext(),
                fenced(session, Lease(token)),
            ):
                where = {"bind": create_engine(database.url)}
                session.execute(insert(Note).values(text=f"of {token}"), bind_arguments=where)
        assert texts(engine) == ["of 8"]


def test_an_engine_that_stands_where_another_stood_is_fenced_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy knows by its address who is listened to, and says so of whatever has come to stand there since."""
    note(engine, 8, "of 8")
    monkeypatch.setattr(event, "contains", lambda *_: True)
    refused(create_engine(engine.url))


def refused(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(StaleToken), fenced(connection, Lease(7)):
        STATEMENTS["one"](connection)
        pytest.fail("it was executed, and is judged only at the end")
    engine.dispose()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_cursor_of_the_driver_did_is_judged_at_the_end_of_the_block(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """As `COPY` needs it; SQLAlchemy knows nothing of its statements."""
    with notes_in(make_database(kind, request, tmp_path)) as engine:
        for token, text_ in ((8, "of 8"), (7, "stale")):
            with (
                engine.connect() as connection,
                pytest.raises(StaleToken) if token < 8 else nullcontext(),
                fenced(connection, Lease(token)),
            ):
                connection.begin()
                cursor = connection.connection.cursor()
                cursor.execute(f"INSERT INTO notes (id, text) VALUES ({token}, '{text_}')")
        assert texts(engine) == ["of 8"]


def test_a_writer_that_stays_is_waited_for_once(tmp_path: Path) -> None:
    database = Sqlite(tmp_path)
    with notes_in(database) as engine:
        note(engine, 7, "of 7")
    said: list[str] = []
    impatient = create_engine(database.url, connect_args={"timeout": 0.1})
    event.listen(impatient, "connect", lambda driver, _: driver.set_trace_callback(said.append))
    note(impatient, 7, "of 7 again")
    said.clear()
    with database.session() as writer:
        writer.execute("BEGIN IMMEDIATE")
        with (
            pytest.raises(ResourceUnavailable) as refused,
            impatient.connect() as connection,
            fenced(connection, Lease(7)),
        ):
            connection.execute(text("DELETE FROM notes"))
        writer.execute("ROLLBACK")
    assert refused.value.outcome == "not-written"
    assert [statement.split()[0] for statement in said] == ["BEGIN", "INSERT", "ROLLBACK"], "and only the second waits"
    note(impatient, 7, "and on")
    assert "and on" in texts(impatient)
    impatient.dispose()


def test_a_refusal_of_one_block_that_is_swallowed_does_not_open_the_way_round_another(tmp_path: Path) -> None:
    database = Sqlite(tmp_path)
    with notes_in(database) as engine:
        note(engine, 8, "of 8", "job:inner")
        impatient = create_engine(database.url, connect_args={"timeout": 0.1})
        note(impatient, 7, "of 7")
        with (
            pytest.raises(StaleToken),
            Session(impatient) as session,
            fenced(session, Lease(7)),
            fenced(session, Lease(7, "job:inner")),
        ):
            with database.session() as writer:
                writer.execute("BEGIN IMMEDIATE")
                with pytest.raises(ResourceUnavailable):
                    session.connection()  # waits for the writer at the fence of the outer one, and not for ever
                writer.execute("ROLLBACK")
            session.execute(insert(Note).values(text="stale"))
            pytest.fail("it was executed, and is judged only at the end")
        assert texts(engine) == ["of 8", "of 7"]
        impatient.dispose()


def test_a_fence_table_that_cannot_be_made_lets_nothing_be_committed_by_hand(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OperationalError("SELECT", {}, sqlite3.OperationalError("disk I/O error"))

    note(engine, 8, "of 8")
    with pytest.raises(ResourceUnavailable), Session(engine) as session, fenced(session, Lease(7)):
        home_of(engine).prepared = False  # as after an error of the database
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(homes, "missing", gone)
            with pytest.raises(ResourceUnavailable):
                session.connection()
            session.connection().connection.cursor().execute("INSERT INTO notes (text) VALUES ('stale')")
            session.commit()
            pytest.fail("a stale holder committed")
    assert texts(engine) == ["of 8"]


def test_a_holder_that_passes_again_in_sqlite_writes_no_page(tmp_path: Path) -> None:
    database = Sqlite(tmp_path)
    with notes_in(database) as engine:
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        note(engine, 7, "of 7")
        (log,) = tmp_path.glob("*-wal")
        before = log.stat().st_size
        for _ in range(3):
            with Session(engine) as session, fenced(session, Lease(7)):
                session.execute(text("SELECT 1"))
        assert log.stat().st_size == before
        note(engine, 7, "of 7 again")
        assert log.stat().st_size > before


def test_sqlite_refuses_without_help_from_the_constraints_of_the_fence_table(tmp_path: Path) -> None:
    """As somebody may have made it by hand: what passes must not depend on that."""
    database = Sqlite(tmp_path)
    with notes_in(database) as engine:
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE TABLE fencegate_fences (lock_key BLOB, mode TEXT, token BIGINT, PRIMARY KEY (lock_key, mode))"
            )
        for token, text_ in ((7, "of 7"), (7, "of 7 again"), (8, "of 8")):
            note(engine, token, text_)
        for _ in range(2):
            with pytest.raises(StaleToken):
                note(engine, 7, "stale")
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO fencegate_resources VALUES ('r', 'g', 'f', 'enforce', 90)")
        with pytest.raises(StaleToken):
            note(engine, 8, "below the floor")
        assert texts(engine) == ["of 7", "of 7 again", "of 8"]


def test_an_sqlite_engine_that_says_begin_itself_passes_and_is_refused_as_any_other(tmp_path: Path) -> None:
    """As SQLAlchemy advises, for savepoints and reads that hold together."""
    database = Sqlite(tmp_path)
    with notes_in(database):
        engine = create_engine(database.url)

        @event.listens_for(engine, "connect")
        def left_alone(driver: sqlite3.Connection, _record: object) -> None:
            driver.isolation_level = None

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN")

        for token, text_ in ((7, "of 7"), (7, "of 7 again"), (8, "of 8")):
            note(engine, token, text_)
        with pytest.raises(StaleToken):
            note(engine, 7, "stale")
        with pytest.raises(ResourceUnavailable), Session(engine) as session, fenced(session, Lease(8)):
            session.execute(text("COMMIT"))
            session.execute(insert(Note).values(text="after it"))
        assert texts(engine) == ["of 7", "of 7 again", "of 8"]
        engine.dispose()
