"""`fenced`: the fence inside a caller's own transactions, sync and async, and among real processes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencegate.core.errors import InvalidToken, LockLost, ResourceUnavailable, StaleToken, UnsafeConfiguration
from fencegate.core.ports import RowWrite
from fencegate.sql import fenced
from fencegate.sync import connect
from fencegate_adapters.sql import RowsResource
from tests.child import Child

KEY = "job:rebuild"


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(unique=True)


class Lease(NamedTuple):
    token: int
    lock_key: str = KEY


class LostLease(NamedTuple):
    token: int
    lock_key: str = KEY

    def ensure_held(self) -> None:
        raise LockLost("the lease ran out")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 60})
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
async def async_engine(engine: Engine, path: Path) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 60})
    yield made
    await made.dispose()


def texts(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return list(session.scalars(select(Note.text).order_by(Note.id)))


def mark(engine: Engine, key: str = KEY) -> int:
    with engine.connect() as connection:
        query = text("SELECT token FROM fencegate_fences WHERE lock_key = :key AND mode = 'enforce'")
        return int(connection.execute(query, {"key": key.encode()}).scalar() or 0)


def note(engine: Engine, token: int, text_: str) -> None:
    with Session(engine) as session, fenced(session, Lease(token)):
        session.add(Note(text=text_))


# --- what it does to the caller's transactions -----------------------------------------------------------------------


def test_it_commits_at_the_end_with_the_mark(engine: Engine) -> None:
    note(engine, 7, "a")
    assert texts(engine) == ["a"]
    assert mark(engine) == 7


def test_a_stale_holder_is_refused_at_its_first_statement(engine: Engine) -> None:
    note(engine, 8, "of 8")
    with pytest.raises(StaleToken) as refused, Session(engine) as session, fenced(session, Lease(7)):
        session.scalars(select(Note.text)).all()
        pytest.fail("a stale holder got to see the data")
    assert (refused.value.token, refused.value.highest) == (7, 8)
    with pytest.raises(StaleToken):
        note(engine, 7, "late")
    assert texts(engine) == ["of 8"]


def test_equal_tokens_are_accepted_again_and_again(engine: Engine) -> None:
    for text_ in "abc":
        note(engine, 7, text_)
    assert texts(engine) == ["a", "b", "c"]


def test_an_exception_rolls_back_the_work_and_is_not_changed(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError), Session(engine) as session, fenced(session, Lease(7)):
        session.add(Note(text="a"))
        session.flush()
        _ = 1 // 0
    assert texts(engine) == []


def test_a_violated_constraint_reaches_the_caller_as_it_is(engine: Engine) -> None:
    note(engine, 7, "a")
    with pytest.raises(IntegrityError):
        note(engine, 7, "a")
    assert texts(engine) == ["a"]


def test_a_commit_that_the_database_refuses_leaves_nothing_open(engine: Engine) -> None:
    event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    engine.dispose()
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE parts (id INTEGER PRIMARY KEY, note INTEGER REFERENCES notes DEFERRABLE INITIALLY DEFERRED)"
        )
    part = text("INSERT INTO parts (note) VALUES (99)")
    with engine.connect() as connection:
        with pytest.raises(IntegrityError), fenced(connection, Lease(7)):
            connection.execute(part)
        note(engine, 8, "the database is not left locked")
        connection.execute(insert(Note).values(id=99, text="a note that would heal the refused part"))
        connection.commit()
    with Session(engine) as session, pytest.raises(IntegrityError), fenced(session, Lease(8)):
        session.execute(text("DELETE FROM notes"))
        session.execute(part)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM parts")).scalar() == 0
    assert len(texts(engine)) == 2


def test_every_transaction_of_the_block_is_fenced(engine: Engine) -> None:
    with pytest.raises(StaleToken), Session(engine) as session, fenced(session, Lease(7)):
        session.add(Note(text="first"))
        session.commit()
        note(engine, 8, "of 8")
        session.add(Note(text="late"))
    assert texts(engine) == ["first", "of 8"]


def test_every_transaction_of_a_connection_is_fenced_too(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(StaleToken), fenced(connection, Lease(7)):
        connection.execute(insert(Note).values(text="first"))
        connection.commit()
        note(engine, 8, "of 8")
        connection.execute(insert(Note).values(text="late"))
    assert texts(engine) == ["first", "of 8"]


def test_after_a_rollback_in_the_block_the_next_transaction_is_fenced(engine: Engine) -> None:
    with pytest.raises(StaleToken), Session(engine) as session, fenced(session, Lease(7)):
        session.add(Note(text="undone"))
        session.flush()
        session.rollback()
        note(engine, 8, "of 8")
        session.add(Note(text="late"))
    assert texts(engine) == ["of 8"]


def test_a_swallowed_refusal_does_not_open_the_way(engine: Engine) -> None:
    note(engine, 8, "of 8")
    for begin in (Session, lambda engine: engine.connect()):
        with begin(engine) as session, pytest.raises(StaleToken), fenced(session, Lease(7)):
            with pytest.raises(StaleToken):
                session.execute(select(Note.text))
            session.execute(insert(Note).values(text="late"))
    assert texts(engine) == ["of 8"]


def test_begin_inside_the_block_and_savepoints_work(engine: Engine) -> None:
    with Session(engine) as session, fenced(session, Lease(7)):
        with session.begin():
            session.add(Note(text="kept"))
            with pytest.raises(ZeroDivisionError), session.begin_nested():
                session.add(Note(text="undone"))
                session.flush()
                _ = 1 // 0
        with session.begin_nested():
            session.add(Note(text="kept too"))
    with engine.connect() as connection, fenced(connection, Lease(7)), connection.begin_nested():
        connection.execute(insert(Note).values(text="and this"))
    assert texts(engine) == ["kept", "kept too", "and this"]
    assert mark(engine) == 7


def test_the_mark_survives_a_savepoint_that_is_rolled_back_first(engine: Engine) -> None:
    with engine.connect() as connection, fenced(connection, Lease(7)):
        savepoint = connection.begin_nested()
        connection.execute(insert(Note).values(text="undone"))
        savepoint.rollback()
    assert mark(engine) == 7
    assert texts(engine) == []


def test_outside_of_the_block_the_session_is_free_again(engine: Engine) -> None:
    with Session(engine) as session:
        with fenced(session, Lease(7)):
            session.add(Note(text="a"))
        note(engine, 8, "of 8")
        session.add(Note(text="not under the fence"))
        session.commit()
        with engine.connect() as connection, fenced(connection, Lease(8)):
            connection.execute(update(Note).values(text=Note.text + "!"))
        with engine.connect() as connection:
            connection.execute(insert(Note).values(text="free"))
            connection.commit()
    assert texts(engine)[-1] == "free"


def test_two_leases_at_once_are_two_fences(engine: Engine) -> None:
    note(engine, 8, "of 8")
    other = Lease(3, "job:other")
    with Session(engine) as session, fenced(session, Lease(8)), fenced(session, other):
        session.add(Note(text="both"))
    assert (mark(engine), mark(engine, other.lock_key)) == (8, 3)


def test_a_lease_that_is_lost_by_the_end_is_not_committed(engine: Engine) -> None:
    with pytest.raises(LockLost), Session(engine) as session, fenced(session, LostLease(7)):
        session.add(Note(text="a"))
    assert texts(engine) == []


def test_a_permit_is_fenced_by_its_slot_and_a_shared_lease_is_refused(engine: Engine) -> None:
    with connect("memory://") as locks:
        with locks.hold(KEY, limit=2) as first, locks.hold(KEY, limit=2) as second:
            for lease in (second, first):  # the later token first: they have fences of their own
                with Session(engine) as session, fenced(session, lease):
                    session.add(Note(text=f"by {lease.slot}"))
        with (
            locks.hold(f"{KEY}:read", shared=True) as reader,
            Session(engine) as session,
            pytest.raises(TypeError, match="shared"),
        ):
            fenced(session, reader)
    with Session(engine) as session:
        assert sorted(session.scalars(select(Note.text))) == ["by 0", "by 1"]


def test_lock_key_and_token_can_be_given_by_hand_but_not_half(engine: Engine) -> None:
    with Session(engine) as session:
        with fenced(session, lock_key=KEY, token=7):
            session.add(Note(text="a"))
        with pytest.raises(TypeError):
            fenced(session, lock_key=KEY)
        with pytest.raises(TypeError):
            fenced(session, Lease(7), token=7)
        with pytest.raises(InvalidToken):
            fenced(session, lock_key=KEY, token=0)
    assert mark(engine) == 7


# --- which connections it refuses ------------------------------------------------------------------------------------


def test_a_transaction_that_has_begun_already_is_refused(engine: Engine) -> None:
    with Session(engine) as session:
        session.scalars(select(Note.text)).all()
        with pytest.raises(UnsafeConfiguration), fenced(session, Lease(7)):
            pytest.fail("it was let in")
    with engine.connect() as connection:
        connection.execute(select(func.count()).select_from(Note))
        with pytest.raises(UnsafeConfiguration), fenced(connection, Lease(7)):
            pytest.fail("it was let in")


@pytest.mark.parametrize("how", ["conditional_savepoint", "create_savepoint", "control_fully", "rollback_only"])
def test_a_session_that_would_join_its_connections_transaction_is_refused(engine: Engine, how: str) -> None:
    with engine.connect() as connection:
        connection.execute(select(func.count()).select_from(Note))
        for session in (
            Session(connection, join_transaction_mode=how),  # type: ignore[arg-type]
            Session(binds={Note: connection}, join_transaction_mode=how),  # type: ignore[arg-type]
        ):
            with session, pytest.raises(UnsafeConfiguration), fenced(session, Lease(7)):
                session.add(Note(text="outside of the fence"))
    assert texts(engine) == []


def test_autocommit_is_refused_before_anything_is_written(engine: Engine, path: Path) -> None:
    always = create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    with pytest.raises(UnsafeConfiguration, match="AUTOCOMMIT"):
        note(always, 7, "a")
    with Session(always) as session, pytest.raises(UnsafeConfiguration), fenced(session, Lease(7)):
        with pytest.raises(UnsafeConfiguration):
            session.execute(insert(Note).values(text="once"))
        session.execute(insert(Note).values(text="and again"))
    sometimes = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with sometimes, pytest.raises(UnsafeConfiguration), fenced(sometimes, Lease(7)):
        sometimes.execute(insert(Note).values(text="a"))
    always.dispose()
    assert texts(engine) == []


def test_a_transaction_that_the_database_rolled_back_by_itself_does_not_go_on_unfenced(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER strict BEFORE INSERT ON notes WHEN NEW.text = 'bad' "
            "BEGIN SELECT RAISE(ROLLBACK, 'bad'); END"
        )
    with pytest.raises(ResourceUnavailable), engine.connect() as connection, fenced(connection, Lease(7)):
        with pytest.raises(IntegrityError):
            connection.execute(insert(Note).values(text="bad"))
        connection.execute(insert(Note).values(text="after the fence was gone"))
    with pytest.raises(ResourceUnavailable), engine.connect() as connection, fenced(connection, Lease(7)):
        connection.execute(insert(Note).values(text="good"))
        with pytest.raises(IntegrityError):
            connection.execute(insert(Note).values(text="bad"))
    assert texts(engine) == []


def test_an_engine_that_says_begin_itself_works(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connected(driver, _) -> None:  # type: ignore[no-untyped-def]
        driver.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()
    note(engine, 8, "a")
    with engine.connect() as connection, fenced(connection, Lease(8)):
        connection.execute(insert(Note).values(text="b"))
    with pytest.raises(StaleToken):
        note(engine, 7, "late")
    assert texts(engine) == ["a", "b"]


def test_with_and_async_with_are_not_mixed_up(engine: Engine, async_engine: AsyncEngine) -> None:
    with pytest.raises(TypeError, match="async with"), fenced(AsyncSession(async_engine), Lease(7)):
        pass

    async def wrong() -> None:
        async with fenced(Session(engine), Lease(7)):
            pass

    with pytest.raises(TypeError, match="with fenced"):
        asyncio.run(wrong())


def test_a_database_in_memory_with_one_connection_works() -> None:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    note(engine, 8, "a")
    with pytest.raises(StaleToken):
        note(engine, 7, "late")
    assert texts(engine) == ["a"]


# --- async -----------------------------------------------------------------------------------------------------------


async def test_async_sessions_and_connections_are_fenced(engine: Engine, async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine) as session, fenced(session, Lease(7)):
        session.add(Note(text="a"))
    async with async_engine.connect() as connection, fenced(connection, Lease(8)):
        await connection.execute(insert(Note).values(text="b"))
        await connection.commit()
        async with connection.begin_nested():
            await connection.execute(insert(Note).values(text="c"))
    assert texts(engine) == ["a", "b", "c"]
    assert mark(engine) == 8
    with pytest.raises(StaleToken):
        async with AsyncSession(async_engine) as session, fenced(session, Lease(7)):
            session.add(Note(text="late"))
    with pytest.raises(StaleToken):
        async with async_engine.connect() as connection, fenced(connection, Lease(7)):
            await connection.execute(insert(Note).values(text="late"))
    assert texts(engine) == ["a", "b", "c"]


async def test_async_blocks_fence_every_transaction_and_roll_back(engine: Engine, async_engine: AsyncEngine) -> None:
    with pytest.raises(StaleToken):
        async with AsyncSession(async_engine) as session, fenced(session, Lease(7)):
            async with session.begin():
                session.add(Note(text="first"))
            await asyncio.to_thread(note, engine, 8, "of 8")
            session.add(Note(text="late"))
    with pytest.raises(ZeroDivisionError):
        async with AsyncSession(async_engine) as session, fenced(session, Lease(8)):
            session.add(Note(text="undone"))
            await session.flush()
            _ = 1 // 0
    assert texts(engine) == ["first", "of 8"]


async def test_a_cancelled_block_rolls_back(engine: Engine, async_engine: AsyncEngine) -> None:
    flushed = asyncio.Event()

    async def work() -> None:
        async with AsyncSession(async_engine) as session, fenced(session, Lease(7)):
            session.add(Note(text="undone"))
            await session.flush()
            flushed.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await flushed.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    note(engine, 7, "the database is not left locked")
    assert texts(engine) == ["the database is not left locked"]


async def test_async_refuses_a_begun_transaction_and_autocommit(engine: Engine, async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine) as session:
        await session.scalars(select(Note.text))
        with pytest.raises(UnsafeConfiguration):
            async with fenced(session, Lease(7)):
                pytest.fail("it was let in")
    async with async_engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(UnsafeConfiguration):
            async with fenced(connection, Lease(7)):
                await connection.execute(insert(Note).values(text="a"))
    assert texts(engine) == []


# --- one fence for everybody -----------------------------------------------------------------------------------------


async def test_rows_through_the_gateways_adapter_are_under_the_same_fence(engine: Engine, path: Path) -> None:
    resource = RowsResource("notes", f"sqlite:///{path}", table="notes", key=("id",), guard_template=KEY)
    await resource.open()
    await resource.write(KEY, 8, [RowWrite("put", ("1",), {"text": "through the gateway"})])
    with pytest.raises(StaleToken):
        await asyncio.to_thread(note, engine, 7, "late")
    await asyncio.to_thread(note, engine, 9, "of 9")
    with pytest.raises(StaleToken):
        await resource.write(KEY, 8, [RowWrite("patch", ("1",), {"text": "late"})])
    await resource.raise_floor(20)
    with pytest.raises(StaleToken) as refused:
        await asyncio.to_thread(note, engine, 19, "below the floor")
    assert refused.value.highest == 20
    await resource.close()
    assert texts(engine) == ["through the gateway", "of 9"]


def test_holders_of_one_token_write_side_by_side_and_nothing_is_lost(engine: Engine) -> None:
    note(engine, 7, "0")

    def count() -> None:
        for _ in range(10):
            with Session(engine) as session, fenced(session, Lease(7)):
                row = session.scalars(select(Note)).one()
                row.text = str(int(row.text) + 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Read, add one, write: under the fence the read is part of the step, so no update is lost.
    assert texts(engine) == ["40"]


# --- among real processes --------------------------------------------------------------------------------------------

HOLDER = """
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from fencegate.core.errors import StaleToken
from fencegate.sql import fenced

engine = create_engine("sqlite:///" + sys.argv[1], connect_args={"timeout": 60})
where, token = sys.argv[2], int(sys.argv[3])

def stop(at):
    if at == where:
        signal.raise_signal(signal.SIGSTOP)

def bump(session):
    seen = session.execute(text("SELECT text FROM notes WHERE id = 1")).scalar_one()
    stop("inside")
    session.execute(text("UPDATE notes SET text = :new WHERE id = 1"), {"new": seen + "+" + str(token)})

with Session(engine) as session:
    try:
        if where == "before":
            session.execute(text("SELECT text FROM notes WHERE id = 1")).scalar_one()
            session.rollback()
            stop("before")
        with fenced(session, lock_key="job:rebuild", token=token):
            if where == "between":
                session.execute(text("SELECT text FROM notes WHERE id = 1")).scalar_one()
                session.commit()
                stop("between")
            bump(session)
        say("written")
    except StaleToken as stale:
        say("stale %d %d" % (stale.token, stale.highest))
"""


@pytest.mark.parametrize("where", ["before", "between"])
def test_a_holder_stopped_between_its_read_and_its_write_is_refused(engine: Engine, path: Path, where: str) -> None:
    note(engine, 1, "start")
    with Child(HOLDER, path, where, 7) as stale:
        stale.wait_until_stopped()
        with Child(HOLDER, path, "nowhere", 8) as successor:
            assert successor.line() == "written"
        stale.proceed()
        assert stale.line() == "stale 7 8"
    assert texts(engine) == ["start+8"]


def test_a_holder_stopped_inside_its_transaction_blocks_its_successor_but_never_overtakes_it(
    engine: Engine, path: Path
) -> None:
    note(engine, 1, "start")
    impatient = create_engine(f"sqlite:///{path}", connect_args={"timeout": 0.2})
    with Child(HOLDER, path, "inside", 7) as stopped:
        stopped.wait_until_stopped()
        with pytest.raises(ResourceUnavailable) as busy:
            note(impatient, 8, "blocked")
        assert busy.value.outcome == "not-written"
        stopped.proceed()
        assert stopped.line() == "written"
    with Child(HOLDER, path, "nowhere", 8) as successor:
        assert successor.line() == "written"
    impatient.dispose()
    assert texts(engine) == ["start+7+8"]


def test_a_holder_killed_inside_its_transaction_leaves_nothing_behind(engine: Engine, path: Path) -> None:
    note(engine, 1, "start")
    with Child(HOLDER, path, "inside", 7) as killed:
        killed.wait_until_stopped()
        killed.kill()
    with Child(HOLDER, path, "nowhere", 8) as successor:
        assert successor.line() == "written"
    assert texts(engine) == ["start+8"]
    assert mark(engine) == 8


def test_the_fence_table_is_created_by_many_processes_at_once(engine: Engine, path: Path) -> None:
    note_one = """
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session
    from fencegate.sql import fenced
    sys.stdin.readline()
    engine = create_engine("sqlite:///" + sys.argv[1], connect_args={"timeout": 60})
    with Session(engine) as session, fenced(session, lock_key="k", token=7):
        session.execute(text("INSERT INTO notes (text) VALUES (:text)"), {"text": sys.argv[2]})
    say("written")
    """
    children = [Child(note_one, path, number) for number in range(4)]
    try:
        for child in children:
            assert child.process.stdin is not None
            child.process.stdin.write("go\n")
            child.process.stdin.flush()
        assert [child.line() for child in children] == ["written"] * 4
    finally:
        for child in children:
            child.kill()
    assert len(texts(engine)) == 4
