"""`fenced` in the caller's own transactions on real databases of each kind: what it lets pass, and what waits."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from fencegate.core.errors import ResourceUnavailable, StaleToken, UnsafeConfiguration
from fencegate.sql import fenced
from fencegate.sync import connect
from fencegate_adapters.sql import RowsResource
from fencegate_adapters.sql.passage import _QUICKLY
from fencegate_adapters.sql.protect import install
from fencegate_adapters.sql.protect.wanted import Wanted, table_name
from tests.eventually import eventually_sync
from tests.resources.databases import KINDS, Database, make_database
from tests.resources.sql_notes import (
    KEY,
    Lease,
    Note,
    async_engine_of,
    engine_of,
    mark,
    note,
    notes_in,
    somebody_waits,
    texts,
)

SERVERS = ("postgresql", "mariadb")
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


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


on_servers = pytest.mark.parametrize("database", SERVERS, indirect=True)
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
on_mariadb = pytest.mark.parametrize("database", ["mariadb"], indirect=True)


# --- passing, and being refused --------------------------------------------------------------------------------------


def test_marks_commit_with_the_work_and_a_stale_holder_is_refused_before_it_sees_anything(engine: Engine) -> None:
    for number in range(6):  # the same token again and again, on one connection: every way to pass is taken
        note(engine, 7, f"{number} of 7")
    note(engine, 8, "of 8")
    with pytest.raises(StaleToken) as refused, Session(engine) as session, fenced(session, Lease(7)):
        session.scalars(select(Note.text)).all()
        pytest.fail("a stale holder got to see the data")
    assert (refused.value.token, refused.value.highest) == (7, 8)
    note(engine, 8, "again")
    assert texts(engine)[-2:] == ["of 8", "again"]
    assert len(texts(engine)) == 8
    assert mark(engine) == 8


@pytest.mark.parametrize("times", [1, 6])
def test_a_refusal_that_is_swallowed_lets_nothing_be_committed_by_hand(engine: Engine, times: int) -> None:
    """A cursor of the driver goes on where a statement was refused, and nobody meets it."""
    for number in range(times):
        note(engine, 7, f"{number} of 7")
    note(engine, 8, "of 8")
    before = texts(engine)
    with pytest.raises(StaleToken), Session(engine) as session, fenced(session, Lease(7)):
        with pytest.raises(StaleToken):
            session.connection().execute(text("DELETE FROM notes"))
        session.connection().connection.cursor().execute("INSERT INTO notes (text) VALUES ('stale')")
        session.commit()
        pytest.fail("a stale holder committed")
    assert texts(engine) == before


def test_a_refusal_that_is_swallowed_lets_nothing_be_committed_by_a_connection(engine: Engine) -> None:
    note(engine, 8, "of 8")
    before = texts(engine)
    with pytest.raises(StaleToken), engine.connect() as connection, fenced(connection, Lease(7)):
        with pytest.raises(StaleToken):
            connection.execute(text("DELETE FROM notes"))
        connection.connection.cursor().execute("INSERT INTO notes (text) VALUES ('stale')")
        connection.commit()
        pytest.fail("a stale holder committed")
    assert texts(engine) == before
    note(engine, 8, "on it goes")


def test_what_is_rolled_back_is_not_there_and_a_new_transaction_of_the_block_is_fenced(engine: Engine) -> None:
    with pytest.raises(StaleToken), Session(engine) as session, fenced(session, Lease(7)):
        session.add(Note(text="first"))
        session.commit()
        session.add(Note(text="undone"))
        session.flush()
        session.rollback()
        note(engine, 8, "of 8")
        session.add(Note(text="late"))
    with pytest.raises(ZeroDivisionError), Session(engine) as session, fenced(session, Lease(9)):
        session.add(Note(text="undone"))
        session.flush()
        _ = 1 // 0
    assert texts(engine) == ["first", "of 8"]


async def test_async_sessions_and_connections_are_fenced(engine: Engine, async_engine: AsyncEngine) -> None:
    for number in range(6):
        async with AsyncSession(async_engine) as session, fenced(session, Lease(7)):
            session.add(Note(text=f"{number} of 7"))
    async with async_engine.connect() as connection, fenced(connection, Lease(8)):
        await connection.execute(insert(Note).values(text="of 8"))
    for _ in range(2):
        with pytest.raises(StaleToken):
            async with AsyncSession(async_engine) as session, fenced(session, Lease(7)):
                session.add(Note(text="late"))
    assert len(texts(engine)) == 7
    assert mark(engine) == 8


def test_several_leases_pass_together_or_not_at_all(engine: Engine) -> None:
    note(engine, 8, "of 8", "job:b")
    with Session(engine) as session, fenced(session, Lease(9, "job:b"), Lease(3, "job:a"), Lease(5, "job:c")):
        session.add(Note(text="all"))
    assert [mark(engine, f"job:{name}") for name in "abc"] == [3, 9, 5]
    with (
        pytest.raises(StaleToken),
        Session(engine) as session,
        fenced(session, Lease(4, "job:a"), Lease(8, "job:b"), Lease(6, "job:c")),
    ):
        session.add(Note(text="late"))
    assert [mark(engine, f"job:{name}") for name in "abc"] == [3, 9, 5]
    for _ in range(2):
        with Session(engine) as session, fenced(session, Lease(9, "job:b"), Lease(3, "job:a")):
            session.execute(update(Note).values(text="both").where(Note.text == "all"))
    assert texts(engine) == ["of 8", "both"]


def test_what_hold_all_gives_is_taken_as_it_is(engine: Engine) -> None:
    with connect("memory://") as locks:
        with locks.hold_all(["job:b", "job:a"]) as leases, Session(engine) as session, fenced(session, leases):
            session.add(Note(text="both"))
        assert mark(engine, "job:a") == leases["job:a"].token
        assert mark(engine, "job:b") == leases["job:b"].token
        with (
            locks.hold_all([("job:a", "shared"), "job:b"]) as leases,
            Session(engine) as session,
            pytest.raises(TypeError, match="shared"),
        ):
            fenced(session, leases)
    with pytest.raises(TypeError, match="different tokens"):
        fenced(Session(engine), Lease(7), Lease(8))


def test_whoever_goes_round_fenced_is_refused_by_a_protected_table_and_fenced_is_not(
    database: Database, engine: Engine
) -> None:
    note(engine, 7, "before")
    install.protect(database.url, Wanted(table_name("notes"), ("id",), KEY, None))
    with Session(engine) as session, fenced(session, Lease(7)):
        session.add(Note(text="fenced"))
    with Session(engine) as session, fenced(session, Lease(8), Lease(5, "job:other")):
        session.add(Note(text="under two locks"))
    with pytest.raises(DBAPIError, match="fencing token required"), Session(engine) as session:
        session.add(Note(text="bare"))  # on the connection that was under the fence before
        session.commit()
    with (
        pytest.raises(DBAPIError, match="fencing token required"),
        Session(engine) as session,
        fenced(session, Lease(9, "job:other")),
    ):
        session.add(Note(text="under another lock"))
    assert texts(engine) == ["before", "fenced", "under two locks"]


@pytest.mark.parametrize("locks", [(KEY,), (KEY, "job:other")])
@pytest.mark.parametrize("times", [0, 1, 6])  # the oftener it has passed, the shorter the way that it takes
def test_a_token_below_a_floor_is_refused(
    database: Database, engine: Engine, locks: tuple[str, ...], times: int
) -> None:
    def write(token: int, text_: str) -> None:
        with Session(engine) as session, fenced(session, *(Lease(token, lock) for lock in locks)):
            session.add(Note(text=text_))

    write(6, "first")
    for number in range(times):
        write(89, f"{number}")
    database.execute("INSERT INTO fencegate_resources VALUES ('r', 'g', 'f', 'enforce', 90)")
    with pytest.raises(StaleToken) as refused:
        write(89, "late")
    assert refused.value.highest == 90
    write(90, "at the floor")
    assert texts(engine) == ["first", *map(str, range(times)), "at the floor"]


# --- who waits for whom ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("database", "protected"), [("postgresql", False), ("mariadb", False), ("mariadb", True)], indirect=["database"]
)
def test_holders_of_one_token_write_at_the_same_time(database: Database, engine: Engine, protected: bool) -> None:
    note(engine, 7, "first")
    if protected:
        install.protect(database.url, Wanted(table_name("notes"), ("id",), KEY, None))
    with Session(engine) as one, Session(engine) as two, fenced(one, Lease(7)):
        one.add(Note(text="one"))
        one.flush()
        with fenced(two, Lease(7)):  # if it had to wait for the other, it would wait for ever
            two.add(Note(text="two"))
        assert texts(engine) == ["first", "two"]
    assert sorted(texts(engine)) == ["first", "one", "two"]


@on_postgresql
def test_holders_of_a_new_token_write_at_the_same_time_from_the_first(engine: Engine) -> None:
    note(engine, 6, "before")
    with Session(engine) as one, Session(engine) as two, fenced(one, Lease(7)):
        one.add(Note(text="one"))
        one.flush()
        with fenced(two, Lease(7)):
            two.add(Note(text="two"))
        assert texts(engine) == ["before", "two"]
    assert sorted(texts(engine)) == ["before", "one", "two"]


@on_postgresql
def test_a_process_that_has_not_met_the_token_before_writes_beside_those_who_have(
    database: Database, engine: Engine
) -> None:
    note(engine, 7, "first")
    another = engine_of(database)  # as in a worker process that was given the lease
    with Session(engine) as one, Session(another) as two, fenced(one, Lease(7)):
        one.add(Note(text="one"))
        one.flush()
        with fenced(two, Lease(7)):
            two.add(Note(text="two"))
        assert texts(engine) == ["first", "two"]
    another.dispose()
    assert sorted(texts(engine)) == ["first", "one", "two"]


@on_servers
def test_a_holder_that_became_stale_is_refused_at_once_while_a_newer_one_is_at_work(
    database: Database, engine: Engine
) -> None:
    """It asked for the row alone, with a share of it: two were a deadlock, now and then at the cost of the newer."""
    note(engine, 7, "of 7")
    newer = engine_of(database)
    note(newer, 8, "of 8")
    with Session(newer) as session, fenced(session, Lease(8)):
        session.add(Note(text="of 8 too"))
        session.flush()
        with pytest.raises(StaleToken):  # or it waits for the other for longer than anybody does
            note(engine, 7, "stale")
    newer.dispose()
    assert texts(engine) == ["of 7", "of 8", "of 8 too"]


@on_servers
@pytest.mark.parametrize("level", LEVELS)
def test_a_newer_holder_waits_for_the_open_transaction_of_an_older_one_and_sees_what_it_wrote(
    database: Database, engine: Engine, level: str
) -> None:
    for number in range(5):  # so often that the older one passes in the quick way
        note(engine, 7, f"{number}")
    newer = engine_of(database, isolation_level=level)

    def count_and_note() -> None:
        with Session(newer) as session, fenced(session, Lease(8)):
            there = session.scalar(select(func.count()).select_from(Note))
            session.add(Note(text=f"after {there}"))

    with ThreadPoolExecutor(1) as threads:
        with Session(engine) as session, fenced(session, Lease(7)):
            session.add(Note(text="of 7"))
            session.flush()
            waiting = threads.submit(count_and_note)
            eventually_sync(lambda: somebody_waits(database))
            assert not waiting.done()
        waiting.result(30)
    # With a snapshot from before the wait it would have counted five, and nothing in the database would object.
    assert texts(engine)[5:] == ["of 7", "after 6"]
    with pytest.raises(StaleToken):
        note(engine, 7, "late")
    newer.dispose()


@on_servers
@pytest.mark.parametrize("locks", [(KEY,), (KEY, "job:other")])
def test_a_holder_that_waits_at_the_fence_for_a_newer_one_is_refused_and_lowers_no_mark(
    database: Database, engine: Engine, locks: tuple[str, ...]
) -> None:
    note(engine, 6, "first")

    def write() -> None:
        with Session(engine) as session, fenced(session, *(Lease(7, lock) for lock in locks)):
            session.add(Note(text="late"))

    with database.session() as newer, ThreadPoolExecutor(1) as threads:
        newer.execute("BEGIN")
        newer.execute("UPDATE fencegate_fences SET token = 8")
        late = threads.submit(write)
        eventually_sync(lambda: somebody_waits(database))
        newer.execute("COMMIT")
        with pytest.raises(StaleToken):
            late.result(30)
    assert (mark(engine), texts(engine)) == (8, ["first"])


@on_servers
@pytest.mark.parametrize("level", LEVELS)
def test_at_every_level_equal_tokens_pass_and_stale_ones_do_not(database: Database, engine: Engine, level: str) -> None:
    at_level = engine_of(database, isolation_level=level)
    for number in range(5):
        note(at_level, 7, f"{number}")
    note(engine, 8, "of 8")
    for _ in range(2):
        with pytest.raises(StaleToken):
            note(at_level, 7, "late")
    note(at_level, 9, "of 9")
    assert len(texts(engine)) == 7
    at_level.dispose()


@on_servers
def test_two_who_take_the_same_locks_in_another_order_never_wait_for_each_other(
    database: Database, engine: Engine
) -> None:
    note(engine, 1, "0", "job:a")
    start = threading.Barrier(2)

    def raise_both(first: str, second: str, tokens: range) -> int:
        passed = 0
        start.wait(30)
        for token in tokens:
            try:
                with Session(engine) as session, fenced(session, Lease(token, first), Lease(token, second)):
                    session.execute(text("UPDATE notes SET text = text + 1 WHERE id = 1"))
                    passed += 1
            except StaleToken:
                continue
        return passed

    if database.kind == "postgresql":
        database.execute("ALTER TABLE notes ALTER text TYPE bigint USING text::bigint")
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(raise_both, "job:a", "job:b", range(2, 60, 2))
        two = threads.submit(raise_both, "job:b", "job:a", range(3, 60, 2))
        passed = one.result(60) + two.result(60)  # a deadlock would be an error of the database
    assert passed >= 2
    assert database.fetch("SELECT text FROM notes")[0][0] in (passed, str(passed))


@on_servers
async def test_a_floor_waits_for_whoever_has_passed_and_nobody_passes_below_it_later(
    database: Database, engine: Engine
) -> None:
    rows = RowsResource("notes", database.url, guard_template=KEY, wait_ms=20_000)
    await rows.open()
    await asyncio.to_thread(note, engine, 7, "first")
    with Session(engine) as session, fenced(session, Lease(7)):
        session.add(Note(text="second"))
        session.flush()
        raising = asyncio.create_task(rows.raise_floor(50))
        await asyncio.to_thread(eventually_sync, lambda: somebody_waits(database) or raising.done())
        assert not raising.done(), "the floor went up while a token below it could still commit"
    await raising
    for level in LEVELS:
        low = engine_of(database, isolation_level=level)
        with pytest.raises(StaleToken) as refused:
            note(low, 49, "below")
        assert refused.value.highest == 50
        low.dispose()
    note(engine, 50, "at the floor")
    assert texts(engine) == ["first", "second", "at the floor"]
    await rows.close()


@pytest.mark.parametrize("level", LEVELS)
@on_servers
async def test_the_first_floor_of_a_resource_waits_for_whoever_has_passed(
    database: Database, engine: Engine, level: str
) -> None:
    """There is no row of it yet that could have been locked."""
    at_level = engine_of(database, isolation_level=level)
    rows = RowsResource("notes", database.url, guard_template=KEY, wait_ms=20_000)
    with Session(at_level) as session, fenced(session, Lease(7)):
        session.add(Note(text="below"))
        session.flush()
        raising = asyncio.create_task(rows.raise_floor(50))
        await asyncio.to_thread(eventually_sync, lambda: somebody_waits(database) or raising.done())
        assert not raising.done(), "the floor went up while a token below it could still commit"
    await raising
    for lock_key in (KEY, "job:new"):
        with pytest.raises(StaleToken), Session(at_level) as session, fenced(session, lock_key=lock_key, token=49):
            session.add(Note(text="below"))
    assert texts(engine) == ["below"]
    await rows.close()
    at_level.dispose()


@on_servers
async def test_a_task_that_is_cancelled_while_it_waits_for_the_fence_gives_its_connection_back(
    database: Database, engine: Engine
) -> None:
    only = async_engine_of(database, pool_size=1, max_overflow=0, pool_timeout=5)

    async def write(text_: str) -> None:
        async with AsyncSession(only) as session, fenced(session, Lease(8)):
            session.add(Note(text=text_))

    await asyncio.to_thread(note, engine, 7, "first")
    with Session(engine) as session, fenced(session, Lease(7)):
        session.execute(select(1))
        waiting = asyncio.create_task(write("cancelled"))
        await asyncio.to_thread(eventually_sync, lambda: somebody_waits(database) or waiting.done())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert isinstance(only.pool, QueuePool)
        assert only.pool.checkedout() == 0
    await write("second")
    assert texts(engine) == ["first", "second"]
    await only.dispose()


async def test_a_task_that_is_cancelled_at_the_fence_in_sqlite_ends_as_cancelled_and_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(_QUICKLY, "aiosqlite")  # the way of several statements, as when a mark is raised
    url = f"sqlite+aiosqlite:///{tmp_path / 'data.db'}"
    only = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=5, connect_args={"timeout": 1})

    async def write(token: int) -> None:
        async with AsyncSession(only) as session, fenced(session, Lease(token)):
            await session.execute(select(1))

    await write(7)
    with contextlib.closing(sqlite3.connect(tmp_path / "data.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(write(8))
        await asyncio.sleep(0.2)
        waiting.cancel()
        (ended,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError)  # and is still told of, with all that it has
    await write(9)
    await only.dispose()


# --- transactions that are not what they seem ------------------------------------------------------------------------


def test_autocommit_is_refused_before_anything_is_written(database: Database, engine: Engine) -> None:
    note(engine, 7, "first")
    always = engine_of(database, isolation_level="AUTOCOMMIT")
    for _ in range(4):
        with pytest.raises(UnsafeConfiguration, match="AUTOCOMMIT"):
            note(always, 7, "a")
    always.dispose()
    assert texts(engine) == ["first"]


@on_servers
def test_a_transaction_that_somebody_ended_by_hand_does_not_go_on_unfenced(engine: Engine) -> None:
    with pytest.raises(ResourceUnavailable) as ended, engine.connect() as connection, fenced(connection, Lease(7)):
        connection.execute(insert(Note).values(text="first"))
        connection.exec_driver_sql("COMMIT")
        connection.execute(insert(Note).values(text="after the fence was gone"))
    assert ended.value.outcome == "unknown"
    assert texts(engine) == ["first"]


@on_mariadb
def test_a_statement_that_commits_by_itself_ends_the_block(engine: Engine) -> None:
    with pytest.raises(ResourceUnavailable) as ended, Session(engine) as session, fenced(session, Lease(7)):
        session.add(Note(text="first"))
        session.flush()
        session.execute(text("CREATE TABLE implicit (id INT)"))
        session.add(Note(text="after the fence was gone"))
    assert ended.value.outcome == "unknown"
    assert texts(engine) == ["first"]


@on_postgresql
def test_a_transaction_in_which_a_swallowed_error_undid_everything_is_not_called_written(engine: Engine) -> None:
    with pytest.raises(ResourceUnavailable) as undone, Session(engine) as session, fenced(session, Lease(7)):
        session.add(Note(text="first"))
        session.flush()
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT * FROM nowhere"))
    assert undone.value.outcome == "not-written"
    assert texts(engine) == []


@on_postgresql
def test_what_was_set_for_the_transaction_before_us_is_kept_or_the_transaction_is_refused(
    database: Database, engine: Engine
) -> None:
    """A hook that names the tenant for row-level security, say: to begin again without it would show all rows."""
    note(engine, 1, "first")
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        hooked = engine_of(database, isolation_level=level)

        @event.listens_for(hooked, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("SELECT set_config('app.tenant', 'eu', true)")

        token = mark(engine) + 1
        seen = []
        for _ in range(5):
            refused = (
                contextlib.suppress(ResourceUnavailable) if level == "REPEATABLE READ" else contextlib.nullcontext()
            )
            with refused, Session(hooked) as session, fenced(session, Lease(token)):
                seen.append(session.scalar(text("SELECT current_setting('app.tenant', true)")))
        assert len(seen) >= 4
        assert set(seen) == {"eu"}
        hooked.dispose()


@on_postgresql
def test_a_connection_whose_prepared_statements_were_dropped_goes_on(engine: Engine) -> None:
    with engine.connect() as connection:
        for number in range(12):
            with fenced(connection, Lease(7)):
                connection.execute(insert(Note).values(text=f"{number}"))
            if number == 6:
                names = connection.exec_driver_sql("SELECT name FROM pg_prepared_statements").scalars().all()
                assert "fencegate_share_3" in names
                connection.exec_driver_sql("DEALLOCATE fencegate_share_3")
                connection.commit()
    assert len(texts(engine)) == 12


@on_servers
def test_the_token_is_named_to_triggers_inside_the_transaction_and_nowhere_else(
    database: Database, engine: Engine
) -> None:
    ask = {
        "postgresql": "SELECT current_setting('fencegate.lock', true), current_setting('fencegate.token', true)",
        "mariadb": "SELECT @fencegate_lock, @fencegate_token",
    }[database.kind]

    def told(session: Session | Connection) -> tuple[Any, ...]:
        return tuple(
            value.decode() if isinstance(value, bytes) else value or "" for value in session.execute(text(ask)).one()
        )

    with engine.connect() as connection:
        for _ in range(6):
            with fenced(connection, Lease(7)):
                assert told(connection) == (KEY, "7")
                connection.rollback()
                assert told(connection) == (KEY, "7")
            assert told(connection) == ("", "")
            connection.rollback()
        with fenced(connection, Lease(8, "job:b"), Lease(9, "job:a")):
            assert told(connection) == ("job:a\njob:b", "9\n8")
        assert told(connection) == ("", "")
