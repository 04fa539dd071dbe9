"""Calls that share a transaction: each of them is judged for itself, and nothing is answered before COMMIT."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from fencegate.clock import SYSTEM
from fencegate.core.errors import InvalidInput, NotFound, PreconditionFailed, ResourceUnavailable, StaleToken
from fencegate.core.ports import Conditions, Row, RowWrite, Seen
from fencegate_adapters.sql import RowsResource, groups
from fencegate_adapters.sql.work import Done, Work
from tests.eventually import eventually
from tests.resources.databases import KINDS, Database, make_database

ACCOUNTS = "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, owner VARCHAR(20) UNIQUE)"


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database(request.param, request, tmp_path)


@pytest.fixture
async def rows(database: Database) -> AsyncIterator[RowsResource]:
    database.execute(ACCOUNTS, *(f"INSERT INTO accounts VALUES ({n}, 0, NULL)" for n in range(1, 6)))
    resource = RowsResource("a", database.url, table="accounts", key=["id"], wait_ms=20_000)
    await resource.open()
    yield resource
    await resource.close()


def patch(number: int, token: int = 7, **values: Any) -> Work:
    return work(number, token, RowWrite("patch", (str(number),), {"balance": 1, **values}))


def work(fence: object, token: int, *writes: RowWrite, reads: tuple[str, ...] | None = None) -> Work:
    return Work(f"a:{fence}", token, SYSTEM.monotonic_us() + 20_000_000, writes=writes, reads=reads)


async def together(rows: RowsResource, *works: Work) -> list[Work]:
    """As one group; what is left to be done alone."""
    return await asyncio.to_thread(rows._writer.together, list(works))


async def outcome(one: Work) -> Done | BaseException:
    (found,) = await asyncio.gather(one.outcome(), return_exceptions=True)
    return found


def balances(database: Database) -> dict[int, int]:
    return dict(database.fetch("SELECT id, balance FROM accounts"))


class Watched:
    """What a resource sends to its database."""

    def __init__(self, rows: RowsResource) -> None:
        self.statements: list[str] = []
        self.commits = 0
        event.listen(rows._engine, "before_cursor_execute", self._statement)
        event.listen(rows._engine, "commit", self._commit)

    def _statement(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        self.statements.append(statement)

    def _commit(self, _connection: object) -> None:
        self.commits += 1


# --- one group -------------------------------------------------------------------------------------------------------


async def test_a_stale_one_fails_alone_and_the_others_share_one_transaction(
    rows: RowsResource, database: Database
) -> None:
    await rows.claim("a:2", 9)
    group = [patch(1), patch(2), patch(3, 8), work("4", 7), work("5", 7, reads=("5",))]
    watched = Watched(rows)
    assert await together(rows, *group) == []
    assert watched.commits == 1
    written, stale, other, claimed, read = [await outcome(one) for one in group]
    assert isinstance(stale, StaleToken)
    assert (stale.token, stale.highest) == (7, 9)
    assert [done.seen.mark for done in (written, other, claimed, read) if isinstance(done, Done)] == [7, 8, 7, 7]
    assert isinstance(read, Done)
    assert read.rows == [{"id": 5, "balance": 0, "owner": None}]
    assert balances(database) == {1: 1, 2: 0, 3: 1, 4: 0, 5: 0}
    assert [await rows.mark(f"a:{n}") for n in range(1, 6)] == [7, 9, 8, 7, 7]


async def test_a_group_takes_few_statements_however_large_it_is(rows: RowsResource, database: Database) -> None:
    database.execute(*(f"INSERT INTO accounts VALUES ({n}, 0, NULL)" for n in range(6, 26)))
    assert await together(rows, *(patch(n) for n in range(1, 26))) == []
    watched = Watched(rows)
    assert await together(rows, *(patch(n, balance=n) for n in range(1, 26))) == []
    assert len(watched.statements) <= 6
    assert balances(database) == {n: n for n in range(1, 26)}


async def test_each_refusal_is_its_own_and_raises_its_mark(rows: RowsResource, database: Database) -> None:
    group = [
        patch(1),
        work("2", 7, RowWrite("patch", ("2",), {"nobody": 1})),
        work("3", 7, RowWrite("delete", ("3",), conditions=Conditions(if_match=("other",)))),
        work("x", 7, RowWrite("patch", ("x",), {"balance": 1})),
        work("4", 7, RowWrite("delete", ("4",))),
    ]
    assert await together(rows, *group) == []
    found = [await outcome(one) for one in group]
    assert [type(one) for one in found] == [Done, InvalidInput, PreconditionFailed, InvalidInput, Done]
    assert balances(database) == {1: 1, 2: 0, 3: 0, 5: 0}
    assert [await rows.mark(f"a:{n}") for n in (1, 2, 3, "x", 4)] == [7] * 5


async def test_rows_are_created_together_and_what_is_not_there_is_looked_for_alone(rows: RowsResource) -> None:
    created = work("8", 7, RowWrite("put", ("8",), {"balance": 8}))
    absent = work("9", 7, RowWrite("patch", ("9",), {"balance": 9}))
    assert await together(rows, created, absent) == [absent]
    done = await outcome(created)
    assert isinstance(done, Done)
    assert done.seen.created
    with pytest.raises(NotFound):
        await rows.delete(("9",), "a:9", 7)


async def test_a_violated_constraint_undoes_the_group_and_answers_nobody(
    rows: RowsResource, database: Database
) -> None:
    group = [patch(1, owner="x"), patch(2, owner="x"), patch(3)]
    assert await together(rows, *group) == group
    assert balances(database) == dict.fromkeys(range(1, 6), 0)
    assert await rows.mark("a:1") == 0


# --- as callers see it -----------------------------------------------------------------------------------------------


async def write(rows: RowsResource, number: int, token: int, **values: Any) -> Seen:
    _, seen = await rows.write(f"a:{number}", token, [RowWrite("patch", (str(number),), values)])
    return seen


async def test_one_that_violates_a_constraint_fails_alone(rows: RowsResource, database: Database) -> None:
    await write(rows, 5, 7, owner="taken")
    tries = [write(rows, n, 7, balance=n, owner="taken" if n == 3 else None) for n in range(1, 5)]
    found = await asyncio.gather(*tries, return_exceptions=True)
    assert [type(one) for one in found] == [Seen, Seen, InvalidInput, Seen]
    assert balances(database) == {1: 1, 2: 2, 3: 0, 4: 4, 5: 0}
    assert await rows.mark("a:3") == 7


async def test_writes_of_one_row_keep_their_order_of_arrival(rows: RowsResource, database: Database) -> None:
    await asyncio.gather(*(write(rows, 1, 7 + n // 8, balance=n) for n in range(40)))
    assert balances(database)[1] == 39
    assert await rows.mark("a:1") == 11


async def test_one_fence_over_many_rows_is_shared_and_holds_for_all(database: Database) -> None:
    database.execute(ACCOUNTS, *(f"INSERT INTO accounts VALUES ({n}, 0, NULL)" for n in range(1, 21)))
    rows = RowsResource("a", database.url, table="accounts", key=["id"], guard_template="job:x")
    await rows.open()

    async def change(number: int, token: int) -> Row | None:
        (row,), _ = await rows.write("job:x", token, [RowWrite("patch", (str(number),), {"balance": token})])
        return row

    await asyncio.gather(*(change(n, 7) for n in range(1, 21)))
    mixed = [change(n, 8 if n == 10 else 7) for n in range(1, 21)]
    found = await asyncio.gather(*mixed, return_exceptions=True)
    assert all(isinstance(one, dict | StaleToken) for one in found)
    assert isinstance(found[9], dict)
    late = await asyncio.gather(*(change(n, 7) for n in range(1, 21)), return_exceptions=True)
    assert all(isinstance(one, StaleToken) for one in late)
    await rows.close()


async def test_a_batch_may_write_a_row_twice_and_is_all_or_nothing(rows: RowsResource, database: Database) -> None:
    twice = [RowWrite("patch", ("1",), {"balance": 5}), RowWrite("patch", ("1",), {"owner": "me"})]
    (first, second), _ = await rows.write("a:1", 7, twice)
    assert (first, second) == ({"id": 1, "balance": 5, "owner": None}, {"id": 1, "balance": 5, "owner": "me"})
    with pytest.raises(NotFound):
        await rows.write("a:1", 8, [RowWrite("patch", ("1",), {"balance": 6}), RowWrite("delete", ("77",))])
    assert balances(database)[1] == 5
    assert await rows.mark("a:1") == 8


# --- the queue -------------------------------------------------------------------------------------------------------


class Gate:
    """Stops a resource at its next transaction, in the thread that runs groups, until it is opened."""

    def __init__(self, rows: RowsResource) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        event.listen(rows._engine, "begin", self._begin)

    def _begin(self, _connection: object) -> None:
        self.reached.set()
        assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


async def test_what_arrives_while_a_transaction_is_under_way_goes_out_together_in_the_next(
    rows: RowsResource, database: Database
) -> None:
    await rows.claim("a:3", 9)
    gate, watched = Gate(rows), Watched(rows)
    writing = [asyncio.create_task(write(rows, 1, 7, balance=1))]
    await eventually(gate.reached.is_set)
    writing += [asyncio.create_task(write(rows, n, 7, balance=n)) for n in (2, 3, 4, 5)]
    await asyncio.sleep(0)  # they stand in the queue
    gate.open()
    answers = await asyncio.gather(*writing, return_exceptions=True)
    assert [isinstance(answer, StaleToken) for answer in answers] == [False, False, True, False, False]
    assert balances(database) == {1: 1, 2: 2, 3: 0, 4: 4, 5: 5}
    assert watched.commits == 2


async def test_of_two_that_wait_together_and_know_the_same_version_of_a_row_the_second_is_refused(
    rows: RowsResource, database: Database
) -> None:
    _, seen = await rows.read(("2",), "a:2")
    known = Conditions(if_match=(seen.etag or "",))
    gate = Gate(rows)
    first = asyncio.create_task(write(rows, 1, 7, balance=1))
    await eventually(gate.reached.is_set)
    changes = [RowWrite("patch", ("2",), {"balance": n}, known) for n in (1, 2)]
    waiting = [asyncio.create_task(rows.write("a:2", 7, [change])) for change in changes]
    await asyncio.sleep(0)  # they stand in the queue
    gate.open()
    answers = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [isinstance(answer, PreconditionFailed) for answer in answers] == [False, False, True]
    assert balances(database)[2] == 1


async def test_those_who_give_up_are_left_out_and_break_nothing(rows: RowsResource, database: Database) -> None:
    gate = Gate(rows)
    first = asyncio.create_task(write(rows, 1, 7, balance=1))
    await eventually(gate.reached.is_set)
    waiting = [asyncio.create_task(write(rows, n, 7, balance=n)) for n in (2, 3, 4)]
    await asyncio.sleep(0)  # they stand in the queue
    waiting[1].cancel()
    first.cancel()
    await asyncio.wait([first, waiting[1]])
    gate.open()
    await asyncio.gather(waiting[0], waiting[2])
    await eventually(lambda: balances(database) == {1: 1, 2: 2, 3: 0, 4: 4, 5: 0})


async def test_a_full_queue_refuses_at_once_and_writes_nothing(
    rows: RowsResource, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_WAITING", 3)
    gate = Gate(rows)
    waiting = [asyncio.create_task(write(rows, n, 7, balance=n)) for n in (1, 2, 3)]
    await eventually(gate.reached.is_set)
    with pytest.raises(ResourceUnavailable) as full:
        await write(rows, 4, 7, balance=4)
    assert full.value.outcome == "not-written"
    gate.open()
    await asyncio.gather(*waiting)
    assert balances(database) == {1: 1, 2: 2, 3: 3, 4: 0, 5: 0}
    await eventually(lambda: rows._groups._count == 0)  # they are answered a moment before they leave
    await write(rows, 4, 7, balance=4)


async def test_close_finishes_what_was_taken(rows: RowsResource, database: Database) -> None:
    gate = Gate(rows)
    waiting = [asyncio.create_task(write(rows, n, 7, balance=n)) for n in (1, 2, 3)]
    await eventually(gate.reached.is_set)
    closing = asyncio.create_task(rows.close())
    gate.open()
    await asyncio.gather(closing, *waiting)
    assert balances(database) == {1: 1, 2: 2, 3: 3, 4: 0, 5: 0}
    with pytest.raises(ResourceUnavailable):
        await write(rows, 4, 7, balance=4)


# --- two spellings ---------------------------------------------------------------------------------------------------

LOOSE = {"sqlite": "NOCASE", "postgresql": "loose", "mariadb": "utf8mb4_general_ci"}


async def test_two_spellings_of_one_row_in_a_group_never_write_it_under_the_wrong_fence(database: Database) -> None:
    if database.kind == "postgresql":
        database.execute("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    database.execute(f"CREATE TABLE texts (id VARCHAR(20) COLLATE {LOOSE[database.kind]} PRIMARY KEY, n INTEGER)")
    database.execute("INSERT INTO texts VALUES ('b', 0), ('c', 0)")
    rows = RowsResource("a", database.url, table="texts", key=["id"])
    await rows.open()
    for first, second in (("B", "b"), ("b", "B")):
        group = [work(key, 7, RowWrite("patch", (key,), {"n": ord(key)})) for key in (first, second, "c")]
        left = await together(rows, *group)
        assert [one.fence for one in left] == ["a:B"]
        assert sorted(database.fetch("SELECT id, n FROM texts")) == [("b", ord("b")), ("c", ord("c"))]
    await rows.close()
