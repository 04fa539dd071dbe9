"""What may be done inside of a block: end a session and go on, take it from its scope, begin by hand, give a connection
up, or take it out of its pool."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, insert, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from fencegate.core.errors import ResourceUnavailable, StaleToken
from fencegate.sql import Fenced, fenced
from tests.resources.databases import make_database
from tests.resources.sql_notes import Lease, Note, note, notes_in, texts


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    with notes_in(make_database("sqlite", request, tmp_path)) as engine:
        yield engine


def test_a_session_that_is_closed_goes_on_behind_the_fence(engine: Engine) -> None:
    with Session(engine) as session, fenced(session, Lease(7)):
        session.execute(insert(Note).values(text="undone"))
        session.close()
        session.execute(insert(Note).values(text="of 7"))
    with pytest.raises(StaleToken), Session(engine) as session, fenced(session, Lease(7)):
        session.execute(text("SELECT 1"))
        session.close()
        note(engine, 8, "of 8")
        session.execute(insert(Note).values(text="stale"))
    assert texts(engine) == ["of 7", "of 8"]


def test_a_session_that_begins_by_hand_only_is_not_told_to_commit_twice(engine: Engine) -> None:
    with Session(engine, autobegin=False) as session, fenced(session, Lease(7)), session.begin():
        session.add(Note(text="first"))
    with Session(engine, autobegin=False) as session, fenced(session, Lease(7)):
        session.begin()
        session.add(Note(text="second"))
    assert texts(engine) == ["first", "second"]


def test_a_session_that_is_closed_for_good_is_not_told_to_commit(engine: Engine) -> None:
    with Session(engine, close_resets_only=False) as session, fenced(session, Lease(7)):
        session.add(Note(text="of 7"))
        session.commit()
        session.close()
    assert texts(engine) == ["of 7"]


def test_a_connection_that_is_given_up_undoes_its_work_and_keeps_nobody_from_writing(engine: Engine) -> None:
    with pytest.raises(ResourceUnavailable) as undone, engine.connect() as connection, fenced(connection, Lease(7)):
        connection.execute(insert(Note).values(text="undone"))
        connection.invalidate()
    assert undone.value.outcome == "not-written"
    other = create_engine(engine.url)  # by the same one, the connection that was given up would be opened anew
    note(other, 8, "of 8")
    other.dispose()
    assert texts(engine) == ["of 8"]


def test_an_error_behind_the_end_of_its_connection_is_told_as_it_is(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(KeyError), fenced(connection, Lease(7)):
        connection.close()
        raise KeyError("of the caller")


def test_a_connection_that_was_taken_out_of_its_pool_is_fenced(engine: Engine) -> None:
    with engine.connect() as connection:
        with pytest.raises(KeyError), fenced(connection, Lease(7)):
            connection.execute(insert(Note).values(text="undone"))
            connection.detach()
            raise KeyError("of the caller")
        with fenced(connection, Lease(7)):
            connection.execute(insert(Note).values(text="of 7"))
    assert texts(engine) == ["of 7"]


def test_what_is_done_after_the_session_was_removed_from_its_scope_is_not_called_written(engine: Engine) -> None:
    scope = scoped_session(sessionmaker(engine))
    with fenced(scope, Lease(7)):
        scope.add(Note(text="first"))
        scope.commit()
        scope.remove()
    with pytest.raises(ResourceUnavailable) as behind_none, fenced(scope, Lease(7)):
        scope.add(Note(text="second"))
        scope.commit()
        scope.remove()
        scope.add(Note(text="of another session"))
    assert behind_none.value.outcome == "unknown"
    scope.remove()
    assert texts(engine) == ["first", "second"]


def test_a_block_of_a_scoped_session_may_be_left_by_another_thread_that_has_one_of_its_own(engine: Engine) -> None:
    """As by a dependency of FastAPI, which is entered and left by whichever thread is free."""
    scope = scoped_session(sessionmaker(engine))

    def enter() -> Fenced[Session]:
        block = fenced(scope, Lease(7))
        block.__enter__().add(Note(text="of 7"))
        return block

    with ThreadPoolExecutor(1) as another:
        block = another.submit(enter).result(30)
    assert not scope().in_transaction()
    block.__exit__(None, None, None)
    assert texts(engine) == ["of 7"]
