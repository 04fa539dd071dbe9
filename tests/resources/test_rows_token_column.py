"""The mark in a column of the row: the resource suite, and what is particular to this form."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from fencegate.core.errors import InvalidInput, NotFound, StaleToken, UnsafeConfiguration
from fencegate.core.ports import Conditions, Rows, RowWrite
from fencegate.testing.resource_suite import PER_KEY, Mode, ResourceSuite, Subject, opened
from fencegate_adapters.sql import RowsResource
from tests.resources.databases import KINDS, Database, make_database
from tests.resources.test_rows_suite import RowsSubject

NOTES = "CREATE TABLE notes (id VARCHAR(255) PRIMARY KEY, text VARCHAR(255) NOT NULL, token BIGINT)"


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return marked(request.param, request, tmp_path)


def marked(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    made = make_database(kind, request, tmp_path)
    made.execute(NOTES)
    return made


def notes(database: Database, mode: Mode = "enforce", guard: str = PER_KEY) -> RowsResource:
    where = {"table": "notes", "key": ["id"], "token_column": "token"}
    return RowsResource("s", database.url, guard_template=guard, mode=mode, **where)  # type: ignore[arg-type]


class MarkedSubject(RowsSubject):
    def __init__(self, database: Database) -> None:
        super().__init__(database, None)

    def new(self, mode: Mode = "enforce", guard: str = PER_KEY) -> Rows:
        # One lock over all rows can't have its mark in each: where the suite asks for it, it is another form.
        return notes(self._database, mode, guard if guard == PER_KEY else "other:{key}")


class TestMarkedRows(ResourceSuite):
    @pytest.fixture
    def subject(self, request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
        return MarkedSubject(marked("postgresql", request, tmp_path))

    # What the suite does with a lock that guards several rows, or none, this form refuses: see below.
    test_a_job_fence_refuses_a_stale_write_to_a_key_its_successor_never_touched = None  # type: ignore[assignment]
    test_a_floor_lets_a_changed_guard_open_and_refuses_everything_below_it = None  # type: ignore[assignment]
    test_an_adapter_that_is_open_is_refused_once_the_guard_was_changed = None  # type: ignore[assignment]

    async def test_marks_and_values_survive_close_and_reopen(self, subject: Subject) -> None:
        async with opened(subject.new()) as resource:
            await subject.write(resource, ("k",), "s:k", "text", 8)
            await resource.claim("s:claimed", 8)
        async with opened(subject.new()) as resource:
            assert await subject.read(resource, ("k",), "s:k") == "text"
            for key in ("k", "claimed"):
                with pytest.raises(StaleToken):
                    await subject.write(resource, (key,), f"s:{key}", "late", 7)


@pytest.fixture
async def rows(database: Database) -> AsyncIterator[RowsResource]:
    resource = notes(database)
    await resource.open()
    yield resource
    await resource.close()


async def put(rows: RowsResource, key: str, text: str, token: int) -> None:
    await rows.write(f"s:{key}", token, [RowWrite("put", (key,), {"text": text})])


def kept(database: Database) -> list[tuple[str, int]]:
    return database.fetch("SELECT id, token FROM notes ORDER BY id")


async def test_the_row_holds_the_mark_and_does_not_show_it(rows: RowsResource, database: Database) -> None:
    await put(rows, "k", "one", 7)
    row, seen = await rows.read(("k",), "s:k")
    assert row == {"id": "k", "text": "one"}
    await rows.claim("s:k", 8)
    assert kept(database) == [("k", 8)]
    # A claim does not change the value, so a condition that held still holds.
    named = Conditions(if_match=(str(seen.etag),))
    await rows.write("s:k", 8, [RowWrite("patch", ("k",), {"text": "two"}, named)])
    with pytest.raises(InvalidInput, match="kept by Fencegate"):
        await rows.write("s:k", 8, [RowWrite("patch", ("k",), {"token": 1})])


async def test_rows_that_nobody_has_marked_are_marked_by_the_first_who_comes(
    rows: RowsResource, database: Database
) -> None:
    database.execute("INSERT INTO notes VALUES ('a', 'old', NULL), ('b', 'old', 0)")
    await asyncio.gather(*(put(rows, key, "new", 7) for key in ("a", "b")))
    assert kept(database) == [("a", 7), ("b", 7)]
    with pytest.raises(StaleToken):
        await put(rows, "a", "late", 6)


async def test_a_mark_outlives_its_row_even_when_an_outsider_puts_it_back(
    rows: RowsResource, database: Database
) -> None:
    await put(rows, "k", "one", 7)
    await rows.delete(("k",), "s:k", 9)
    database.execute("INSERT INTO notes VALUES ('k', 'from outside', NULL)")
    assert await rows.mark("s:k") == 9
    with pytest.raises(StaleToken):
        await put(rows, "k", "late", 8)
    await put(rows, "k", "new", 9)
    assert kept(database) == [("k", 9)]


async def test_many_holders_create_change_and_delete_one_row_and_no_mark_goes_back(
    database: Database,
) -> None:
    async with opened(notes(database)) as one, opened(notes(database)) as two:
        highest = 0

        async def step(number: int) -> None:
            nonlocal highest
            rows = cast(RowsResource, (one, two)[number % 2])
            token = 1 + number // 3 + (number * 7) % 5
            op = RowWrite("delete", ("k",)) if number % 4 == 3 else RowWrite("put", ("k",), {"text": str(token)})
            before = highest
            try:
                with contextlib.suppress(NotFound):  # which raises the mark all the same
                    await rows.write("s:k", token, [op])
            except StaleToken:
                return
            assert token >= before
            highest = max(highest, token)

        await asyncio.gather(*(step(number) for number in range(40)))
        assert await one.mark("s:k") == highest
        for _, token in kept(database):
            assert token == highest


@pytest.mark.parametrize("guard", ["job:x", "{resource}", "x:{key}{key}", "x:{id}{key}"])
def test_a_guard_that_may_cover_several_rows_is_refused(tmp_path: Path, guard: str) -> None:
    with pytest.raises(UnsafeConfiguration, match="lock of its own"):
        RowsResource(
            "s", f"sqlite:///{tmp_path}/x.db", table="notes", key=["id"], token_column="token", guard_template=guard
        )


async def test_a_table_has_one_of_the_two_forms_and_a_change_needs_a_floor(
    rows: RowsResource, database: Database
) -> None:
    await put(rows, "k", "one", 7)
    other = RowsResource("s", database.url, table="notes", key=["id"])
    with pytest.raises(UnsafeConfiguration, match="form was"):
        await other.open()
    await other.raise_floor(60)
    await other.open()
    with pytest.raises(StaleToken):
        await put(other, "k", "late", 7)
    with pytest.raises(UnsafeConfiguration):
        await put(rows, "k", "by the former form", 70)
    await other.close()


async def test_a_lock_guards_its_own_row_only(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    database = make_database("sqlite", request, tmp_path)
    database.execute("CREATE TABLE pairs (a TEXT, b TEXT, n INTEGER, token INTEGER, PRIMARY KEY (a, b))")
    pairs = RowsResource("p", database.url, table="pairs", key=["a", "b"], token_column="token")
    await pairs.open()
    await pairs.write("p:x/y", 7, [RowWrite("put", ("x", "y"), {"n": 1})])
    for fence, key in (
        ("p:x/y/z", ("x/y", "z")),
        ("p:x/y/z", ("x", "y/z")),
        ("p:x/y/z", ("x", "z")),
        ("p:x/y", ("x", "z")),
    ):
        with pytest.raises(InvalidInput):
            await pairs.write(fence, 7, [RowWrite("put", key, {"n": 1})])
    assert database.fetch("SELECT * FROM pairs") == [("x", "y", 1, 7)]
    await pairs.close()
