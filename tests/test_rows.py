"""Rows in SQLite: the resource suite over both shapes, what their JSON looks like, and what they refuse."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import event

from fencegate.core.errors import (
    InvalidInput,
    InvalidToken,
    NotFound,
    PreconditionFailed,
    ResourceUnavailable,
    StaleToken,
    TooLarge,
    UnsafeConfiguration,
)
from fencegate.core.ports import Conditions, Key, Resource, Row, Rows, RowWrite, Seen
from fencegate.testing.resource_suite import PER_KEY, Mode, ResourceSuite, Subject
from fencegate_adapters.sql import RowsResource, groups

FENCE = "job:rebuild"
NEW = Conditions(if_none_match=("*",))


class RowsSubject:
    """Rows as the suite sees them: a text is one member of a row."""

    def __init__(self, folder: Path, table: str | None) -> None:
        self.path = folder / "data.db"
        self._table = table
        if table is not None:
            make(self.path, "CREATE TABLE notes (id TEXT PRIMARY KEY, text TEXT NOT NULL)")

    def new(self, mode: Mode = "enforce", guard: str = PER_KEY) -> Rows:
        url = f"sqlite:///{self.path}"
        key = ("key",) if self._table is None else ("id",)
        return RowsResource("s", url, table=self._table, key=key, guard_template=guard, mode=mode)

    async def write(self, resource: Resource, key: Key, fence: str, text: str, token: int) -> Seen:
        _, seen = await cast(Rows, resource).write(fence, token, [RowWrite("put", key, {"text": text})])
        return seen

    async def read(self, resource: Resource, key: Key, fence: str, token: int | None = None) -> str | None:
        row, _ = await cast(Rows, resource).read(key, fence, token)
        return None if row is None else cast(str, row["text"])


def make(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def fetch(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


class TestDocuments(ResourceSuite):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return RowsSubject(tmp_path, None)


class TestTable(ResourceSuite):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return RowsSubject(tmp_path, "notes")


# --- documents -------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.db"


@pytest.fixture
async def rows(path: Path) -> AsyncIterator[RowsResource]:
    resource = RowsResource("rows", f"sqlite:///{path}", guard_template=FENCE, max_row_bytes=1000)
    await resource.open()
    yield resource
    await resource.close()


async def put(rows: RowsResource, key: str, value: Row, token: int = 7, **more: Any) -> Seen:
    _, seen = await rows.write(FENCE, token, [RowWrite("put", tuple(key.split("/")), value, **more)])
    return seen


async def get(rows: RowsResource, key: str) -> Row | None:
    row, _ = await rows.read(tuple(key.split("/")), FENCE)
    return row


async def test_any_json_object_is_a_row_and_comes_back_as_it_was(rows: RowsResource) -> None:
    row = {"b": [1, 2.5, None, True, {"x": "é🔒"}], "a": 10**30, "'; --": {}, "": ""}
    assert (await put(rows, "k", row)).created
    assert await get(rows, "k") == row
    assert not (await put(rows, "k", {})).created
    assert await get(rows, "k") == {}


async def test_the_segments_of_a_key_are_joined(rows: RowsResource) -> None:
    await put(rows, "a/b", {"x": 1})
    assert (await rows.read(("a", "b"), FENCE))[0] == {"x": 1}
    assert await get(rows, "a") is None


async def test_a_patch_merges_and_null_removes(rows: RowsResource) -> None:
    await put(rows, "k", {"a": 1, "b": {"c": 2, "d": 3}, "e": [1]})
    after, seen = await rows.write(FENCE, 7, [RowWrite("patch", ("k",), {"a": None, "b": {"c": 9}, "e": {"f": None}})])
    assert after == [{"b": {"c": 9, "d": 3}, "e": {}}]
    assert (await rows.read(("k",), FENCE)) == (after[0], seen)
    with pytest.raises(NotFound):
        await rows.write(FENCE, 7, [RowWrite("patch", ("none",), {"a": 1})])


async def test_etags_name_the_value_and_conditions_hold_in_the_same_step(rows: RowsResource) -> None:
    first = await put(rows, "k", {"a": 1, "b": 2}, conditions=NEW)
    assert (await put(rows, "k", {"b": 2, "a": 1})).etag == first.etag
    with pytest.raises(PreconditionFailed):
        await put(rows, "k", {"a": 3}, conditions=NEW)
    second = await put(rows, "k", {"a": 4}, conditions=Conditions(if_match=(str(first.etag),)))
    assert second.etag != first.etag
    with pytest.raises(PreconditionFailed):
        await put(rows, "k", {"a": 5}, conditions=Conditions(if_match=(str(first.etag),)))
    assert await get(rows, "k") == {"a": 4}


async def test_one_of_many_creators_wins(rows: RowsResource) -> None:
    tries = [put(rows, "k", {"n": n}, conditions=NEW) for n in range(8)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(result, Seen) for result in results) == 1
    assert sum(isinstance(result, PreconditionFailed) for result in results) == 7


async def test_a_batch_is_all_or_nothing_and_a_refused_one_still_raises_the_mark(rows: RowsResource) -> None:
    await put(rows, "a", {"n": 1})
    with pytest.raises(NotFound):
        await rows.write(FENCE, 9, [RowWrite("put", ("a",), {"n": 2}), RowWrite("delete", ("none",))])
    assert await get(rows, "a") == {"n": 1}
    assert await rows.mark(FENCE) == 9
    writes = [RowWrite("put", ("b",), {"n": 1}), RowWrite("patch", ("b",), {"m": 2}), RowWrite("delete", ("a",))]
    after, seen = await rows.write(FENCE, 9, writes)
    assert after == [{"n": 1}, {"n": 1, "m": 2}, None]
    assert seen.etag is None
    with pytest.raises(StaleToken):
        await rows.write(FENCE, 8, writes)
    with pytest.raises(InvalidInput):
        await rows.write(FENCE, 9, [])


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"a": float("nan")}, InvalidInput),
        ({"a": float("inf")}, InvalidInput),
        ({"a": "\ud800"}, InvalidInput),
        ({"\ud800": 1}, InvalidInput),
        ({"a": "x" * 1000}, TooLarge),
    ],
)
async def test_what_is_not_json_or_too_large_is_refused(rows: RowsResource, value: Row, error: type[Exception]) -> None:
    with pytest.raises(error):
        await put(rows, "k", value, token=9)
    assert await get(rows, "k") is None
    assert await rows.mark(FENCE) == 9


@pytest.mark.parametrize("key", [(), ("",), ("..",), ("a", ""), ("a\0b",), ("a\r\n",), ("\ud800",), ("x" * 2000,)])
async def test_keys_that_are_no_names_are_refused(rows: RowsResource, key: Key) -> None:
    with pytest.raises(InvalidInput):
        await rows.write(FENCE, 7, [RowWrite("put", key, {"a": 1})])
    with pytest.raises(InvalidInput):
        await rows.read(key, FENCE)


@pytest.mark.parametrize("token", [0, -1, 2**63, True])
async def test_what_is_no_token_never_reaches_the_database(rows: RowsResource, token: int) -> None:
    for call in (rows.claim(FENCE, token), rows.read(("k",), FENCE, token), rows.delete(("k",), FENCE, token)):
        with pytest.raises(InvalidToken):
            await call
    assert await rows.mark(FENCE) == 0


async def test_two_resources_in_one_database_keep_their_rows_apart(rows: RowsResource, path: Path) -> None:
    other = RowsResource("other", f"sqlite:///{path}")
    await other.open()
    await put(rows, "k", {"of": "rows"})
    assert (await other.read(("k",), "other:k"))[0] is None
    await other.close()


# --- a table of the user's own ---------------------------------------------------------------------------------------

ACCOUNTS = """
CREATE TABLE accounts (
    tenant TEXT, id INTEGER, owner VARCHAR(20) NOT NULL UNIQUE, balance NUMERIC(12, 2) NOT NULL DEFAULT 5,
    big BIGINT, plain INTEGER, active BOOLEAN, opened TIMESTAMP, born DATE, at TIME, photo BLOB, extra JSON, ratio REAL,
    loud TEXT GENERATED ALWAYS AS (upper(owner)) VIRTUAL, parent INTEGER REFERENCES parents (id) ON DELETE CASCADE,
    later INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT solvent CHECK (balance >= 0), PRIMARY KEY (tenant, id)
)
"""


@pytest.fixture
async def accounts(path: Path) -> AsyncIterator[RowsResource]:
    make(path, "CREATE TABLE parents (id INTEGER PRIMARY KEY)", "INSERT INTO parents VALUES (1)", ACCOUNTS)
    resource = RowsResource(
        "accounts", f"sqlite:///{path}", table="accounts", key=["tenant", "id"], guard_template=FENCE
    )
    await resource.open()
    yield resource
    await resource.close()


FULL = {
    "owner": "Ann", "balance": "12.50", "big": "9223372036854775807", "plain": 9007199254740991, "active": True,
    "opened": "2030-01-31T11:00:00.250000Z", "born": "2000-02-29", "at": "23:59:59", "photo": "AAEC/w==",
    "extra": {"a": [1, None]}, "ratio": 0.5, "parent": 1, "later": None,
}  # fmt: skip


async def test_columns_travel_both_ways_unchanged(accounts: RowsResource, path: Path) -> None:
    await put(accounts, "acme/7", FULL)
    expected = {"tenant": "acme", "id": 7, "loud": "ANN", **FULL}
    assert await get(accounts, "acme/7") == expected
    assert fetch(path, "SELECT balance, big, photo, opened FROM accounts") == [
        (12.5, 2**63 - 1, b"\x00\x01\x02\xff", "2030-01-31 11:00:00.250000")
    ]
    await put(accounts, "acme/7", {**FULL, "tenant": "acme", "id": 7})
    assert await get(accounts, "acme/7") == expected


async def test_times_are_kept_in_utc_and_large_integers_leave_as_strings(accounts: RowsResource) -> None:
    await put(accounts, "acme/7", {"owner": "Ann", "opened": "2030-01-31T12:00:00+01:00", "plain": 2**53, "big": 3})
    row = await get(accounts, "acme/7")
    assert row is not None
    assert (row["opened"], row["plain"], row["big"]) == ("2030-01-31T11:00:00Z", "9007199254740992", "3")


async def test_put_sets_what_is_not_named_to_its_default(accounts: RowsResource) -> None:
    await put(accounts, "acme/7", FULL)
    await put(accounts, "acme/7", {"owner": "Bob"})
    row = await get(accounts, "acme/7")
    assert row is not None
    assert (row["owner"], row["balance"], row["big"], row["extra"]) == ("Bob", "5.00", None, None)


async def test_a_patch_changes_what_it_names_only(accounts: RowsResource) -> None:
    await put(accounts, "acme/7", FULL)
    patch = {"balance": "1.25", "photo": None, "extra": {"b": 2}}
    (row,), _ = await accounts.write(FENCE, 7, [RowWrite("patch", ("acme", "7"), patch)])
    assert row is not None
    assert (row["balance"], row["photo"], row["extra"], row["owner"]) == ("1.25", None, {"a": [1, None], "b": 2}, "Ann")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nobody", 1), ("loud", "X"), ("tenant", "other"), ("id", 8), ("owner", None), ("owner", 5),
        ("owner", "x" * 21),        ("balance", "1.005"), ("balance", "12345678901234567.89"), ("balance", True),
        ("balance", "NaN"), ("balance", "1e3"), ("balance", 0.1234567890123456), ("big", "9223372036854775808"),
        ("big", 2**63), ("big", "1_000"), ("big", "٣"), ("big", 1.0), ("big", True), ("big", ""), ("active", 1),
        ("active", "true"), ("opened", "2030-01-31"), ("opened", "2030-01-31T12:00:00"), ("opened", 1893456000),
        ("opened", "2030-02-31T12:00:00Z"), ("born", "20300131"), ("at", "24:00:00"), ("photo", "AAEC/w"),
        ("photo", "!!!!"), ("ratio", "0.5"), ("ratio", 10**400), ("balance", {}), ("owner", {"a": 1}),
    ],
)  # fmt: skip
async def test_a_wrong_value_is_refused_by_the_name_of_its_column(
    accounts: RowsResource, field: str, value: object
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await put(accounts, "acme/7", {"owner": "Ann", field: value}, token=9)
    assert refused.value.field == field
    assert await get(accounts, "acme/7") is None
    assert await accounts.mark(FENCE) == 9


@pytest.mark.parametrize(
    ("row", "named", "detail"),
    [
        ({}, "owner", "null"),
        ({"owner": "Taken"}, "owner", "another row"),
        ({"owner": "Ann", "balance": "-1"}, "row", "solvent"),
        ({"owner": "Ann", "parent": 99}, "row", "another table"),
        ({"owner": "Ann", "later": 99}, "row", "another table"),
    ],
)
async def test_a_violated_constraint_is_explained_and_the_mark_stays_raised(
    accounts: RowsResource, row: Row, named: str, detail: str
) -> None:
    await put(accounts, "acme/1", {"owner": "Taken"})
    with pytest.raises(InvalidInput, match=detail) as refused:
        await put(accounts, "acme/7", row, token=9)
    assert refused.value.field == named
    assert await get(accounts, "acme/7") is None
    assert await accounts.mark(FENCE) == 9


@pytest.mark.parametrize("key", ["acme", "acme/7/8", "acme/x", "acme/07", "acme/+7", "acme/7.0", "acme/\u0667"])
async def test_a_key_has_one_spelling_only(accounts: RowsResource, key: str) -> None:
    """Another spelling of the same row would be another lock key, and go round the fence of the first."""
    await put(accounts, "acme/7", {"owner": "Ann"})
    with pytest.raises(InvalidInput) as refused:
        await put(accounts, key, {"owner": "Mallory"}, token=9)
    assert refused.value.field == "key"


async def test_a_collation_does_not_make_two_fences_of_one_row(path: Path) -> None:
    make(path, "CREATE TABLE loose (id TEXT COLLATE NOCASE PRIMARY KEY, price NUMERIC UNIQUE, n INTEGER)")
    by_text = RowsResource("loose", f"sqlite:///{path}", table="loose", key=["id"])
    by_price = RowsResource("priced", f"sqlite:///{path}", table="loose", key=["price"])
    await by_text.open()
    await by_price.open()
    await by_text.write("loose:a", 7, [RowWrite("put", ("a",), {"n": 1, "price": "1.5"})])
    for other in (RowWrite("put", ("A",), {"n": 2}), RowWrite("delete", ("A",)), RowWrite("patch", ("A",), {"n": 2})):
        with pytest.raises(InvalidInput):
            await by_text.write("loose:A", 7, [other])
    for spelling in ("1.50", "1.500", "01.5"):
        with pytest.raises(InvalidInput):
            await by_price.write(f"priced:{spelling}", 7, [RowWrite("patch", (spelling,), {"n": 2})])
    assert fetch(path, "SELECT id, n FROM loose") == [("a", 1)]
    await by_text.close()
    await by_price.close()


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("missing", ["id"]),
        ("parents", ["no"]),
        ("accounts", ["id"]),
        ("fencegate_fences", ["lock_key"]),
        ("rows", ["key"]),
    ],
)
async def test_a_table_that_cannot_be_fenced_is_refused(
    accounts: RowsResource, path: Path, table: str, key: list[str]
) -> None:
    with pytest.raises(UnsafeConfiguration):
        await RowsResource("other", f"sqlite:///{path}", table=table, key=key).open()


async def test_names_with_quotes_are_only_names(path: Path) -> None:
    make(path, """CREATE TABLE "odd ""name'; --" ("the ""key" TEXT PRIMARY KEY, "a:b %s ?" TEXT)""")
    odd = RowsResource("odd", f"sqlite:///{path}", table="""odd "name'; --""", key=['the "key'])
    await odd.open()
    await odd.write("odd:k", 7, [RowWrite("put", ("k'",), {"a:b %s ?": "'; DROP TABLE x; --"})])
    await odd.write("odd:k", 7, [RowWrite("patch", ("k'",), {"a:b %s ?": ":x"})])
    assert (await odd.read(("k'",), "odd:k"))[0] == {'the "key': "k'", "a:b %s ?": ":x"}
    await odd.close()


# --- what is recorded, and what can't be reached ---------------------------------------------------------------------


async def test_lost_marks_are_noticed_and_a_floor_cures_it(path: Path) -> None:
    rows = RowsResource("rows", f"sqlite:///{path}")
    await rows.open()
    await rows.write("rows:k", 50, [RowWrite("put", ("k",), {"a": 1})])
    make(path, "DELETE FROM fencegate_resources", "DELETE FROM fencegate_fences")
    with pytest.raises(UnsafeConfiguration):
        await rows.write("rows:k", 7, [RowWrite("put", ("k",), {"a": 2})])
    await rows.close()
    again = RowsResource("rows", f"sqlite:///{path}")
    with pytest.raises(UnsafeConfiguration, match="fence floor rows"):
        await again.open()
    await again.raise_floor(60)
    await again.open()
    with pytest.raises(StaleToken):
        await again.write("rows:k", 50, [RowWrite("put", ("k",), {"a": 2})])
    await again.close()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true", "x", "nodb://"]
)
def test_a_database_that_would_forget_is_refused(url: str) -> None:
    with pytest.raises(UnsafeConfiguration):
        RowsResource("rows", url)


def test_a_guard_that_cannot_be_filled_in_is_refused(path: Path) -> None:
    with pytest.raises(UnsafeConfiguration):
        RowsResource("rows", f"sqlite:///{path}", guard_template="acct:{tenant}")


async def test_a_missing_folder_is_an_unavailable_resource(tmp_path: Path) -> None:
    with pytest.raises(ResourceUnavailable) as failed:
        await RowsResource("rows", f"sqlite:///{tmp_path}/none/data.db").open()
    assert failed.value.outcome == "not-written"


async def test_after_close_nothing_is_reached(path: Path) -> None:
    rows = RowsResource("rows", f"sqlite:///{path}")
    await rows.open()
    await rows.close()
    with pytest.raises(ResourceUnavailable):
        await rows.claim("rows:k", 7)


@pytest.fixture
def blocker(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as database:
        yield database


async def test_a_database_that_another_keeps_locked_is_given_up_in_time(
    path: Path, blocker: sqlite3.Connection
) -> None:
    rows = RowsResource("rows", f"sqlite:///{path}", wait_ms=3000)
    await rows.open()
    blocker.execute("BEGIN IMMEDIATE")
    began = asyncio.get_running_loop().time()
    tries = [rows.write("rows:k", 7, [RowWrite("put", ("k",), {"n": n})]) for n in range(20)]
    for failed in await asyncio.gather(*tries, return_exceptions=True):
        assert isinstance(failed, ResourceUnavailable)
        assert failed.outcome == "not-written"
    # The wait counts from the call, so that those who queue behind each other don't wait in turn.
    assert asyncio.get_running_loop().time() - began < 30
    assert (await rows.read(("k",), "rows:k"))[0] is None
    blocker.execute("ROLLBACK")
    await rows.write("rows:k", 7, [RowWrite("put", ("k",), {"n": 9})])
    await rows.close()


async def test_one_that_goes_alone_comes_to_its_turn_however_many_go_together(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More wait than fit into a group, so that there is always another: both kinds have one thread, and one writer."""
    monkeypatch.setattr(groups, "MAX_GROUP", 2)
    rows = RowsResource("rows", f"sqlite:///{path}")
    await rows.open()
    busy = True

    async def write_on(key: str) -> None:
        while busy:
            await rows.write(f"rows:{key}", 7, [RowWrite("put", (key,), {})])

    others = [asyncio.create_task(write_on(f"k{number}")) for number in range(40)]
    try:
        async with asyncio.timeout(20):
            for _ in range(20):
                await rows.write("rows:twice", 7, [RowWrite("put", ("twice",), {"n": n}) for n in range(2)])
    finally:
        busy = False
        await asyncio.gather(*others)
        await rows.close()


async def test_a_database_that_fails_after_it_refused_at_commit_is_told_as_unavailable(
    path: Path, blocker: sqlite3.Connection
) -> None:
    """The mark was taken back with the row, and can't be raised now; what the driver says of it is not for callers."""
    make(path, "CREATE TABLE parents (id INTEGER PRIMARY KEY)", ACCOUNTS)
    rows = RowsResource("rows", f"sqlite:///{path}", table="accounts", key=["tenant", "id"], wait_ms=1000)
    await rows.open()
    transactions: list[object] = []

    def begin(connection: object) -> None:
        transactions.append(connection)
        if len(transactions) == 3:  # it was refused together, and alone: now the mark is to be raised
            blocker.execute("BEGIN IMMEDIATE")

    event.listen(rows._engine, "begin", begin)
    with pytest.raises(ResourceUnavailable) as failed:
        await rows.write("rows:acme/7", 7, [RowWrite("put", ("acme", "7"), {"owner": "Ann", "later": 99})])
    assert failed.value.outcome == "not-written"
    assert blocker.in_transaction
    blocker.execute("ROLLBACK")
    assert await rows.mark("rows:acme/7") == 0
    await rows.close()
