"""Rows while servers, connections and other clients misbehave: nothing is lost, done twice, or told wrongly."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, make_url

from fencegate.core.errors import InvalidInput, ResourceUnavailable, StaleToken, UnsafeConfiguration
from fencegate.core.ports import RowWrite, Seen
from fencegate.testing.fault_proxy import FaultProxy
from fencegate_adapters.sql import RowsResource, dialect_mysql
from tests.child import Child
from tests.eventually import eventually
from tests.resources.databases import Cursor, Database, make_database

ACCOUNTS = (
    "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, changes INTEGER NOT NULL DEFAULT 0)"
)

# Each row counts how often it was changed: done twice shows.
COUNTED = {
    "postgresql": [
        "CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN NEW.changes = OLD.changes + 1; RETURN NEW; END $$",
        "CREATE TRIGGER counted BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION counted()",
    ],
    "mariadb": ["CREATE TRIGGER counted BEFORE UPDATE ON accounts FOR EACH ROW SET NEW.changes = OLD.changes + 1"],
}


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    made = make_database(request.param, request, tmp_path)
    made.execute(ACCOUNTS, *(f"INSERT INTO accounts (id, balance) VALUES ({n}, 0)" for n in range(1, 6)))
    made.execute(*COUNTED[made.kind])
    return made


@asynccontextmanager
async def opened(url: str, wait_ms: int = 20_000) -> AsyncIterator[RowsResource]:
    resource = RowsResource("a", url, table="accounts", key=["id"], wait_ms=wait_ms)
    await resource.open()
    yield resource
    await resource.close()


@pytest.fixture
async def rows(database: Database) -> AsyncIterator[RowsResource]:
    async with opened(database.url) as resource:
        yield resource


async def write(rows: RowsResource, number: int, token: int, balance: int) -> Seen:
    _, seen = await rows.write(f"a:{number}", token, [RowWrite("patch", (str(number),), {"balance": balance})])
    return seen


def state(database: Database) -> dict[int, tuple[int, int]]:
    """By row: its balance, and how often it was changed."""
    return {n: (balance, changes) for n, balance, changes in database.fetch("SELECT * FROM accounts")}


# --- connections that end --------------------------------------------------------------------------------------------


def end_backend(database: Database, connection: Any) -> None:
    """The server ends this connection; returns when it has."""
    driver = connection.connection.driver_connection
    if database.kind == "postgresql":
        pid = driver.info.backend_pid
        database.execute(f"SELECT pg_terminate_backend({pid}, 20000)")
    else:
        database.execute(f"KILL {driver.thread_id()}")


def once(do: Callable[[Any], None]) -> Callable[..., None]:
    done: list[bool] = []

    def listener(connection: Any, *arguments: Any) -> None:
        if not done and (not arguments or "UPDATE" in arguments[1][:8]):
            done.append(True)
            do(connection)

    return listener


async def test_a_connection_that_ends_before_commit_costs_nothing(rows: RowsResource, database: Database) -> None:
    await asyncio.gather(*(write(rows, n, 7, 1) for n in range(1, 6)))
    ended: list[Any] = []

    def end(connection: Any) -> None:
        end_backend(database, connection)
        ended.append(connection)

    event.listen(rows._engine, "before_cursor_execute", once(end))
    # With a new token: `test_rows_plain.py` is about those who write again.
    await asyncio.gather(*(write(rows, n, 8, 2) for n in range(1, 6)))
    assert ended
    assert state(database) == dict.fromkeys(range(1, 6), (2, 2))


async def test_a_connection_that_ends_at_commit_is_unknown_for_all_and_nothing_is_run_again(
    rows: RowsResource, database: Database
) -> None:
    await rows.claim("a:5", 9)
    event.listen(rows._engine, "commit", once(lambda connection: end_backend(database, connection)))
    works = [write(rows, n, 7, 2) for n in range(1, 6)]
    found = await asyncio.gather(*works, return_exceptions=True)
    unknown = [n for n, one in enumerate(found, 1) if isinstance(one, ResourceUnavailable)]
    assert unknown
    assert all(one.outcome == "unknown" for one in found if isinstance(one, ResourceUnavailable))
    assert isinstance(found[4], StaleToken)
    after = state(database)
    assert all(after[n] == (0, 0) for n in unknown)
    assert all(after[n] == (2, 1) for n in range(1, 5) if n not in unknown)


async def test_a_commit_whose_answer_is_lost_is_unknown_and_there_once(database: Database) -> None:
    server = database.server.address if database.kind == "mariadb" else f"127.0.0.1:{database.server.port}"  # type: ignore[attr-defined]
    with FaultProxy(server) as proxy:
        async with opened(database.url.replace(server, proxy.address)) as rows:
            await asyncio.gather(*(write(rows, n, 7, 1) for n in range(1, 6)))
            proxy.cut_answers(after=b"COMMIT\0" if database.kind == "postgresql" else b"COMMIT")  # not COMMITTED
            found = await asyncio.gather(*(write(rows, n, 7, 2) for n in range(1, 6)), return_exceptions=True)
            unknown = [one for one in found if isinstance(one, ResourceUnavailable)]
            assert unknown, found
            assert all(one.outcome == "unknown" for one in unknown)
            proxy.pass_()
            # The same holder's next write is not overtaken by one that was run again.
            await asyncio.gather(*(write(rows, n, 7, 3) for n in range(1, 6)))
    assert state(database) == dict.fromkeys(range(1, 6), (3, 3))


async def test_a_commit_that_fails_by_an_error_that_is_not_the_driver_s_own_is_unknown_and_there_once(
    rows: RowsResource, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy passes it on as it is, and so it looked like one from before COMMIT, after which all is run again."""
    commit = rows._engine.dialect.do_commit
    lost: list[Any] = []

    def do_commit(connection: Any) -> None:
        commit(connection)
        if not lost:
            lost.append(connection)
            raise OSError("the answer could not be read")

    monkeypatch.setattr(rows._engine.dialect, "do_commit", do_commit)
    found = await asyncio.gather(*(write(rows, n, 7, 2) for n in range(1, 6)), return_exceptions=True)
    unknown = [one for one in found if isinstance(one, BaseException)]
    assert unknown
    assert all(isinstance(one, ResourceUnavailable) and one.outcome == "unknown" for one in unknown)
    assert state(database) == dict.fromkeys(range(1, 6), (2, 1))


# --- limits of MySQL and MariaDB, which are those of the connection --------------------------------------------------

on_mariadb = pytest.mark.parametrize("database", ["mariadb"], indirect=True)


@on_mariadb
async def test_a_transaction_that_stands_still_is_ended_by_the_database_and_idle_connections_cost_no_write(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect_mysql, "IDLE_S", 2)
    async with opened(database.url) as rows:
        await write(rows, 1, 7, 1)
        with rows._engine.connect() as still:
            still.exec_driver_sql("SELECT * FROM fencegate_fences FOR UPDATE")
            await write(rows, 1, 8, 2)
            still.invalidate()
        await asyncio.gather(*(write(rows, n, 8, 3) for n in range(1, 6)))
        ours = f"SELECT count(*) FROM information_schema.processlist WHERE db = '{make_url(database.url).database}'"
        if database.is_mysql:
            await eventually(lambda: database.fetch(ours)[0][0] == 1)  # who asks
        assert (await rows.read(("1",), "a:1"))[0] is not None
        await write(rows, 1, 8, 4)
    assert state(database)[1] == (4, 4)


@on_mariadb
async def test_a_driver_that_lacks_what_the_password_needs_is_told_as_such(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not database.is_mysql:
        pytest.skip("MariaDB asks for passwords in another way: name a MySQL server by FENCEGATE_MYSQLD")
    database.execute("CREATE USER sha@127.0.0.1 IDENTIFIED BY 's3cret'", "GRANT ALL ON *.* TO sha@127.0.0.1")
    monkeypatch.setattr("pymysql._auth._have_cryptography", False)
    try:
        with pytest.raises(UnsafeConfiguration, match="pip install cryptography"):
            await RowsResource("a", database.url.replace("root@", "sha:s3cret@")).open()
    finally:
        database.execute("DROP USER sha@127.0.0.1")


async def test_ten_that_open_at_once_make_the_tables_once(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for _ in range(5):
        url = make_database("mariadb", request, tmp_path).url
        resources = [RowsResource("a", url) for _ in range(10)]
        await asyncio.gather(*(resource.open() for resource in resources))
        for resource in resources:
            await resource.close()


# --- others who lock -------------------------------------------------------------------------------------------------


async def test_a_fence_that_another_keeps_locked_holds_up_nobody_else(rows: RowsResource, database: Database) -> None:
    await asyncio.gather(*(write(rows, n, 7, 1) for n in range(1, 6)))
    with database.session() as outside:
        lock_fence(database, outside, "a:3")
        held_up = [asyncio.create_task(write(rows, 3, 7, n)) for n in (2, 3)]
        await asyncio.gather(*(write(rows, n, 7, 2) for n in (1, 2, 4, 5)))
        await asyncio.gather(*(write(rows, n, 7, 3) for n in (1, 2, 4, 5)))
        assert not any(task.done() for task in held_up)
        outside.execute("COMMIT")
        await asyncio.gather(*held_up)
    assert state(database) == dict.fromkeys(range(1, 6), (3, 3))


def lock_fence(database: Database, outside: Cursor, fence: str) -> None:
    outside.execute("BEGIN")
    key = f"'\\x{fence.encode().hex()}'" if database.kind == "postgresql" else f"X'{fence.encode().hex()}'"
    outside.execute(f"SELECT * FROM fencegate_fences WHERE lock_key = {key} FOR UPDATE")


async def test_a_lock_that_is_kept_for_too_long_is_told_as_not_written_and_all_is_well_later(
    database: Database,
) -> None:
    async with opened(database.url, wait_ms=1000) as rows:
        await write(rows, 1, 7, 1)
        with database.session() as outside:
            lock_fence(database, outside, "a:1")
            found = await asyncio.gather(*(write(rows, 1, 7, n) for n in (2, 3)), return_exceptions=True)
            assert [one.outcome for one in found if isinstance(one, ResourceUnavailable)] == ["not-written"] * 2
            assert state(database)[1] == (1, 1)
            outside.execute("ROLLBACK")
        await write(rows, 1, 7, 4)
    assert state(database)[1] == (4, 2)


async def test_a_lock_of_the_whole_fence_table_is_waited_for_no_longer_than_that_of_a_row(database: Database) -> None:
    """The database waits for it before a statement begins, so that no limit counts that the statement itself sets."""
    if database.kind != "postgresql":
        pytest.skip("limits of the others are those of the connection")
    async with opened(database.url, wait_ms=1000) as rows:
        await write(rows, 1, 7, 1)
        with database.session() as outside:
            outside.execute("BEGIN")
            outside.execute("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")
            writing = asyncio.gather(*(write(rows, 1, 7, n) for n in (2, 3)), return_exceptions=True)
            done, _ = await asyncio.wait([writing], timeout=30)
            outside.execute("ROLLBACK")
        assert done
        told = await writing
        assert [one.outcome for one in told if isinstance(one, ResourceUnavailable)] == ["not-written"] * 2
        await write(rows, 1, 7, 4)
    assert state(database)[1] == (4, 2)


async def test_a_deadlock_with_an_outside_transaction_ends_and_every_write_is_done_once(
    rows: RowsResource, database: Database
) -> None:
    await asyncio.gather(*(write(rows, n, 7, 1) for n in range(1, 6)))
    with database.session() as outside:
        outside.execute("BEGIN")
        outside.execute("UPDATE accounts SET balance = 50 WHERE id = 5")
        ours = [asyncio.create_task(write(rows, n, 7, 2)) for n in range(1, 6)]
        await eventually(lambda: waits(database))
        # Whoever is given up on: if it is the outsider, that is no matter of ours.
        try:
            # Which changes nothing: where ours was committed by itself before, the outsider would come behind it.
            await asyncio.to_thread(outside.execute, "SELECT balance FROM accounts WHERE id = 1 FOR UPDATE")
            outside.execute("COMMIT")
        except Exception:
            outside.execute("ROLLBACK")
        await asyncio.gather(*ours)
    after = state(database)
    assert all(balance == 2 for balance, _ in after.values())
    assert [after[n][1] for n in (2, 3, 4)] == [2, 2, 2]


async def test_a_connection_that_was_ended_while_it_was_idle_is_told_as_an_outage(
    rows: RowsResource, database: Database
) -> None:
    await write(rows, 1, 7, 1)
    with rows._engine.connect() as connection:  # the one that is taken next, too
        driver: Any = connection.connection.driver_connection
        is_postgresql = database.kind == "postgresql"
        number = driver.info.backend_pid if is_postgresql else driver.thread_id()
    database.execute(f"SELECT pg_terminate_backend({number}, 20000)" if is_postgresql else f"KILL {number}")
    twice = [RowWrite("patch", ("1",), {"balance": balance}) for balance in (2, 3)]  # which no group takes
    with pytest.raises(ResourceUnavailable) as failed:
        await rows.write("a:1", 7, twice)
    assert failed.value.outcome == "not-written"
    assert state(database)[1][0] == 1
    await rows.write("a:1", 7, twice)
    assert state(database)[1][0] == 3


async def test_a_call_that_is_alone_is_tried_again_when_it_was_given_up_on_in_a_deadlock(
    rows: RowsResource, database: Database
) -> None:
    await write(rows, 1, 7, 1)
    twice = [RowWrite("patch", ("1",), {"balance": balance}) for balance in (2, 3)]  # which no group takes
    with database.session() as outside:
        outside.execute("BEGIN")
        many = ", ".join(f"({n}, 0)" for n in range(100, 400))  # the more it has done, the less it is given up on
        outside.execute(f"INSERT INTO accounts (id, balance) VALUES {many}")
        outside.execute("UPDATE accounts SET balance = 50 WHERE id = 1")
        ours = asyncio.create_task(rows.write("a:1", 7, twice))
        await eventually(lambda: waits(database))
        try:
            await asyncio.to_thread(outside.execute, "SELECT token FROM fencegate_fences FOR UPDATE")
            outside.execute("COMMIT")
        except Exception:
            outside.execute("ROLLBACK")
        await ours
    assert state(database)[1][0] == 3


def waits(database: Database) -> bool:
    """Whether somebody waits for a lock."""
    if database.kind == "postgresql":
        return int(database.fetch("SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0]) > 0
    return int(database.fetch("SHOW STATUS LIKE 'Innodb_row_lock_current_waits'")[0][1]) > 0


# --- two gateways ----------------------------------------------------------------------------------------------------

STOPPED = """
import asyncio
from sqlalchemy import event
from fencegate.core.ports import RowWrite
from fencegate_adapters.sql import RowsResource

async def main():
    rows = RowsResource("a", sys.argv[1], table="accounts", key=["id"])
    await rows.open()

    @event.listens_for(rows._engine, "before_cursor_execute")
    def stop(connection, cursor, statement, *_):
        if statement.startswith("UPDATE"):
            signal.raise_signal(signal.SIGSTOP)

    writes = [rows.write("a:%d" % n, 7, [RowWrite("patch", (str(n),), {"balance": 7})]) for n in (1, 2)]
    found = await asyncio.gather(*writes, return_exceptions=True)
    say([type(one).__name__ for one in found])

asyncio.run(main())
"""


async def test_a_gateway_that_is_stopped_in_mid_transaction_never_overtakes_its_successor(database: Database) -> None:
    async with opened(database.url, wait_ms=1000) as rows:
        await asyncio.gather(*(write(rows, n, 6, 1) for n in range(1, 6)))
        with Child(STOPPED, database.url) as stopped:
            await asyncio.to_thread(stopped.wait_until_stopped)
            # The two rows may be in one group there, or in two: one of them is locked in any case.
            found = await asyncio.gather(*(write(rows, n, 8, 8) for n in range(1, 6)), return_exceptions=True)
            locked = [n for n, one in enumerate(found, 1) if isinstance(one, ResourceUnavailable)]
            assert locked
            assert set(locked) <= {1, 2}
            assert all(one.outcome == "not-written" for one in found if isinstance(one, ResourceUnavailable))
            stopped.proceed()
            said = await asyncio.to_thread(stopped.line)
        assert "ResourceUnavailable" not in said
        await asyncio.gather(*(write(rows, n, 8, 9) for n in locked))
        with pytest.raises(StaleToken):
            await write(rows, 1, 7, 7)
    after = {n: balance for n, (balance, _) in state(database).items()}
    assert after == {n: 9 if n in locked else 8 for n in range(1, 6)}


async def test_a_write_that_a_trigger_quietly_drops_is_not_told_as_written(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    database = make_database("postgresql", request, tmp_path)
    database.execute(ACCOUNTS, "INSERT INTO accounts (id, balance) VALUES (1, 0), (2, 0)")
    database.execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF OLD.id = 2 THEN RETURN NULL; END IF; RETURN COALESCE(NEW, OLD); END $$",
        "CREATE TRIGGER keep BEFORE UPDATE OR DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION keep()",
    )
    async with opened(database.url) as rows:
        found = await asyncio.gather(*(write(rows, n, 7, 5) for n in (1, 2)), return_exceptions=True)
        assert [type(one) for one in found] == [Seen, InvalidInput]
        with pytest.raises(InvalidInput):
            await rows.delete(("2",), "a:2", 7)
    assert state(database) == {1: (5, 0), 2: (0, 0)}
