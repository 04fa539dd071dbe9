"""`fenced_update` on real databases of each kind: the mark in a column of the row itself."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BigInteger, Engine, and_, literal_column, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from fencegate.core.errors import NotFound, StaleToken, UnsafeConfiguration
from fencegate.sql import fenced_update
from tests.resources.databases import KINDS, Database, make_database
from tests.resources.sql_notes import Base, Lease, Note, async_engine_of, notes_in, texts


class Own(DeclarativeBase):
    """Of the tables that are only here."""


class Both(Own):
    """A row with two marks, of which one is called otherwise in the database."""

    __tablename__ = "both"
    id: Mapped[int] = mapped_column(primary_key=True)
    one: Mapped[int | None] = mapped_column(BigInteger)
    other: Mapped[int | None] = mapped_column("another", BigInteger)


@pytest.fixture(params=KINDS)
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


async def test_a_token_column_refuses_a_stale_update_of_its_row(engine: Engine, async_engine: AsyncEngine) -> None:
    with Session(engine) as session:
        session.add_all([Note(id=1, text="one"), Note(id=2, text="two", token=50)])
        session.commit()

    def change(id_: int, text_: str) -> Any:
        return update(Note).where(Note.id == id_).values(text=text_)

    with Session(engine) as session:
        for token in (8, 8, 9):
            fenced_update(session, change(1, f"of {token}"), Lease(token), column=Note.token)
        session.commit()
        with pytest.raises(StaleToken) as refused:
            fenced_update(session, change(1, "late"), Lease(8), column=Note.token)
        assert (refused.value.token, refused.value.highest) == (8, 9)
        with pytest.raises(NotFound):
            fenced_update(session, change(3, "none"), Lease(8), column=Note.token)
        with pytest.raises(TypeError):
            fenced_update(session, update(Note).values(text="all"), Lease(80), column=Note.token)
        with pytest.raises(UnsafeConfiguration):
            fenced_update(session, update(Note).where(Note.id > 0).values(token=None), Lease(80), column=Note.token)
    async with AsyncSession(async_engine) as asynchronous:
        with pytest.raises(StaleToken):
            await fenced_update(asynchronous, change(2, "late"), Lease(49), column=Note.token)
        await fenced_update(asynchronous, change(2, "of 51"), Lease(51), column=Note.token)
        await asynchronous.commit()
    assert texts(engine) == ["of 9", "of 51"]
    assert Base.metadata.tables.keys() == {"notes"}


@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_a_token_column_tells_who_has_read_its_row_before_that_a_newer_holder_came(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Note(id=1, text="old"))
        session.commit()
    change = update(Note).where(Note.id == 1)
    with Session(engine) as session, Session(engine) as newer:
        assert session.scalars(select(Note.text)).one() == "old"
        fenced_update(newer, change.values(text="of 8"), Lease(8), column=Note.token)
        newer.commit()
        with pytest.raises(StaleToken):
            fenced_update(session, change.values(text="stale"), Lease(7), column=Note.token)
    assert texts(engine) == ["of 8"]


def test_a_token_column_shows_the_update_to_the_objects_of_the_session(engine: Engine) -> None:
    change = update(Note).where(Note.id == 1)
    with Session(engine) as session:
        note = Note(id=1, text="old", token=5)
        session.add(note)  # it is flushed only by the update
        fenced_update(session, change.values(text="of 7"), Lease(7), column=Note.token)
        assert (note.text, note.token) == ("of 7", 7)
        session.commit()
        assert note.text == "of 7"
        with Session(engine) as newer:
            fenced_update(newer, change.values(text="of 8"), Lease(8), column=Note.token)
            newer.commit()
        session.expire_on_commit = False
        with pytest.raises(StaleToken):
            fenced_update(session, change.values(text="stale"), Lease(7), column=Note.token)
        assert note.text != "stale"
    assert texts(engine) == ["of 8"]


async def test_a_token_column_shows_the_update_to_the_objects_of_a_scoped_session(
    engine: Engine, async_engine: AsyncEngine
) -> None:
    change = update(Note).where(Note.id == 1)
    scope = scoped_session(sessionmaker(engine))
    scope.add(Note(id=1, text="old"))
    scope.commit()
    note = scope.get_one(Note, 1)
    fenced_update(scope, change.values(text="of 7"), Lease(7), column=Note.token)
    assert (note.text, note.token) == ("of 7", 7)
    scope.commit()
    scope.remove()
    scope_of_task = async_scoped_session(async_sessionmaker(async_engine), asyncio.current_task)
    note = await scope_of_task.get_one(Note, 1)
    await fenced_update(scope_of_task, change.values(text="of 8"), Lease(8), column=Note.token)
    assert (note.text, note.token) == ("of 8", 8)
    await scope_of_task.commit()
    await scope_of_task.remove()
    assert texts(engine) == ["of 8"]


def test_a_statement_that_is_used_again_has_the_token_of_each_lease_and_its_own_column(engine: Engine) -> None:
    Own.metadata.create_all(engine)
    try:
        with Session(engine) as session:
            session.add(Both(id=1))
            session.commit()
            change = update(Both).where(Both.id == 1).values(one=99)  # the lease's token is what counts
            for column, tokens in ((Both.one, (7, 9)), (Both.other, (3, 4)), (Both.one, (99, 100))):
                for token in (*tokens[:1] * 3, *tokens[1:] * 3):  # the second time it is another statement
                    fenced_update(session, change, Lease(token), column=column)
                with pytest.raises(StaleToken):
                    fenced_update(session, change, Lease(tokens[0]), column=column)
            assert session.execute(select(Both.one, Both.other)).one() == (100, 4)
        seen = weakref.ref(change)
        del change
        gc.collect()
        assert seen() is None
    finally:
        Own.metadata.drop_all(engine)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "where", [text("id = 1 OR id = 1"), literal_column("id = 1 OR id = 1"), and_(text("id = 1 OR id = 1"), Note.id > 0)]
)
def test_the_mark_is_compared_whatever_text_the_condition_of_the_statement_is(
    engine: Engine, where: Any, times: int
) -> None:
    with Session(engine) as session:
        session.add(Note(id=1, text="new", token=50))
        session.commit()
    late = update(Note).where(where).values(text="late")
    for _ in range(times):
        with Session(engine) as session, pytest.raises(StaleToken):
            fenced_update(session, late, Lease(49), column=Note.token)
        with Session(engine) as session:
            session.get(Note, 1)
            with pytest.raises(StaleToken):
                fenced_update(session, late, Lease(49), column=Note.token)


def test_a_statement_that_returns_rows_is_refused_before_it_is_executed(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Note(id=1, text="old", token=1))
        session.commit()
    change = update(Note).where(Note.id == 1).values(text="new").returning(Note.text)
    with Session(engine) as session, pytest.raises(TypeError, match="returning"):
        fenced_update(session, change, Lease(8), column=Note.token)
    with engine.begin() as connection:
        with pytest.raises(TypeError, match="returning"):
            fenced_update(connection, change, Lease(8), column=Note.token)
        assert connection.scalar(select(Note.text)) == "old"
