"""Whatever happens while the first statement takes the fence along, nothing is written without it, and no connection
goes back to the pool with an answer that nobody has read (ADR 29)."""

import asyncio
import contextlib
import gc
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import pq
from sqlalchemy import Connection, Engine, event, insert, select, text
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from fencegate.core.errors import FencegateError, ResourceUnavailable, StaleToken
from fencegate.sql import fenced
from fencegate_adapters.sql import begin_psycopg, straight
from fencegate_adapters.sql.homes import home_of
from fencegate_adapters.sql.passage import Passage
from fencegate_adapters.sql.straight import Straight
from tests.eventually import eventually_sync
from tests.resources.along.ways import (
    ADD,
    WARM,
    a_lock_is_waited_for,
    backend,
    by_condition,
    by_driver,
    by_flush,
    by_look,
)
from tests.resources.databases import Database
from tests.resources.sql_notes import (
    KEY,
    Lease,
    Note,
    async_engine_of,
    engine_of,
    note,
    texts,
)


class Unexpected(Exception):
    pass


def nothing(session: Session) -> None:
    session.connection()


def a_rollback(session: Session) -> None:
    session.connection()
    session.rollback()


def a_commit(session: Session) -> None:
    session.connection()
    session.commit()


def a_close(session: Session) -> None:
    session.connection()
    session.close()


def an_error_before_the_statement(session: Session) -> None:
    with pytest.raises(StatementError):
        session.execute(text("SELECT :value"), {})
    session.execute(select(1))


def an_error_of_the_callers(session: Session) -> None:
    session.connection()
    raise Unexpected


def another_transaction(session: Session) -> None:
    for _ in range(3):
        session.connection()
        session.rollback()
        session.execute(select(1))
        session.commit()


def a_setting_of_the_driver(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    with pytest.raises(psycopg.ProgrammingError):
        driver.autocommit = True  # not inside of a transaction, the driver says


def a_pipeline_of_the_driver(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    with driver.pipeline():
        driver.execute("SELECT 1")


@pytest.mark.parametrize(
    "what",
    [
        nothing, a_rollback, a_commit, a_close, an_error_before_the_statement, an_error_of_the_callers,
        another_transaction, a_setting_of_the_driver, a_pipeline_of_the_driver,
    ],
)  # fmt: skip
def test_no_answer_is_left_in_a_connection_that_goes_back_to_the_pool(
    warm: Engine, ways: list[str], what: Callable[[Session], None]
) -> None:
    connection = backend(warm)
    ways.clear()
    with contextlib.suppress(Unexpected), Session(warm) as session, fenced(session, Lease(7)):
        what(session)
    assert ways, "it went the usual way, and this shows nothing"
    assert backend(warm) == connection
    note(warm, 7, "on it goes")
    assert backend(warm) == connection


def test_no_answer_is_left_when_a_hook_of_the_caller_fails(warm: Engine) -> None:
    connection = backend(warm)

    def hook(*_: object) -> None:
        raise Unexpected

    session = Session(warm)
    event.listen(session, "after_begin", hook)  # after ours
    with pytest.raises(Unexpected), session, fenced(session, Lease(7)):
        session.execute(select(1))
    assert backend(warm) == connection


def test_a_hook_that_fails_before_ours_opens_no_way_past_the_fence(warm: Engine, other: Engine) -> None:
    note(other, 8, "of 8")
    before = texts(other)

    def hook(*_: object) -> None:
        raise Unexpected

    event.listen(Session, "after_begin", hook, insert=True)
    try:
        with pytest.raises(StaleToken), Session(warm) as session, fenced(session, Lease(7)):
            with pytest.raises(Unexpected):
                session.connection()
            session.execute(insert(Note).values(text="stale"))
    finally:
        event.remove(Session, "after_begin", hook)
    assert texts(other) == before


def test_a_hook_of_the_caller_may_use_the_connection_at_once(warm: Engine) -> None:
    session = Session(warm)

    def hook(_session: Session, _transaction: object, connection: Connection) -> None:
        connection.exec_driver_sql("SELECT set_config('app.tenant', 'eu', true)")
        connection.connection.cursor().execute("SELECT set_config('app.user', 'ada', true)")

    event.listen(session, "after_begin", hook)
    with session, fenced(session, Lease(7)):
        asked = session.execute(text("SELECT current_setting('app.tenant'), current_setting('app.user')")).one()
        assert tuple(asked) == ("eu", "ada")


def test_a_session_that_is_forgotten_leaves_a_connection_that_is_in_order(warm: Engine) -> None:
    block = fenced(Session(warm), Lease(7))
    session = block.__enter__()
    session.connection()
    del session, block
    gc.collect()
    backend(warm)
    note(warm, 7, "on it goes")


def test_a_connection_that_ended_before_the_first_statement_wrote_nothing(
    database: Database, warm: Engine, other: Engine
) -> None:
    before = texts(other)
    lost = backend(warm)
    with pytest.raises(ResourceUnavailable) as cut, Session(warm) as session, fenced(session, Lease(7)):
        connection = session.connection()
        end(database, lost)
        connection.execute(insert(Note).values(text="lost"))
    assert cut.value.outcome == "not-written"
    assert texts(other) == before
    note(warm, 7, "on it goes")
    assert backend(warm) != lost


def test_a_connection_that_ends_between_the_passage_and_the_statement_wrote_nothing(
    database: Database, warm: Engine, other: Engine, ways: list[str]
) -> None:
    before = texts(other)
    lost = backend(warm)
    ways.clear()
    with psycopg.connect(database.url) as locker, ThreadPoolExecutor(1) as threads:
        locker.execute("LOCK TABLE notes IN EXCLUSIVE MODE")  # so the statement waits, behind the passage
        waiting = threads.submit(note, warm, 7, "lost")
        eventually_sync(lambda: a_lock_is_waited_for(database) or waiting.done())
        end(database, lost)
        with pytest.raises(DBAPIError) as cut:
            waiting.result(30)
        locker.rollback()
    assert cut.value.connection_invalidated
    assert isinstance(cut.value.orig, psycopg.errors.AdminShutdown)  # as the driver itself says
    assert ways == ["along"]
    assert texts(other) == before
    note(warm, 7, "on it goes")
    assert backend(warm) != lost


def test_a_connection_that_ends_before_the_answer_was_sent_wrote_nothing(
    database: Database, warm: Engine, other: Engine
) -> None:
    before = texts(other)
    lost = backend(warm)
    with psycopg.connect(database.url) as raiser, ThreadPoolExecutor(1) as threads:
        raiser.execute("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")  # so the passage waits in the server
        waiting = threads.submit(note, warm, 7, "lost")
        eventually_sync(lambda: a_lock_is_waited_for(database) or waiting.done())
        end(database, lost)
        with pytest.raises(ResourceUnavailable) as cut:
            waiting.result(30)
        raiser.rollback()
    assert cut.value.outcome == "not-written"
    assert texts(other) == before
    note(warm, 7, "on it goes")
    assert backend(warm) != lost


def end(database: Database, pid: int) -> None:
    database.fetch(f"SELECT pg_terminate_backend({pid})")
    eventually_sync(lambda: not database.fetch(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))


@pytest.mark.parametrize("table", ["fencegate_fences", "notes"])
def test_a_signal_while_the_answer_is_waited_for_leaves_nothing_unread(
    database: Database, warm: Engine, table: str
) -> None:
    """The passage, or the statement behind it, waits in the server; and then Ctrl-C."""
    main = threading.get_ident()
    before = texts(warm)
    with psycopg.connect(database.url) as raiser, ThreadPoolExecutor(1) as threads:
        raiser.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")

        def interrupt() -> None:
            eventually_sync(lambda: a_lock_is_waited_for(database))
            signal.pthread_kill(main, signal.SIGINT)

        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt), Session(warm) as session, fenced(session, Lease(7)):
            session.execute(insert(Note).values(text="interrupted"))
        interrupting.result(30)
        raiser.rollback()
    assert texts(warm) == before
    note(warm, 7, "on it goes")
    backend(warm)


@pytest.mark.parametrize("reset", ["rollback", None])
def test_a_signal_that_the_driver_does_not_know_leaves_nothing_unread(
    database: Database, warm: Engine, reset: Any
) -> None:
    """As a time limit of a task queue, which raises an error of its own: the driver cancels for Ctrl-C only. A pool
    that does not roll back would hand the connection on as it is."""
    main = threading.get_ident()
    before = texts(warm)
    engine = engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1, pool_reset_on_return=reset)
    for _ in range(WARM):
        with Session(engine) as session, fenced(session, Lease(7)):
            session.execute(select(1))
    usual = signal.signal(signal.SIGUSR1, raise_unexpected)
    try:
        with psycopg.connect(database.url) as raiser, ThreadPoolExecutor(1) as threads:
            raiser.execute("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")

            def interrupt() -> None:
                eventually_sync(lambda: a_lock_is_waited_for(database))
                signal.pthread_kill(main, signal.SIGUSR1)

            interrupting = threads.submit(interrupt)
            # Whoever keeps the error keeps the frames in which the driver waited.
            with pytest.raises(Unexpected) as kept, Session(engine) as session, fenced(session, Lease(7)):
                session.execute(insert(Note).values(text="interrupted"))
            interrupting.result(30)
            raiser.rollback()
    finally:
        signal.signal(signal.SIGUSR1, usual)
    note(engine, 7, "on it goes")
    backend(engine)
    assert texts(warm) == [*before, "on it goes"]
    assert kept.value.__traceback__ is not None
    engine.dispose()


def raise_unexpected(*_: object) -> None:
    raise Unexpected


@pytest.mark.parametrize("way", [by_flush, by_driver])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_interrupt_between_two_steps_leaves_nothing_unread(
    database: Database, warm: Engine, monkeypatch: pytest.MonkeyPatch, way: Callable[[Session], object], step: int
) -> None:
    """Of those in which the answers are read. (For Ctrl-C SQLAlchemy throws the connection away.)"""
    engine = engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1, pool_reset_on_return=None)
    for _ in range(WARM):
        with Session(engine) as session, fenced(session, Lease(7)):
            session.execute(select(1))
    steps: list[object] = []

    def interrupted(read: Callable[..., Any]) -> Callable[..., Any]:
        def steps_of(pgconn: Any) -> Any:
            steps.append(pgconn)
            if len(steps) == step:
                raise Unexpected
            return (yield from read(pgconn))

        return steps_of

    with monkeypatch.context() as meanwhile:
        for name in ("execute", "fetch_many"):
            meanwhile.setattr(straight, name, interrupted(getattr(straight, name)))
        with pytest.raises(Unexpected), Session(engine) as session, fenced(session, Lease(7)):
            way(session)
    note(engine, 7, "on it goes")
    backend(engine)
    assert texts(warm)[WARM:] == ["on it goes"]
    engine.dispose()


@pytest.mark.parametrize("table", ["fencegate_fences", "notes"])
async def test_a_task_that_is_cancelled_while_the_answer_is_awaited_leaves_nothing_unread(
    database: Database, warm: Engine, ways: list[str], table: str
) -> None:
    engine = async_engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1)

    async def write(text_: str) -> None:
        async with AsyncSession(engine) as session, fenced(session, Lease(7)):
            session.add(Note(text=text_))

    for number in range(WARM):
        await write(f"async {number}")
    before = texts(warm)
    ways.clear()
    with psycopg.connect(database.url) as raiser:
        raiser.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
        writing = asyncio.create_task(write("cancelled"))
        await asyncio.to_thread(eventually_sync, lambda: a_lock_is_waited_for(database))
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        raiser.rollback()
    assert ways == ["along"]
    assert texts(warm) == before
    await write("on it goes")
    await engine.dispose()


def test_an_interrupt_is_not_lost_when_the_fence_is_not_passed(
    database: Database, warm: Engine, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The passage was refused before the driver could cancel it: the statement is not tried again behind that."""
    main = threading.get_ident()
    connection = backend(warm)
    ways.clear()
    with psycopg.connect(database.url) as newer, ThreadPoolExecutor(1) as threads:
        newer.execute("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")
        newer.execute("UPDATE fencegate_fences SET token = 8 WHERE lock_key = %s", [KEY.encode()])

        def interrupt() -> None:
            eventually_sync(lambda: a_lock_is_waited_for(database))
            signal.pthread_kill(main, signal.SIGINT)

        def too_late(*_: Any, **__: Any) -> None:
            newer.commit()

        monkeypatch.setattr(psycopg.Connection, "_try_cancel", too_late)
        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt), Session(warm) as session, fenced(session, Lease(7)):
            session.execute(insert(Note).values(text="interrupted"))
        interrupting.result(30)
    assert ways == ["along"]
    assert backend(warm) != connection  # SQLAlchemy throws it away
    with pytest.raises(StaleToken):
        note(warm, 7, "stale")


async def test_a_cancellation_is_not_lost_when_the_fence_is_not_passed(
    database: Database, warm: Engine, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = async_engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1)
    for _ in range(WARM):
        async with AsyncSession(engine) as session, fenced(session, Lease(7)):
            await session.execute(select(1))
    ways.clear()

    async def write() -> None:
        async with AsyncSession(engine) as session, fenced(session, Lease(7)):
            session.add(Note(text="cancelled"))

    with psycopg.connect(database.url) as newer:
        newer.execute("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")
        newer.execute("DELETE FROM fencegate_fences")  # so that the usual way would pass

        async def too_late(*_: Any, **__: Any) -> None:
            newer.commit()

        monkeypatch.setattr(psycopg.AsyncConnection, "_try_cancel", too_late)
        writing = asyncio.create_task(write())
        await asyncio.to_thread(eventually_sync, lambda: a_lock_is_waited_for(database))
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert ways == ["along"]
    assert len(texts(warm)) == WARM
    await engine.dispose()


@pytest.mark.parametrize("way", [by_condition, by_driver])
def test_behind_a_begin_that_was_cancelled_the_fence_is_still_to_be_passed(
    database: Database, warm: Engine, other: Engine, way: Callable[[Session], object]
) -> None:
    """Nothing has begun then, and the driver would begin by itself."""
    slow = "PREPARE fencegate_begin_1 AS SELECT pg_sleep(30)"
    with warm.connect() as connection:
        connection.exec_driver_sql(f"SET statement_timeout = 200; DEALLOCATE fencegate_begin_1; {slow}")
        connection.commit()
    note(other, 8, "of 8")
    before = texts(other)
    with contextlib.suppress(FencegateError, DBAPIError), Session(warm) as session, fenced(session, Lease(7)):
        with pytest.raises((DBAPIError, psycopg.errors.QueryCanceled)):
            way(session)
        with contextlib.suppress(psycopg.Error):
            by_driver(session)
        session.commit()
    assert texts(other) == before


@pytest.mark.parametrize("way", [by_look, by_driver])
def test_behind_a_signal_before_anything_was_sent_the_fence_is_still_to_be_passed(
    warm: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch, way: Callable[[Session], object]
) -> None:
    note(other, 8, "of 8")
    before = texts(warm)
    connection = backend(warm)

    def interrupted(self: Straight) -> Any:
        raise Unexpected

    with pytest.raises(StaleToken), Session(warm) as session, fenced(session, Lease(7)):
        with monkeypatch.context() as meanwhile, pytest.raises(Unexpected):
            meanwhile.setattr(Straight, "_passing", interrupted)
            way(session)
        by_driver(session)
        session.commit()
    assert texts(warm) == before
    assert backend(warm) == connection


@pytest.mark.parametrize("behind", [(Straight, "_begin_to_pass"), (begin_psycopg, "exchange")])
def test_a_signal_before_the_passage_or_behind_its_refusal_opens_no_way_for_cursors_of_the_driver(
    warm: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch, behind: tuple[object, str]
) -> None:
    """Nothing was sent yet; or what did not pass was rolled back, and the usual way is still to be gone."""
    note(other, 8, "of 8")
    before = texts(other)
    step = getattr(*behind)

    def interrupted(*given: Any) -> None:
        step(*given)
        raise Unexpected

    with pytest.raises(StaleToken), Session(warm) as session, fenced(session, Lease(7)):
        with monkeypatch.context() as meanwhile, pytest.raises(Unexpected):
            meanwhile.setattr(*behind, interrupted)
            session.execute(insert(Note).values(text="stale"))
        by_driver(session)
        session.commit()
    assert texts(other) == before


def test_a_signal_before_anything_is_planned_opens_no_way_for_cursors_of_the_driver(
    warm: Engine, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(other, 8, "of 8")
    before = texts(other)

    def interrupted(*_: object) -> None:
        raise Unexpected

    with pytest.raises(StaleToken), Session(warm) as session, fenced(session, Lease(7)):
        with monkeypatch.context() as meanwhile, pytest.raises(Unexpected):
            meanwhile.setattr(Passage, "begun", interrupted)
            session.connection()
        by_driver(session)
        session.commit()
    assert texts(other) == before


def test_a_fence_table_that_cannot_be_looked_for_opens_no_way_for_cursors_of_the_driver(
    warm: Engine, other: Engine
) -> None:
    """Since no other connection is to be had."""
    note(other, 8, "of 8")
    before = texts(other)
    with pytest.raises(ResourceUnavailable), Session(warm) as session, fenced(session, Lease(7)):
        home_of(warm).prepared = False
        with pytest.raises(ResourceUnavailable, match="QueuePool"):
            session.connection()
        by_driver(session)
        session.commit()
    assert texts(other) == before


def test_where_somebody_else_has_replaced_the_drivers_wait_it_passes_at_once(warm: Engine, ways: list[str]) -> None:
    with warm.connect() as connection:
        driver: Any = connection.connection.driver_connection
        wait = driver.wait
    waits = []

    def noted(*given: Any, **named: Any) -> Any:
        waits.append(given)
        return wait(*given, **named)

    driver.wait = noted
    ways.clear()
    with Session(warm) as session, fenced(session, Lease(7)):
        session.connection()
        assert len(waits) == 1
        session.add(Note(text="on it goes"))
    assert ways == ["alone"]
    assert driver.wait is noted


def test_two_blocks_around_one_session_pass_alone(warm: Engine, other: Engine, ways: list[str]) -> None:
    ways.clear()
    with Session(warm) as session:
        for number in range(3):
            with fenced(session, Lease(7)), fenced(session, Lease(7, "job:b")):
                session.execute(insert(Note).values(text=f"on it goes {number}"))
        assert ways
        assert "along" not in ways
        note(other, 8, "of 8")
        with pytest.raises(FencegateError), fenced(session, Lease(7, "job:b")), fenced(session, Lease(7)):
            session.execute(insert(Note).values(text="stale"))
    assert "stale" not in texts(warm)


def test_an_interrupt_between_raising_a_mark_and_hearing_of_it_leaves_nothing_unread(
    database: Database, warm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1, pool_reset_on_return=None)
    for _ in range(WARM):
        with Session(engine) as session, fenced(session, Lease(7)):
            session.execute(select(1))
    before = texts(warm)
    interrupts: list[Unexpected] = []
    wait = psycopg.Connection.wait

    def interrupted(self: Any, *given: Any, **named: Any) -> Any:
        if self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE and not interrupts:
            interrupts.append(Unexpected())
            raise interrupts[0]
        return wait(self, *given, **named)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(psycopg.Connection, "wait", interrupted)
        with pytest.raises(Unexpected) as kept, Session(engine) as session, fenced(session, Lease(8)):
            session.execute(insert(Note).values(text="interrupted"))
    assert interrupts
    note(engine, 9, "on it goes")
    backend(engine)
    assert texts(warm) == [*before, "on it goes"]
    assert kept.value.__traceback__ is not None
    engine.dispose()


@pytest.mark.parametrize("table", ["fencegate_fences", "notes"])
def test_a_connection_of_psycopg_that_a_signal_leaves_unread_does_not_keep_the_fence(
    database: Database, warm: Engine, other: Engine, table: str
) -> None:
    """Neither while it passes, nor in a statement of the block: the server would go on with its transaction."""
    main = threading.get_ident()
    before = texts(warm)
    usual = signal.signal(signal.SIGUSR1, raise_unexpected)
    try:
        with psycopg.connect(database.url) as raiser, ThreadPoolExecutor(1) as threads:
            connection = psycopg.connect(database.url)
            raiser.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")

            def interrupt() -> None:
                eventually_sync(lambda: a_lock_is_waited_for(database))
                signal.pthread_kill(main, signal.SIGUSR1)

            interrupting = threads.submit(interrupt)
            with pytest.raises(Unexpected) as kept, fenced(connection, Lease(7)):
                connection.execute(ADD, ["interrupted"])
            interrupting.result(30)
            raiser.rollback()
    finally:
        signal.signal(signal.SIGUSR1, usual)
    assert connection.closed
    note(other, 8, "of 8")
    assert texts(warm) == [*before, "of 8"]
    assert kept.value.__traceback__ is not None
