"""`fenced` on connections of psycopg and of Django, through a pooler, and when the answer to COMMIT is lost."""

import asyncio
import threading
import time
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from psycopg import IsolationLevel
from psycopg.rows import dict_row
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from fencegate.core.errors import LockLost, ResourceUnavailable, StaleToken, UnsafeConfiguration
from fencegate.core.ports import RowWrite
from fencegate.sql import fenced
from fencegate.testing.fault_proxy import FaultProxy
from fencegate_adapters.sql import RowsResource
from fencegate_adapters.sql.protect import install
from fencegate_adapters.sql.protect.wanted import Wanted, table_name
from tests.eventually import eventually_sync
from tests.real import pgbouncer
from tests.real.pgbouncer import Pgbouncer
from tests.real.postgres import DATABASE, USER, PostgresServer
from tests.resources.databases import Database, make_database
from tests.resources.sql_notes import KEY, Lease, engine_of, mark, note, notes_in, somebody_waits, texts

ADD = "INSERT INTO notes (text) VALUES (%s)"


class LostLease(Lease):
    def ensure_held(self) -> None:
        raise LockLost("the lease ran out")


class InterruptedLease(Lease):
    def ensure_held(self) -> None:
        raise KeyboardInterrupt


@pytest.fixture(params=["postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database(request.param, request, tmp_path)


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    with notes_in(database) as engine:
        yield engine


# --- psycopg ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_psycopg_connection_is_fenced_and_commits_at_the_end(
    database: Database, engine: Engine, autocommit: bool
) -> None:
    with psycopg.connect(database.url, autocommit=autocommit, row_factory=dict_row) as connection:
        for number in range(3):
            with fenced(connection, Lease(7)) as same:
                assert same is connection
                connection.execute(ADD, [f"{number}"])
        assert texts(engine) == ["0", "1", "2"]
        note(engine, 8, "of 8")
        with pytest.raises(StaleToken) as refused, fenced(connection, Lease(7)):
            pytest.fail("a stale holder was let in")
        assert (refused.value.token, refused.value.highest) == (7, 8)
        with pytest.raises(ZeroDivisionError), fenced(connection, Lease(8), Lease(3, "job:other")):
            connection.execute(ADD, ["undone"])
            _ = 1 // 0
        with fenced(connection, Lease(8)), connection.transaction():
            connection.execute(ADD, ["in a savepoint"])
    assert texts(engine) == ["0", "1", "2", "of 8", "in a savepoint"]


def test_a_psycopg_transaction_can_not_be_left_or_entered_by_the_back_door(database: Database, engine: Engine) -> None:
    with psycopg.connect(database.url) as connection:
        with fenced(connection, Lease(7)), pytest.raises(psycopg.ProgrammingError):
            connection.execute(ADD, ["first"])
            connection.commit()
        connection.execute("SELECT 1")
        with pytest.raises(UnsafeConfiguration), fenced(connection, Lease(7)):
            pytest.fail("it was let in")
        connection.rollback()
        with pytest.raises(ResourceUnavailable) as ended, fenced(connection, Lease(7)):
            connection.execute("COMMIT")
        assert ended.value.outcome == "unknown"
        with pytest.raises(ResourceUnavailable) as undone, fenced(connection, Lease(7)):
            connection.execute(ADD, ["undone"])
            with pytest.raises(psycopg.errors.UndefinedTable):
                connection.execute("SELECT * FROM nowhere")
        assert undone.value.outcome == "not-written"
        with pytest.raises(LockLost), fenced(connection, LostLease(7)):
            connection.execute(ADD, ["undone"])
        with pytest.raises(psycopg.errors.UniqueViolation), fenced(connection, Lease(7)):
            connection.execute(ADD, ["first"])
        with fenced(connection, Lease(7)):
            connection.execute(ADD, ["undone"])
            raise psycopg.Rollback  # as in a transaction of psycopg's own, that is no error
    with pytest.raises(ResourceUnavailable, match="closed"), fenced(connection, Lease(7)):
        pytest.fail("there is no connection any more")
    assert texts(engine) == ["first"]


def test_what_a_psycopg_connection_does_after_a_commit_as_text_is_not_written(
    database: Database, engine: Engine
) -> None:
    """The driver begins again by itself, and the end of the block looks as if nothing had happened."""
    with psycopg.connect(database.url) as connection:
        with pytest.raises(ResourceUnavailable) as ended, fenced(connection, Lease(7)):
            connection.execute("COMMIT")
            note(engine, 8, "of 8")
            connection.execute(ADD, ["stale"])
        assert ended.value.outcome == "unknown"
    assert texts(engine) == ["of 8"]


async def test_what_an_async_psycopg_connection_does_after_a_commit_as_text_is_not_written(
    database: Database, engine: Engine
) -> None:
    async with await psycopg.AsyncConnection.connect(database.url) as connection:
        with pytest.raises(ResourceUnavailable) as ended:
            async with fenced(connection, Lease(7)):
                await connection.execute("COMMIT AND CHAIN")
                await asyncio.to_thread(note, engine, 8, "of 8")
                await connection.execute(ADD, ["stale"])
        assert ended.value.outcome == "unknown"
    assert texts(engine) == ["of 8"]


def test_a_psycopg_block_is_not_put_into_the_transaction_that_another_thread_begins_at_the_same_time(
    database: Database, engine: Engine
) -> None:
    """It would be called written, and go when the other one is rolled back."""
    both_wait, second_is_over = threading.Barrier(3), threading.Event()

    def first(shared: psycopg.Connection[Any]) -> None:
        both_wait.wait(30)
        with fenced(shared, Lease(7)):
            second_is_over.wait(30)
            raise ZeroDivisionError

    def second(shared: psycopg.Connection[Any]) -> None:
        both_wait.wait(30)
        try:
            with fenced(shared, Lease(7, "job:other")):
                shared.execute(ADD, ["written"])
        finally:
            second_is_over.set()

    note(engine, 7, "first")
    with psycopg.connect(database.url) as shared, ThreadPoolExecutor(2) as threads:
        with shared.lock:
            found = [threads.submit(first, shared), threads.submit(second, shared)]
            both_wait.wait(30)
            time.sleep(0.2)  # both have found the connection idle by now
        outcomes = [done.exception(30) for done in found]
    assert isinstance(outcomes[0], UnsafeConfiguration | ZeroDivisionError)
    assert isinstance(outcomes[1], UnsafeConfiguration | None)
    assert ("written" in texts(engine)) == (outcomes[1] is None)


class _Telling(psycopg.Connection[Any]):
    waits = 0

    def wait(self, *given: Any, **named: Any) -> Any:
        self.waits += 1
        return super().wait(*given, **named)


class _TellingAsync(psycopg.AsyncConnection[Any]):
    waits = 0

    async def wait(self, *given: Any, **named: Any) -> Any:
        self.waits += 1
        return await super().wait(*given, **named)


def test_a_psycopg_block_that_comes_second_says_nothing_in_the_transaction_of_the_other_thread(
    database: Database, engine: Engine
) -> None:
    """A savepoint there, and its rollback, took away what the other one did in between: its passage, for one."""
    note(engine, 7, "first")

    def second(shared: psycopg.Connection[Any]) -> None:
        with fenced(shared, Lease(7)):
            pytest.fail("it was put into a transaction that is not its own")

    with _Telling.connect(database.url) as shared, ThreadPoolExecutor(1) as threads:
        with shared.lock:
            refused = threads.submit(second, shared)
            time.sleep(0.2)  # it has found the connection idle by now
            shared.pgconn.exec_(b"BEGIN")
            said = shared.waits
        assert isinstance(refused.exception(30), UnsafeConfiguration)
        assert shared.waits == said


async def test_an_async_psycopg_block_that_comes_second_says_nothing_in_the_transaction_of_the_other_task(
    database: Database, engine: Engine
) -> None:
    note(engine, 7, "first")

    async def second(shared: psycopg.AsyncConnection[Any]) -> None:
        async with fenced(shared, Lease(7)):
            pytest.fail("it was put into a transaction that is not its own")

    async with await _TellingAsync.connect(database.url) as shared:
        async with shared.lock:
            refused = asyncio.create_task(second(shared))
            await asyncio.sleep(0.2)
            shared.pgconn.exec_(b"BEGIN")
            said = shared.waits
        with pytest.raises(UnsafeConfiguration):
            await refused
        assert shared.waits == said


@pytest.mark.parametrize("said", ["COMMIT", "ROLLBACK"])
def test_what_a_psycopg_connection_in_autocommit_does_after_the_end_of_its_transaction_is_not_written(
    database: Database, engine: Engine, said: str
) -> None:
    """As after a statement that failed, when the caller says ROLLBACK and goes on."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        with pytest.raises(ResourceUnavailable), fenced(connection, Lease(7)):
            connection.execute(said)
            note(engine, 8, "of 8")
            connection.execute(ADD, ["stale"])
        assert connection.autocommit
        connection.execute(ADD, ["outside"])
        with pytest.raises(StaleToken), fenced(connection, Lease(7)):
            pytest.fail("a stale holder was let in")
        assert connection.autocommit
    assert texts(engine) == ["of 8", "outside"]


@pytest.mark.parametrize("said", ["COMMIT", "ROLLBACK"])
async def test_what_an_async_psycopg_connection_in_autocommit_does_after_it_is_not_written(
    database: Database, engine: Engine, said: str
) -> None:
    async with await psycopg.AsyncConnection.connect(database.url, autocommit=True) as connection:
        with pytest.raises(ResourceUnavailable):
            async with fenced(connection, Lease(7)):
                await connection.execute(said)
                await asyncio.to_thread(note, engine, 8, "of 8")
                await connection.execute(ADD, ["stale"])
        assert connection.autocommit
        with pytest.raises(StaleToken):
            async with fenced(connection, Lease(7)):
                pytest.fail("a stale holder was let in")
        assert connection.autocommit
    assert texts(engine) == ["of 8"]


def test_an_interruption_at_the_end_of_a_psycopg_block_leaves_no_transaction_open(
    database: Database, engine: Engine
) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        with pytest.raises(KeyboardInterrupt), fenced(connection, InterruptedLease(7)):
            connection.execute(ADD, ["undone"])
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert connection.autocommit
    assert texts(engine) == []


def test_a_pipeline_of_psycopg_goes_inside_of_the_block(database: Database, engine: Engine) -> None:
    """In a pipeline the answers come later, and the fence has to be known first."""
    with psycopg.connect(database.url) as connection:
        with connection.pipeline(), pytest.raises(UnsafeConfiguration, match="pipeline"), fenced(connection, Lease(7)):
            pytest.fail("it was let in")
        with fenced(connection, Lease(7)), connection.pipeline():
            connection.execute(ADD, ["inside"])
    assert texts(engine) == ["inside"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_a_connection_on_which_psycopg_would_name_another_fence_is_refused(
    database: Database, engine: Engine
) -> None:
    old = database.url + "%20-cstandard_conforming_strings%3Doff"
    with psycopg.connect(old) as connection, pytest.raises(UnsafeConfiguration, match="standard_conforming_strings"):
        fenced(connection, lock_key=KEY, token=8).__enter__()
    async with await psycopg.AsyncConnection.connect(old) as asynchronous:
        with pytest.raises(UnsafeConfiguration, match="standard_conforming_strings"):
            await fenced(asynchronous, lock_key=KEY, token=8).__aenter__()
    made = create_engine(make_url(old).set(drivername="postgresql+psycopg"))
    refused = pytest.raises(UnsafeConfiguration, match="standard_conforming_strings")
    with made.connect() as session, refused, fenced(session, lock_key=KEY, token=8):
        session.execute(text("SELECT 1"))
    made.dispose()
    rows = RowsResource("rows", old)
    with pytest.raises(UnsafeConfiguration, match="standard_conforming_strings"):
        await rows.open()
    await rows.close()
    assert mark(engine) == 0


async def test_an_async_psycopg_connection_is_fenced(database: Database, engine: Engine) -> None:
    async with await psycopg.AsyncConnection.connect(database.url) as connection:
        for number in range(3):
            async with fenced(connection, Lease(7)):
                await connection.execute(ADD, [f"{number}"])
        await connection.set_isolation_level(IsolationLevel.SERIALIZABLE)
        async with fenced(connection, Lease(8)):
            await connection.execute(ADD, ["of 8"])
        with pytest.raises(StaleToken):
            async with fenced(connection, Lease(7)):
                pytest.fail("a stale holder was let in")
        with pytest.raises(ResourceUnavailable):
            async with fenced(connection, Lease(8)):
                with pytest.raises(psycopg.errors.UndefinedTable):
                    await connection.execute("SELECT * FROM nowhere")
        async with fenced(connection, Lease(8)):
            await connection.execute(ADD, ["undone"])
            raise psycopg.Rollback
    with pytest.raises(ResourceUnavailable, match="closed"):
        async with fenced(connection, Lease(8)):
            pytest.fail("there is no connection any more")
    assert texts(engine) == ["0", "1", "2", "of 8"]


@pytest.mark.parametrize("level", IsolationLevel)
def test_a_newer_psycopg_holder_sees_what_the_older_one_it_waited_for_has_written(
    database: Database, engine: Engine, level: IsolationLevel
) -> None:
    note(engine, 7, "first")

    def count() -> Any:
        with psycopg.connect(database.url) as newer:
            newer.isolation_level = level
            with fenced(newer, Lease(8)):
                return newer.execute("SELECT count(*) FROM notes").fetchone()

    with ThreadPoolExecutor(1) as threads, psycopg.connect(database.url) as older:
        with fenced(older, Lease(7)):
            older.execute(ADD, ["second"])
            counting = threads.submit(count)
            eventually_sync(lambda: somebody_waits(database))
        assert counting.result(30) == (2,)


@pytest.mark.parametrize("by", ["sqlalchemy", "psycopg"])
@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ])
def test_a_holder_that_waits_while_a_floor_is_raised_is_refused_at_every_level(
    database: Database, engine: Engine, level: IsolationLevel, by: str
) -> None:
    """Also by statements that are prepared by then, and with a snapshot that does not change any more."""
    note(engine, 6, "first")
    with psycopg.connect(database.url) as late, psycopg.connect(database.url) as raiser:
        late.isolation_level = level
        at_level = engine_of(database, isolation_level=level.name.replace("_", " "))

        def write(number: int) -> None:
            if by == "sqlalchemy":
                note(at_level, 7, f"{number}")
                return
            with fenced(late, Lease(7)):
                late.execute(ADD, [f"{number}"])

        for number in range(8):
            write(number)
        raiser.execute("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")  # as `Dialect.keep_out` does
        raiser.execute("INSERT INTO fencegate_resources VALUES ('r', 'g', 'f', 'enforce', 90)")
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(write, 99)
            eventually_sync(lambda: somebody_waits(database) or waiting.done())
            assert not waiting.done()
            raiser.commit()
            with pytest.raises(StaleToken):
                waiting.result(30)
        with pytest.raises(StaleToken):
            write(100)
        at_level.dispose()
    assert len(texts(engine)) == 9


# --- a transaction pooler, and lost answers --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pooler(postgres_server: PostgresServer) -> Iterator[Pgbouncer]:
    if reason := pgbouncer.missing():
        pytest.skip(reason)
    pooler = Pgbouncer(postgres_server)
    yield pooler
    pooler.terminate()


def test_through_a_transaction_pooler_nothing_is_left_behind_for_others(
    pooler: Pgbouncer, postgres_server: PostgresServer
) -> None:
    """Its five connections go from hand to hand: the fence, the token and the limits must end with a transaction."""
    postgres_server.execute("CREATE TABLE IF NOT EXISTS notes (id serial PRIMARY KEY, text text UNIQUE, token bigint)")
    url = pooler.url.replace("postgresql://", "postgresql+psycopg://")
    through = Pooled(url)
    engine = engine_of(through, pool_size=10, connect_args={"prepare_threshold": None})
    tokens = iter(range(2, 1000))
    mutex = threading.Lock()

    def work(worker: int) -> None:
        for number in range(8):
            with mutex:
                token = next(tokens)
            key = f"pooled:{worker}"
            note(engine, token, f"{worker} {number}", key)
            with pytest.raises(StaleToken):
                note(engine, token - 1, "late", key)

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, worker) for worker in range(8)]:
            done.result(60)
    with engine.connect() as connection:
        ask = (
            "SELECT current_setting('fencegate.token', true), current_setting('lock_timeout'), "
            "current_setting('idle_in_transaction_session_timeout')"
        )
        for _ in range(5):
            assert connection.exec_driver_sql(ask).one()[0] in (None, "")
            assert connection.exec_driver_sql(ask).one()[1:] == ("0", "0")
            connection.rollback()
    assert len(texts(engine)) == 64
    engine.dispose()
    postgres_server.execute("DROP TABLE notes, fencegate_fences, fencegate_resources")


async def test_two_gateways_write_rows_through_a_transaction_pooler(
    pooler: Pgbouncer, postgres_server: PostgresServer
) -> None:
    """Nothing that they rest on may belong to a connection: neither a prepared statement nor a setting."""
    postgres_server.execute("CREATE TABLE pooled (id bigint PRIMARY KEY, v bigint)")
    gateways = [
        RowsResource("pooled", pooler.url, table="pooled", key=("id",), guard_template="pooled:{key}") for _ in range(2)
    ]
    for gateway in gateways:
        await gateway.open()

    async def write(number: int) -> None:
        for value in range(8):
            change = [RowWrite("put", (str(number),), {"v": str(value)})]
            await gateways[value % 2].write(f"pooled:{number}", 7 + value, change)
            with pytest.raises(StaleToken):
                await gateways[(value + 1) % 2].write(f"pooled:{number}", 6 + value, change)

    async with asyncio.TaskGroup() as writers:
        for number in range(16):
            writers.create_task(write(number))
    for gateway in gateways:
        await gateway.close()
    with psycopg.connect(postgres_server.url) as connection:
        assert connection.execute("SELECT count(*) FROM pooled WHERE v = 7").fetchone() == (16,)
    postgres_server.execute("DROP TABLE pooled, fencegate_fences, fencegate_resources")


class Pooled(Database):
    kind = "postgresql"

    def __init__(self, url: str) -> None:
        self.url = url


@pytest.mark.parametrize("by", ["sqlalchemy", "psycopg"])
def test_a_commit_whose_answer_is_lost_is_unknown_and_never_refused(
    database: Database, engine: Engine, postgres_server: PostgresServer, by: str
) -> None:
    note(engine, 7, "first")
    with FaultProxy(f"127.0.0.1:{postgres_server.port}") as proxy:
        through = Pooled(database.url.replace(f"127.0.0.1:{postgres_server.port}", proxy.address))
        if by == "sqlalchemy":
            distant = engine_of(through)
            note(distant, 7, "second")
            proxy.cut_answers(after=b"COMMIT")
            with pytest.raises(ResourceUnavailable) as lost:
                note(distant, 7, "third")
            distant.dispose()
        else:
            with psycopg.connect(through.url) as connection:
                with fenced(connection, Lease(7)):
                    connection.execute(ADD, ["second"])
                proxy.cut_answers(after=b"COMMIT")
                with pytest.raises(ResourceUnavailable) as lost, fenced(connection, Lease(7)):
                    connection.execute(ADD, ["third"])
        assert lost.value.outcome == "unknown"
        assert proxy.cuts == 1
    eventually_sync(lambda: texts(engine) == ["first", "second", "third"])


def test_a_connection_that_breaks_before_the_commit_wrote_nothing(
    database: Database, engine: Engine, postgres_server: PostgresServer
) -> None:
    note(engine, 7, "first")
    with FaultProxy(f"127.0.0.1:{postgres_server.port}") as proxy:
        distant = engine_of(Pooled(database.url.replace(f"127.0.0.1:{postgres_server.port}", proxy.address)))
        for number in range(5):
            note(distant, 7, f"{number}")
        for broken in (b"fencegate", b"INSERT INTO notes"):  # in the statement that passes, and in the caller's own
            proxy.cut_answers(after=broken)
            with pytest.raises((ResourceUnavailable, DBAPIError)) as cut:
                note(distant, 7, "lost")
            assert getattr(cut.value, "outcome", "not-written") == "not-written"
            proxy.pass_()
        note(distant, 7, "on it goes")
        distant.dispose()
    assert texts(engine)[-1] == "on it goes"
    assert "lost" not in texts(engine)


# --- Django ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def django(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Iterator[Any]:
    import django as package
    from django.db import connections

    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path_factory.mktemp("django") / "app.db")}
    postgres_server.execute("CREATE DATABASE django_app")
    postgresql = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "django_app",
        "HOST": "127.0.0.1",
        "PORT": postgres_server.port,
        "USER": USER,
    }
    assert DATABASE != "django_app"
    if not settings.configured:
        settings.configure(DATABASES={"default": sqlite, "postgresql": postgresql}, INSTALLED_APPS=[], USE_TZ=True)
        package.setup()
        names = {"sqlite": "default", "postgresql": "postgresql"}
    else:  # by other tests in this process: their settings stay, and ours are beside them
        names = {"sqlite": "fenced_sqlite", "postgresql": "fenced_postgresql"}
        blank = connections.configure_settings({"default": sqlite, "p": postgresql})
        connections.settings[names["sqlite"]] = blank["default"]
        connections.settings[names["postgresql"]] = blank["p"]
    yield names
    for name in names.values():
        connections[name].close()


@pytest.fixture(params=["sqlite", "postgresql"])
def connection(request: pytest.FixtureRequest, django: dict[str, str]) -> Iterator[Any]:
    from django.db import connections

    connection = connections[django[request.param]]
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE notes (id integer PRIMARY KEY, text varchar(100) UNIQUE)")
    yield connection
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE notes")
        if "fencegate_fences" in connection.introspection.table_names(cursor):
            cursor.execute("DELETE FROM fencegate_fences")


def add(connection: Any, number: int, text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO notes (id, text) VALUES (%s, %s)", [number, text])


def fetched(connection: Any, query: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return [row[0] for row in cursor.fetchall()]


def test_a_django_connection_is_fenced_and_commits_at_the_end(connection: Any) -> None:
    from django.db import IntegrityError, transaction

    after: list[str] = []
    for number in range(3):
        with fenced(connection, Lease(7)):
            add(connection, number, f"{number}")
            transaction.on_commit(lambda: after.append("committed"), using=connection.alias)
            with pytest.raises(ZeroDivisionError), transaction.atomic(using=connection.alias):
                add(connection, 99, "undone in a savepoint")
                _ = 1 // 0
    assert len(after) == 3
    with fenced(connection, Lease(8), Lease(3, "job:other")):
        pass
    with pytest.raises(StaleToken) as refused, fenced(connection, Lease(7)):
        pytest.fail("a stale holder was let in")
    assert (refused.value.token, refused.value.highest) == (7, 8)
    with pytest.raises(ZeroDivisionError), fenced(connection, Lease(8)):
        add(connection, 98, "undone")
        _ = 1 // 0
    with pytest.raises(LockLost), fenced(connection, LostLease(8)):
        add(connection, 97, "undone")
    with pytest.raises(IntegrityError), fenced(connection, Lease(8)):
        add(connection, 1, "1")
    with pytest.raises(ResourceUnavailable) as marked, fenced(connection, Lease(8)):
        add(connection, 96, "undone")
        transaction.set_rollback(True, using=connection.alias)
    assert marked.value.outcome == "not-written"
    assert fetched(connection, "SELECT text FROM notes ORDER BY id") == ["0", "1", "2"]
    assert fetched(connection, "SELECT token FROM fencegate_fences ORDER BY token") == [3, 8]


def test_a_django_connection_that_has_a_transaction_already_is_refused(connection: Any) -> None:
    from django.db import transaction
    from django.test import TestCase

    with (
        transaction.atomic(using=connection.alias),
        pytest.raises(UnsafeConfiguration, match="atomic"),
        fenced(connection, Lease(7)),
    ):
        pytest.fail("it was let in")
    connection.set_autocommit(False)
    with pytest.raises(UnsafeConfiguration), fenced(connection, Lease(7)):
        pytest.fail("it was let in")
    connection.set_autocommit(True)
    with fenced(connection, Lease(7)), pytest.raises(transaction.TransactionManagementError):
        connection.commit()

    class Tests(TestCase):  # type: ignore[misc]  # whose own transaction is not the caller's
        databases = {connection.alias}  # noqa: RUF012

        def test_it(self) -> None:
            with fenced(connection, Lease(8)):
                add(connection, 1, "inside of a test")

    result = unittest.TestResult()
    unittest.TestSuite([Tests("test_it")]).run(result)
    assert result.testsRun == 1
    assert not result.errors, result.errors
    assert fetched(connection, "SELECT text FROM notes") == []


def test_what_a_django_connection_does_after_a_commit_as_text_is_not_written(connection: Any) -> None:
    """Nor after what a database commits by itself, as MySQL does before DDL."""
    with pytest.raises(ResourceUnavailable) as ended, fenced(connection, Lease(7)):
        fetched(connection, "SELECT text FROM notes")
        with connection.cursor() as cursor:
            cursor.execute("COMMIT")
        add(connection, 1, "stale")
    assert ended.value.outcome == "unknown"
    connection.close()
    assert fetched(connection, "SELECT text FROM notes") == []
    with fenced(connection, Lease(7)):
        add(connection, 2, "again")
    add(connection, 3, "outside")
    assert fetched(connection, "SELECT text FROM notes ORDER BY id") == ["again", "outside"]


@pytest.mark.parametrize("connection", ["postgresql"], indirect=True)
@pytest.mark.parametrize("said", ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "COMMIT; BEGIN"])
def test_a_django_connection_does_not_go_on_in_another_transaction_that_looks_the_same(
    connection: Any, said: str
) -> None:
    engine = beside(connection)
    with pytest.raises(ResourceUnavailable) as ended, fenced(connection, Lease(7)):
        with connection.cursor() as cursor:
            cursor.execute(said)
        with engine.connect() as other, fenced(other, Lease(8)):
            other.exec_driver_sql("SELECT 1")
        with pytest.raises(ResourceUnavailable):
            add(connection, 1, "stale")
    engine.dispose()
    assert ended.value.outcome == "unknown"
    assert fetched(connection, "SELECT text FROM notes") == []


@pytest.mark.parametrize("connection", ["postgresql"], indirect=True)
def test_a_django_transaction_that_a_swallowed_error_undid_is_not_called_written(connection: Any) -> None:
    from django.db import ProgrammingError

    with pytest.raises(ResourceUnavailable) as undone, fenced(connection, Lease(7)):
        add(connection, 1, "undone")
        with pytest.raises(ProgrammingError):
            fetched(connection, "SELECT * FROM nowhere")
    assert undone.value.outcome == "not-written"
    assert fetched(connection, "SELECT text FROM notes") == []


def test_a_connection_that_is_none_of_djangos_own_is_refused(connection: Any) -> None:
    """The fence would be passed by Django's own for this name, and what is done by this one would stay."""
    another = connection.copy()
    with pytest.raises(UnsafeConfiguration, match="in this thread"), fenced(another, Lease(7)):
        pytest.fail("it was let in")
    another.close()


def test_an_interruption_at_the_end_of_a_django_block_leaves_no_transaction_open(connection: Any) -> None:
    with pytest.raises(KeyboardInterrupt), fenced(connection, InterruptedLease(7)):
        add(connection, 1, "undone")
    assert not connection.in_atomic_block
    assert not connection.execute_wrappers
    assert fetched(connection, "SELECT text FROM notes") == []


def beside(connection: Any) -> Engine:
    """An engine of SQLAlchemy for the same database."""
    settings_ = connection.settings_dict
    if connection.vendor == "sqlite":
        return engine_of(Beside("sqlite", f"sqlite:///{settings_['NAME']}"))
    url = f"postgresql://{USER}@127.0.0.1:{settings_['PORT']}/{settings_['NAME']}"
    return engine_of(Beside("postgresql", url))


def test_django_and_sqlalchemy_meet_at_one_fence(connection: Any) -> None:
    with fenced(connection, Lease(8)):
        add(connection, 1, "by Django")
    engine = beside(connection)
    try:
        with pytest.raises(StaleToken), closing(engine.connect()) as other, fenced(other, Lease(7)):
            other.exec_driver_sql("SELECT 1")
        with engine.connect() as other, fenced(other, Lease(9)):
            other.exec_driver_sql("DELETE FROM notes")
        assert mark(engine, KEY) == 9
    finally:
        engine.dispose()
    with pytest.raises(StaleToken), fenced(connection, Lease(8)):
        pytest.fail("a stale holder was let in")


def test_a_django_connection_passes_a_protected_table_inside_of_the_block_only(connection: Any) -> None:
    from django.db import Error

    engine = beside(connection)
    url = engine.url.render_as_string(hide_password=False)
    engine.dispose()
    install.protect(url, Wanted(table_name("notes"), ("id",), KEY))
    try:
        with fenced(connection, Lease(7)):
            add(connection, 1, "fenced")
        with pytest.raises(Error, match="fencing token required"):
            add(connection, 2, "bare")
        assert fetched(connection, "SELECT text FROM notes") == ["fenced"]
    finally:
        install.unprotect(url, table_name("notes"))


class Beside(Database):
    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
