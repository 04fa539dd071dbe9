"""BEGIN and the passage are sent ahead in PostgreSQL, and the answer is read later: whatever comes in between, nothing
is written without the fence, and no connection goes back to the pool with an answer that nobody has read (ADR 26)."""

import asyncio
import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq
from sqlalchemy import Connection, Engine, Sequence, event, insert, select, text
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from fencegate.core.errors import FencegateError, ResourceUnavailable, StaleToken
from fencegate.sql import fenced
from fencegate_adapters.sql.straight import Straight
from tests.eventually import eventually_sync
from tests.real import pgbouncer
from tests.real.pgbouncer import Pgbouncer
from tests.real.postgres import PostgresServer
from tests.resources.databases import Database, make_database
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

WARM = 5
ADD = "INSERT INTO notes (text) VALUES (%s)"


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database("postgresql", request, tmp_path)


@pytest.fixture
def warm(database: Database) -> Iterator[Engine]:
    """An engine with one connection, which has passed with token 7 often enough to be quick."""
    with notes_in(database):
        engine = engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1)
        for number in range(WARM):
            note(engine, 7, f"{number}")
        yield engine
        engine.dispose()


@pytest.fixture
def other(database: Database, warm: Engine) -> Iterator[Engine]:
    engine = engine_of(database)
    yield engine
    engine.dispose()


@pytest.fixture
def pooler(postgres_server: PostgresServer) -> Iterator[Pgbouncer]:
    if reason := pgbouncer.missing():
        pytest.skip(reason)
    pooler = Pgbouncer(postgres_server)
    yield pooler
    pooler.terminate()


class Pooled(Database):
    kind = "postgresql"

    def __init__(self, url: str) -> None:
        self.url = url


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What was sent, and whether ahead: a test that never sends ahead shows nothing."""
    found: list[bool] = []
    send = Straight.send

    def noted(self: Straight, *given: Any, **named: Any) -> bool:
        found.append(send(self, *given, **named))
        return found[-1]

    monkeypatch.setattr(Straight, "send", noted)
    return found


def backend(engine: Engine) -> int:
    """Which connection the pool has; nothing of the last transaction is left in it."""
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        assert driver.pgconn.transaction_status == pq.TransactionStatus.IDLE
        assert driver.pgconn.pipeline_status == pq.PipelineStatus.OFF
        assert "wait" not in vars(driver)
        return int(driver.info.backend_pid)


def by_sequence(session: Session) -> object:
    return session.scalar(Sequence("notes_id_seq"))  # SQLAlchemy tells nobody before it executes this


def by_driver(session: Session) -> object:
    return session.connection().connection.cursor().execute(ADD, ["written"])


def by_copy(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    with driver.cursor().copy("COPY notes (text) FROM STDIN") as copy:
        copy.write_row(["written"])


def by_savepoint(session: Session) -> None:
    with session.begin_nested():
        session.add(Note(text="written"))


def by_drivers_savepoint(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    with driver.transaction():
        driver.execute(ADD, ["written"])


def by_flush(session: Session) -> None:
    session.add(Note(text="written"))


def by_many(session: Session) -> None:
    session.execute(text("INSERT INTO notes (text) VALUES (:text)"), [{"text": "written"}, {"text": "written too"}])


def by_look(session: Session) -> object:
    return session.scalars(select(Note.text)).all()


WAYS: list[Callable[[Session], object]] = [
    by_sequence, by_driver, by_copy, by_savepoint, by_drivers_savepoint, by_flush, by_many, by_look,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_whatever_comes_first_passes_or_is_refused_as_stale(
    warm: Engine, other: Engine, sent: list[bool], way: Callable[[Session], object]
) -> None:
    connection = backend(warm)
    with Session(warm) as session, fenced(session, Lease(7)):
        way(session)
    assert sent[-1], "it was not sent ahead, and this shows nothing"
    written = texts(warm)
    note(other, 8, "of 8")
    with pytest.raises(StaleToken) as refused, Session(warm) as session, fenced(session, Lease(7)):
        way(session)
    assert sent[-1]
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
            eventually_sync(lambda: somebody_waits(database) or waiting.done())
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


# --- the answer is read, whatever happens ----------------------------------------------------------------------------


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
    warm: Engine, sent: list[bool], what: Callable[[Session], None]
) -> None:
    connection = backend(warm)
    before = len(sent)
    with contextlib.suppress(Unexpected), Session(warm) as session, fenced(session, Lease(7)):
        what(session)
    assert True in sent[before:], "it was not sent ahead, and this shows nothing"
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


def test_a_connection_that_ends_after_the_answer_was_sent_wrote_nothing(
    database: Database, warm: Engine, other: Engine
) -> None:
    before = texts(other)
    lost = backend(warm)
    with pytest.raises(DBAPIError), Session(warm) as session, fenced(session, Lease(7)):
        connection = session.connection()
        end(database, lost)
        connection.execute(insert(Note).values(text="lost"))
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
        eventually_sync(lambda: somebody_waits(database) or waiting.done())
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


def test_a_signal_while_the_answer_is_waited_for_leaves_nothing_unread(database: Database, warm: Engine) -> None:
    """A floor is being raised, so the passage waits in the server; and then Ctrl-C."""
    main = threading.get_ident()
    before = texts(warm)
    with psycopg.connect(database.url) as raiser, ThreadPoolExecutor(1) as threads:
        raiser.execute("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")

        def interrupt() -> None:
            eventually_sync(lambda: somebody_waits(database))
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
                eventually_sync(lambda: somebody_waits(database))
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


def test_an_interrupt_just_before_the_answer_is_waited_for_leaves_nothing_unread(
    database: Database, warm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing has begun that could clean up after itself. (For Ctrl-C SQLAlchemy throws the connection away.)"""
    engine = engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1, pool_reset_on_return=None)
    for _ in range(WARM):
        with Session(engine) as session, fenced(session, Lease(7)):
            session.execute(select(1))
    wait = psycopg.Connection.wait
    interrupts: list[Unexpected] = []

    def interrupted(self: Any, *given: Any, **named: Any) -> Any:
        if self.pgconn.pipeline_status == pq.PipelineStatus.ON and not interrupts:
            interrupts.append(Unexpected())
            raise interrupts[0]
        return wait(self, *given, **named)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(psycopg.Connection, "wait", interrupted)
        with pytest.raises(Unexpected), Session(engine) as session, fenced(session, Lease(7)):
            session.execute(insert(Note).values(text="interrupted"))
    note(engine, 7, "on it goes")
    backend(engine)
    assert "interrupted" not in texts(warm)
    engine.dispose()


async def test_a_task_that_is_cancelled_while_the_answer_is_awaited_leaves_nothing_unread(
    database: Database, warm: Engine
) -> None:
    engine = async_engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1)

    async def write(text_: str) -> None:
        async with AsyncSession(engine) as session, fenced(session, Lease(7)):
            session.add(Note(text=text_))

    for number in range(WARM):
        await write(f"async {number}")
    before = texts(warm)
    with psycopg.connect(database.url) as raiser:
        raiser.execute("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")
        writing = asyncio.create_task(write("cancelled"))
        await asyncio.to_thread(eventually_sync, lambda: somebody_waits(database))
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        raiser.rollback()
    assert texts(warm) == before
    await write("on it goes")
    await engine.dispose()


def test_a_driver_whose_wait_somebody_else_has_replaced_is_waited_for(warm: Engine, sent: list[bool]) -> None:
    waits = []
    with warm.connect() as connection:
        driver: Any = connection.connection.driver_connection
        wait = driver.wait

    def noted(*given: Any, **named: Any) -> Any:
        waits.append(driver.pgconn.pipeline_status)
        return wait(*given, **named)

    driver.wait = noted
    before = len(sent)
    note(warm, 7, "on it goes")
    assert sent[before:] == [False]
    assert pq.PipelineStatus.ON in waits
    assert driver.wait is noted


def test_two_blocks_around_one_session_wait_for_their_answers(warm: Engine, other: Engine, sent: list[bool]) -> None:
    with Session(warm) as session:
        for _ in range(3):
            before = len(sent)
            with fenced(session, Lease(7)), fenced(session, Lease(7, "job:b")):
                session.execute(select(1))
            assert True not in sent[before:]
        note(other, 8, "of 8")
        with pytest.raises(FencegateError), fenced(session, Lease(7, "job:b")), fenced(session, Lease(7)):
            session.execute(insert(Note).values(text="stale"))
    assert "stale" not in texts(warm)


@pytest.mark.parametrize("sent_by", ["send", "exchange"])
def test_an_interrupt_between_sending_and_waiting_leaves_nothing_unread(
    database: Database, warm: Engine, monkeypatch: pytest.MonkeyPatch, sent_by: str
) -> None:
    """Where the answer is waited for at once: BEGIN with the passage, and the message that raises a mark."""
    engine = engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1, pool_reset_on_return=None)
    for _ in range(WARM):
        with Session(engine) as session, fenced(session, Lease(7)), fenced(session, Lease(7, "job:b")):
            session.execute(select(1))
    before = texts(warm)
    interrupts: list[Unexpected] = []
    wait = psycopg.Connection.wait

    def interrupted(self: Any, *given: Any, **named: Any) -> Any:
        if self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE and not interrupts:
            interrupts.append(Unexpected())
            raise interrupts[0]
        return wait(self, *given, **named)

    def interrupted_read(self: Straight, driver: Any) -> None:
        interrupts.append(Unexpected())
        raise interrupts[0]

    with monkeypatch.context() as meanwhile:
        if sent_by == "send":
            meanwhile.setattr(Straight, "read", interrupted_read)
        else:
            meanwhile.setattr(psycopg.Connection, "wait", interrupted)
        token = 7 if sent_by == "send" else 8
        with (
            pytest.raises(Unexpected) as kept,
            Session(engine) as session,
            fenced(session, Lease(token)),
            fenced(session, Lease(token, "job:b")),
        ):
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
                eventually_sync(lambda: bool(database.fetch("SELECT 1 FROM pg_locks WHERE NOT granted")))
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


# --- forked processes, and a pooler ----------------------------------------------------------------------------------


def in_child(body: Callable[[], object]) -> int:
    """What `body` came to in a forked process: 0, or 1 when it raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            body()
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_goes_on_with_connections_of_its_own(warm: Engine, sent: list[bool]) -> None:
    def work() -> None:
        warm.dispose(close=False)  # as SQLAlchemy asks for
        for number in range(WARM):
            note(warm, 7, f"of the child {number}")

    assert in_child(work) == 0
    with Session(warm) as session, fenced(session, Lease(7)):
        session.connection()
        assert sent[-1], "it was not sent ahead, and this shows nothing"
        assert in_child(lambda: None) == 0
        session.add(Note(text="of the parent"))
    assert texts(warm)[WARM:] == [*(f"of the child {number}" for number in range(WARM)), "of the parent"]


@pytest.mark.parametrize("what", ["rollback", "commit", "close"])
def test_a_forked_process_does_not_take_its_parents_answer(warm: Engine, sent: list[bool], what: str) -> None:
    """As when it leaves the block by an exception. The parent would wait for ever."""
    connection = backend(warm)
    with Session(warm) as session, fenced(session, Lease(7)):
        session.connection()
        assert sent[-1], "it was not sent ahead, and this shows nothing"
        in_child(getattr(session, what))
        session.add(Note(text="of the parent"))
    assert texts(warm)[-1] == "of the parent"
    assert backend(warm) == connection


def test_behind_a_transaction_pooler_it_is_sent_ahead_all_the_same(
    pooler: Pgbouncer, postgres_server: PostgresServer, sent: list[bool]
) -> None:
    """What is prepared is lost whenever the pooler gives a transaction another connection."""
    through = Pooled(pooler.url)
    with notes_in(through):
        # The driver's own statements would fail there; ours don't.
        engine = engine_of(through, pool_size=8, connect_args={"prepare_threshold": 1_000_000})

        def work(worker: int) -> None:
            for number in range(60):
                key, token = f"pooled:{worker}", 10 + number // 20
                note(engine, token, f"{worker} {number}", key)
                if number % 20 == 0:
                    with pytest.raises(StaleToken):
                        note(engine, token - 1, "stale", key)

        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(work, worker) for worker in range(8)]:
                done.result(120)
        assert sent.count(True) > 100
        assert len(texts(engine)) == 8 * 60
        engine.dispose()
    postgres_server.execute("DROP TABLE notes, fencegate_fences, fencegate_resources")
