"""Plain patches in PostgreSQL, whose fences are looked at and whose rows are changed by one statement: nothing gets in
between, and whatever that statement does not expect is judged as in any other group."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import event

from fencegate.core.errors import InvalidInput, NotFound, ResourceUnavailable, StaleToken
from fencegate.core.ports import RowWrite, Seen
from fencegate.testing.fault_proxy import FaultProxy
from fencegate_adapters.sql import RowsResource
from fencegate_adapters.sql.work import Done, Work
from tests.child import Child
from tests.eventually import eventually
from tests.resources.databases import Database, Postgresql, make_database
from tests.resources.test_rows_groups import outcome, patch, together, work

# Each row counts how often it was changed: done twice shows.
ACCOUNTS = (
    "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, owner TEXT UNIQUE,"
    " changes INTEGER NOT NULL DEFAULT 0)",
    "INSERT INTO accounts SELECT n, 0 FROM generate_series(1, 5) AS n",
    "CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN NEW.changes = OLD.changes + 1; RETURN NEW; END $$",
    "CREATE TRIGGER counted BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION counted()",
)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    made = make_database("postgresql", request, tmp_path)
    made.execute(*ACCOUNTS)
    return made


@pytest.fixture
async def rows(database: Database) -> AsyncIterator[RowsResource]:
    """Token 7 has written each row once, so that its next writes can be plain."""
    resource = RowsResource("a", database.url, table="accounts", key=["id"], wait_ms=20_000)
    await resource.open()
    assert await together(resource, *(patch(n) for n in range(1, 6))) == []
    yield resource
    await resource.close()


async def write(rows: RowsResource, number: int, balance: int, token: int = 7) -> Seen:
    _, seen = await rows.write(f"a:{number}", token, [RowWrite("patch", (str(number),), {"balance": balance})])
    return seen


def state(database: Database) -> dict[int, tuple[int, int]]:
    """By row: its balance, and how often it was changed."""
    found = database.fetch("SELECT id, balance, changes FROM accounts")
    return {n: (balance, changes) for n, balance, changes in found}


class Watched:
    """What a resource sends by SQLAlchemy, which is everything but the messages of one or more statements, and what
    became of its transactions."""

    def __init__(self, rows: RowsResource) -> None:
        self.statements: list[str] = []
        self.ends: list[str] = []
        event.listen(rows._engine, "before_cursor_execute", lambda _c, _d, statement, *_: self._sent(statement))
        event.listen(rows._engine, "commit", lambda _: self.ends.append("commit"))
        event.listen(rows._engine, "rollback", lambda _: self.ends.append("rollback"))

    def _sent(self, statement: str) -> None:
        self.statements.append(statement)

    @property
    def plain(self) -> bool:
        """Whether one message did it, and another committed."""
        return not self.statements and self.ends == ["commit"]


async def test_a_group_at_its_tokens_is_one_message_and_a_commit(rows: RowsResource, database: Database) -> None:
    watched = Watched(rows)
    group = [patch(n, balance=n) for n in range(1, 6)]
    assert await together(rows, *group) == []
    assert watched.plain
    assert state(database) == {n: (n, 2) for n in range(1, 6)}
    for n, one in enumerate(group, 1):
        done = await outcome(one)
        assert isinstance(done, Done)
        assert done.rows == [{"id": n, "balance": n, "owner": None, "changes": 2}]
        row, seen = await rows.read((str(n),), f"a:{n}")
        assert (done.rows, done.seen.mark, done.seen.etag) == ([row], 7, seen.etag)


async def test_whoever_comes_with_a_new_token_goes_the_other_way_once(rows: RowsResource, database: Database) -> None:
    watched = Watched(rows)
    await write(rows, 1, 8, token=8)
    assert not watched.plain
    watched = Watched(rows)
    await write(rows, 1, 9, token=8)
    assert watched.plain
    assert state(database)[1] == (9, 3)


# --- what it does not expect -----------------------------------------------------------------------------------------


async def test_a_holder_that_was_overtaken_elsewhere_is_refused_alone(rows: RowsResource, database: Database) -> None:
    async with other_gateway(database) as other:
        await other.claim("a:2", 9)
    watched = Watched(rows)
    group = [patch(n, balance=n) for n in range(1, 6)]
    assert await together(rows, *group) == []
    assert watched.ends == ["rollback", "commit"]
    found = [await outcome(one) for one in group]
    assert [type(one) for one in found] == [Done, StaleToken, Done, Done, Done]
    assert state(database) == {n: (1, 1) if n == 2 else (n, 2) for n in range(1, 6)}


def other_gateway(database: Database) -> "Opened":
    return Opened(RowsResource("a", database.url, table="accounts", key=["id"], wait_ms=20_000))


class Opened:
    def __init__(self, resource: RowsResource) -> None:
        self._resource = resource

    async def __aenter__(self) -> RowsResource:
        await self._resource.open()
        return self._resource

    async def __aexit__(self, *_: object) -> None:
        await self._resource.close()


async def test_a_newer_holder_that_is_still_writing_is_not_overtaken(rows: RowsResource, database: Database) -> None:
    with database.session() as outside:
        outside.execute("BEGIN")
        outside.execute(f"UPDATE fencegate_fences SET token = 9 WHERE lock_key = '\\x{b'a:1'.hex()}'")
        late = asyncio.create_task(write(rows, 1, 5))
        await write(rows, 2, 5)
        assert not late.done()
        outside.execute("COMMIT")
        with pytest.raises(StaleToken):
            await late
    assert state(database)[1] == (1, 1)


async def test_a_floor_counts_for_a_plain_write_too(rows: RowsResource, database: Database) -> None:
    async with other_gateway(database) as other:
        await other.raise_floor(8)
    with pytest.raises(StaleToken):
        await write(rows, 1, 5)
    assert state(database)[1] == (1, 1)


async def test_a_plain_write_that_waits_while_a_floor_is_raised_is_refused(
    rows: RowsResource, database: Database
) -> None:
    with database.session() as raiser:
        raiser.execute("BEGIN")
        raiser.execute("LOCK TABLE fencegate_fences IN EXCLUSIVE MODE")  # as `Dialect.keep_out` does
        raiser.execute("UPDATE fencegate_resources SET floor = 8")
        late = asyncio.create_task(write(rows, 1, 5))
        await eventually(lambda: waits(database))
        raiser.execute("COMMIT")
        with pytest.raises(StaleToken):
            await late
    assert state(database)[1] == (1, 1)


def waits(database: Database) -> bool:
    """Whether somebody waits for a lock."""
    return int(database.fetch("SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0]) > 0


async def test_a_record_that_was_changed_meanwhile_lets_nobody_in(rows: RowsResource, database: Database) -> None:
    database.execute("UPDATE fencegate_resources SET guard = 'job:x'")
    with pytest.raises(Exception, match="guard was"):
        await write(rows, 1, 5)
    assert state(database)[1] == (1, 1)


async def test_a_row_that_is_gone_fails_alone_and_the_others_are_changed_once(
    rows: RowsResource, database: Database
) -> None:
    database.execute("DELETE FROM accounts WHERE id = 3")
    found = await asyncio.gather(*(write(rows, n, n) for n in range(1, 6)), return_exceptions=True)
    assert [type(one) for one in found] == [Seen, Seen, NotFound, Seen, Seen]
    assert state(database) == {n: (n, 2) for n in (1, 2, 4, 5)}


async def test_a_violated_constraint_fails_alone(rows: RowsResource, database: Database) -> None:
    database.execute("UPDATE accounts SET owner = 'taken' WHERE id = 5")
    patches = [{"owner": "taken" if n == 3 else f"n{n}"} for n in range(1, 5)]
    found = await asyncio.gather(
        *(rows.write(f"a:{n}", 7, [RowWrite("patch", (str(n),), value)]) for n, value in enumerate(patches, 1)),
        return_exceptions=True,
    )
    assert [isinstance(one, InvalidInput) for one in found] == [False, False, True, False]
    assert {n: changes for n, (_, changes) in state(database).items()} == {1: 2, 2: 2, 3: 1, 4: 2, 5: 2}


async def test_a_row_that_another_changes_meanwhile_keeps_that_change(rows: RowsResource, database: Database) -> None:
    with database.session() as outside:
        outside.execute("BEGIN")
        outside.execute("UPDATE accounts SET owner = 'outside' WHERE id = 1")
        waiting = asyncio.create_task(rows.write("a:1", 7, [RowWrite("patch", ("1",), {"balance": 5})]))
        await eventually(lambda: waits(database))
        outside.execute("COMMIT")
        (row,), _ = await waiting
    assert row == {"id": 1, "balance": 5, "owner": "outside", "changes": 3}


async def test_a_table_that_is_being_altered_is_not_waited_for_without_a_limit(database: Database) -> None:
    rows = RowsResource("a", database.url, table="accounts", key=["id"], wait_ms=1000)
    await rows.open()
    await write(rows, 1, 1)
    with database.session() as outside:
        outside.execute("BEGIN")
        outside.execute("LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(ResourceUnavailable) as late:
            await write(rows, 1, 2)
        assert late.value.outcome == "not-written"
        outside.execute("ROLLBACK")
    await write(rows, 1, 3)
    await rows.close()
    assert state(database)[1] == (3, 2)


async def test_what_is_not_alike_or_not_plain_goes_the_other_way(rows: RowsResource, database: Database) -> None:
    groups: list[list[Work]] = [
        [patch(1), patch(2, owner="x")],
        [patch(1), work("2", 7)],
        [patch(1), work("2", 7, reads=("2",))],
        [work("1", 7, RowWrite("put", ("1",), {"balance": 1}))],
        [work("1", 7, RowWrite("patch", ("1",), {}))],
        [work("1", 7, RowWrite("patch", ("1",), {"id": "1"}))],
    ]
    for group in groups:
        watched = Watched(rows)
        assert await together(rows, *group) == []
        assert not watched.plain
        assert all([isinstance(await outcome(one), Done) for one in group])


# --- connections that end --------------------------------------------------------------------------------------------


async def test_a_connection_that_ends_inside_the_statement_costs_nothing(
    rows: RowsResource, database: Database
) -> None:
    # A sequence is not rolled back, so that it happens once.
    database.execute(
        "CREATE SEQUENCE faults",
        "CREATE FUNCTION ended() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF nextval('faults') = 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
        " RETURN NEW; END $$",
        "CREATE TRIGGER ended AFTER UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION ended()",
    )
    await asyncio.gather(*(write(rows, n, 2) for n in range(1, 6)))
    assert state(database) == dict.fromkeys(range(1, 6), (2, 2))
    assert database.fetch("SELECT last_value FROM faults")[0][0] > 5


async def test_a_commit_whose_answer_is_lost_is_unknown_and_there_once(database: Postgresql) -> None:
    server = f"127.0.0.1:{database.server.port}"
    with FaultProxy(server) as proxy:
        rows = RowsResource("a", database.url.replace(server, proxy.address), table="accounts", key=["id"])
        await rows.open()
        await asyncio.gather(*(write(rows, n, 1) for n in range(1, 6)))
        watched = Watched(rows)
        proxy.cut_answers(after=b"COMMIT\0")  # not COMMITTED
        found = await asyncio.gather(*(write(rows, n, 2) for n in range(1, 6)), return_exceptions=True)
        assert not watched.statements
        unknown = [one for one in found if isinstance(one, ResourceUnavailable)]
        assert unknown, found
        assert all(one.outcome == "unknown" for one in unknown)
        proxy.pass_()
        await asyncio.gather(*(write(rows, n, 3) for n in range(1, 6)))
        await rows.close()
    assert state(database) == dict.fromkeys(range(1, 6), (3, 3))


STOPPED = """
import asyncio
from sqlalchemy import event
from fencegate.core.ports import RowWrite
from fencegate_adapters.sql import RowsResource

async def main():
    rows = RowsResource("a", sys.argv[1], table="accounts", key=["id"])
    await rows.open()
    await rows.write("a:1", 8, [RowWrite("patch", ("1",), {"balance": 8})])
    statements = []
    event.listen(rows._engine, "before_cursor_execute", lambda _c, _d, statement, *_: statements.append(statement))
    event.listen(rows._engine, "commit", lambda _: signal.raise_signal(signal.SIGSTOP))
    await rows.write("a:1", 8, [RowWrite("patch", ("1",), {"balance": 88})])
    say(statements)

asyncio.run(main())
"""


async def test_a_gateway_that_is_stopped_before_commit_never_overtakes_its_successor(
    rows: RowsResource, database: Database
) -> None:
    with Child(STOPPED, database.url) as stopped:
        await asyncio.to_thread(stopped.wait_until_stopped)
        assert state(database)[1] == (8, 2)
        successor = asyncio.create_task(write(rows, 1, 9, token=9))
        await write(rows, 2, 2)
        assert not successor.done()
        stopped.proceed()
        assert await asyncio.to_thread(stopped.line) == "[]"
        await successor
    assert state(database)[1] == (9, 4)
