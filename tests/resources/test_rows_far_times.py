"""Times that PostgreSQL keeps and Python has none for: infinity, years before 1 and after 9999, and the hour 24."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fencegate.core.errors import InvalidInput
from fencegate.core.ports import Row, RowWrite
from fencegate_adapters.sql import RowsResource
from tests.resources.databases import Database, make_database
from tests.resources.test_rows_plain import Watched

FENCE = "job:rebuild"
KEY = ("7",)

FAR: list[Row] = [
    {"born": "infinity", "seen": "infinity", "opened": "infinity", "at": "24:00:00"},
    {"born": "-infinity", "seen": "-infinity", "opened": "-infinity", "at": None},
    {"born": "0044-03-15 BC", "seen": "0044-03-15 12:00:00 BC", "opened": "0044-03-15 12:00:00.25+00 BC", "at": None},
    {"born": "0001-12-31 BC", "seen": "4713-01-01 00:00:00 BC", "opened": "0005-02-29 00:00:00+00 BC", "at": None},
    {"born": "10000-01-01", "seen": "10000-01-01 00:00:00.5", "opened": "10000-01-01 00:00:00+00", "at": None},
    {"born": "5874897-12-31", "seen": "294276-12-31 23:59:59.999", "opened": "294276-12-30 23:59:59.000001+00"},
]


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    made = make_database("postgresql", request, tmp_path)
    made.execute(
        "CREATE TABLE things (id INTEGER PRIMARY KEY, n INTEGER, born DATE, seen TIMESTAMP(3), opened TIMESTAMPTZ,"
        " at TIME)"
    )
    return made


@pytest.fixture
async def rows(database: Database) -> AsyncIterator[RowsResource]:
    resource = RowsResource("things", database.url, table="things", key=["id"], guard_template=FENCE)
    await resource.open()
    yield resource
    await resource.close()


def store(database: Database, value: Row, key: int = 7) -> Row:
    """By somebody else, who knows nothing of us; the row as it is told."""
    whole = {"id": key, "n": 0, "born": None, "seen": None, "opened": None, "at": None} | value
    database.execute(f"DELETE FROM things WHERE id = {key}")
    texts = ("NULL" if each is None else f"'{each}'" for each in whole.values())
    database.execute(f"INSERT INTO things ({', '.join(whole)}) VALUES ({', '.join(texts)})")
    return whole


async def written(rows: RowsResource, token: int, *writes: RowWrite) -> list[Row | None]:
    told, _ = await asyncio.wait_for(rows.write(FENCE, token, writes), 10)
    return told


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
async def test_they_are_told_as_they_are_by_every_way_to_a_row(database: Database, zone: str) -> None:
    url = f"{database.url}%20-ctimezone%3D{zone}"
    rows = RowsResource("things", url, table="things", key=["id"], guard_template=FENCE)
    await rows.open()
    for token, value in enumerate(FAR, 7):
        stored = store(database, value)
        store(database, value, 8)
        plain, seen = await rows.read(KEY, FENCE)
        assert plain == stored
        assert (await rows.read(KEY, FENCE, token))[0] == stored
        for n, way in enumerate(("usual", "plain"), 1):
            watched = Watched(rows)
            assert await written(rows, token, RowWrite("patch", KEY, {"n": n})) == [{**stored, "n": n}], way
        assert watched.plain
        both = [RowWrite("patch", (key,), {"n": 3}) for key in ("7", "8")]
        assert await written(rows, token, *both) == [{**stored, "n": 3}, {**stored, "id": 8, "n": 3}]
        assert await written(rows, token, RowWrite("put", KEY, stored)) == [stored]
        assert (await rows.read(KEY, FENCE))[1].etag == seen.etag
    await rows.close()


async def test_calls_that_go_together_are_told_of_them_too(database: Database, rows: RowsResource) -> None:
    stored = [store(database, value, key) for key, value in enumerate(FAR, 1)]
    writes = (written(rows, 7, RowWrite("patch", (str(row["id"]),), {"n": 5})) for row in stored)
    assert await asyncio.gather(*writes) == [[{**row, "n": 5}] for row in stored]


@pytest.mark.parametrize("op", ["put", "patch"])
async def test_what_was_read_can_be_written(database: Database, rows: RowsResource, op: str) -> None:
    for token, value in enumerate(FAR, 7):
        expected = {"id": 7, "n": None, "born": None, "seen": None, "opened": None, "at": None} | value
        await written(rows, token, RowWrite("put", KEY, {}))
        assert await written(rows, token, RowWrite("put" if op == "put" else "patch", KEY, value)) == [expected]
        await written(rows, token, RowWrite("delete", KEY))
        assert await written(rows, token, RowWrite("put", KEY, value)) == [expected]
        assert (await rows.read(KEY, FENCE))[0] == expected
        in_utc = "(opened AT TIME ZONE 'UTC')::text"
        kept = database.fetch(f"SELECT born::text, seen::text, {in_utc}, at::text FROM things")
        assert kept == [(value["born"], value["seen"], str(value["opened"]).replace("+00", ""), value.get("at"))]


WRONG: list[tuple[str, object]] = [
    ("born", "Infinity"), ("born", "inf"), ("born", "now"), ("born", "2030-01-31 BCE"), ("born", "0044-02-30 BC"),
    ("born", "0000-01-01 BC"), ("born", "9999999-01-01"), ("born", "10000-13-01"), ("born", "0044-03-15 12:00:00 BC"),
    ("seen", "today"), ("seen", "0044-03-15 BC"), ("seen", "10000-01-01 00:00:00.0001"), ("seen", "10000-01-01"),
    ("seen", "10000-01-01 00:00:00+00"), ("opened", "10000-01-01 00:00:00"), ("opened", "0044-03-15 12:00:00+01 BC"),
    ("opened", "2030-01-31 12:00:00+00"), ("opened", "0044-03-15 25:00:00+00 BC"), ("at", "24:00:01"),
    ("at", "infinity"), ("opened", "4800-01-01 00:00:00+00 BC"),
]  # fmt: skip


async def test_what_is_no_such_time_is_refused(database: Database, rows: RowsResource) -> None:
    stored = store(database, {"born": "infinity"})
    for token, (field, value) in enumerate(WRONG, 7):
        for _ in ("usual", "plain"):
            with pytest.raises(InvalidInput):
                await written(rows, token, RowWrite("patch", KEY, {field: value}))
        assert await rows.mark(FENCE) == token
    assert (await rows.read(KEY, FENCE))[0] == stored


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
async def test_the_first_and_the_last_moment_are_told_in_utc_whatever_the_zone(database: Database, zone: str) -> None:
    url = f"{database.url}%20-ctimezone%3D{zone}"
    rows = RowsResource("things", url, table="things", key=["id"], guard_template=FENCE)
    await rows.open()
    edges = {
        "0001-01-01 00:00:00+00": "0001-01-01T00:00:00Z",
        "0001-01-01 00:00:00+05": "0001-12-31 19:00:00+00 BC",
        "9999-12-31 23:59:59.5+00": "9999-12-31T23:59:59.500000Z",
        "9999-12-31 23:59:59-05": "10000-01-01 04:59:59+00",
    }
    for stored, told in edges.items():
        store(database, {"opened": stored})
        row, _ = await rows.read(KEY, FENCE)
        assert row is not None
        assert row["opened"] == told
    await rows.close()


async def test_a_key_may_be_one(database: Database) -> None:
    database.execute("CREATE TABLE days (day DATE PRIMARY KEY, n INTEGER)", "INSERT INTO days VALUES ('infinity', 1)")
    rows = RowsResource("days", database.url, table="days", key=["day"], guard_template=FENCE)
    await rows.open()
    assert (await rows.read(("infinity",), FENCE))[0] == {"day": "infinity", "n": 1}
    for n in (2, 3):
        assert await written(rows, 7, RowWrite("patch", ("infinity",), {"n": n})) == [{"day": "infinity", "n": n}]
    assert await written(rows, 7, RowWrite("put", ("-infinity",), {"n": 4})) == [{"day": "-infinity", "n": 4}]
    await rows.close()


async def test_a_row_that_holds_its_mark_may_have_them(database: Database) -> None:
    database.execute("ALTER TABLE things ADD COLUMN token BIGINT")
    stored = [store(database, value, key) for key, value in enumerate(FAR, 1)]
    rows = RowsResource("things", database.url, table="things", key=["id"], token_column="token")
    await rows.open()
    for row in stored:
        key, fence = (str(row["id"]),), f"things:{row['id']}"
        for n in (1, 2):
            told, _ = await rows.write(fence, 7, [RowWrite("patch", key, {"n": n})])
            assert told == [{**row, "n": n}]
        assert (await rows.read(key, fence, 7))[0] == {**row, "n": 2}
    await rows.close()
