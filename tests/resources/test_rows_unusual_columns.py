"""Columns of a table that are rarely met: each of them is written as it was sent, or refused by a reason."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from fencegate.core.errors import InvalidInput, ResourceUnavailable, UnsafeConfiguration
from fencegate.core.ports import Row, RowWrite
from fencegate_adapters.sql import RowsResource
from fencegate_adapters.sql.plain import PlainPatches
from tests.resources.databases import Database, Postgresql, make_database

FENCE = "job:rebuild"

Opens = Callable[[Database, str], Awaitable[RowsResource]]


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database(request.param, request, tmp_path)


def on(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("database", kinds, indirect=True)


@pytest.fixture
async def opened() -> AsyncIterator[Opens]:
    async with AsyncExitStack() as stack:

        async def opens(database: Database, columns: str) -> RowsResource:
            database.execute(f"CREATE TABLE odd ({columns})")
            rows = RowsResource("odd", database.url, table="odd", key=["id"], guard_template=FENCE)
            stack.push_async_callback(rows.close)
            await rows.open()
            return rows

        yield opens


async def put(rows: RowsResource, value: Row) -> Row:
    (row,), _ = await asyncio.wait_for(rows.write(FENCE, 7, [RowWrite("put", ("7",), value)]), 10)
    assert row is not None
    return row


async def patch(rows: RowsResource, value: Row) -> Row:
    (row,), _ = await asyncio.wait_for(rows.write(FENCE, 7, [RowWrite("patch", ("7",), value)]), 10)
    assert row is not None
    return row


@on("postgresql")
async def test_a_decimal_of_very_many_digits_holds_nobody_up(database: Database, opened: Opens) -> None:
    rows = await opened(database, "id INTEGER PRIMARY KEY, n NUMERIC(1000, 700), other INTEGER")
    await put(rows, {})
    assert (await patch(rows, {"n": "1.5"}))["n"] == "1.5" + "0" * 699
    assert (await put(rows, {"n": "1" * 200}))["n"] == "1" * 200 + "." + "0" * 700
    assert (await patch(rows, {"other": 3}))["other"] == 3


@on("postgresql")
async def test_whatever_goes_wrong_with_a_plain_group_its_writes_are_done_one_by_one(
    database: Database, opened: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ArithmeticError

    rows = await opened(database, "id INTEGER PRIMARY KEY, n INTEGER")
    await put(rows, {})
    monkeypatch.setattr(PlainPatches, "group", fails)
    assert (await patch(rows, {"n": 3}))["n"] == 3


@on("mariadb")
async def test_a_default_is_whatever_the_table_says(database: Database, opened: Opens) -> None:
    rows = await opened(
        database,
        "id INTEGER PRIMARY KEY, n INTEGER, at DATETIME DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, "
        "sum INTEGER DEFAULT (1 + 1), name VARCHAR(40) DEFAULT (concat(':', 'b')), words VARCHAR(20) DEFAULT ':x 100%'",
    )
    created = await put(rows, {"n": 1})
    assert (created["sum"], created["name"], created["words"]) == (2, ":b", ":x 100%")
    await patch(rows, {"at": None, "sum": None, "name": None, "words": None})
    replaced = await put(rows, {"n": 2})
    assert replaced["at"] is not None
    assert replaced == {**created, "n": 2, "at": replaced["at"]}


SUNDAYS = {
    "postgresql": (
        "CREATE FUNCTION closed() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF new.n = 0 THEN RAISE EXCEPTION 'not on Sundays'; END IF; RETURN new; END $$",
        "CREATE TRIGGER closed BEFORE INSERT OR UPDATE ON odd FOR EACH ROW EXECUTE FUNCTION closed()",
    ),
    "mariadb": tuple(
        f"CREATE TRIGGER closed_{event} BEFORE {event} ON odd FOR EACH ROW "
        "IF new.n = 0 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not on Sundays'; END IF"
        for event in ("INSERT", "UPDATE")
    ),
    "sqlite": tuple(
        f"CREATE TRIGGER closed_{event} BEFORE {event} ON odd WHEN new.n = 0 "
        "BEGIN SELECT RAISE(ABORT, 'not on Sundays'); END"
        for event in ("INSERT", "UPDATE")
    ),
}


@on("sqlite", "postgresql", "mariadb")
async def test_what_a_trigger_of_the_table_refuses_is_told_with_its_words(database: Database, opened: Opens) -> None:
    rows = await opened(database, "id INTEGER PRIMARY KEY, n INTEGER")
    database.execute(*SUNDAYS[database.kind])
    with pytest.raises(InvalidInput, match="not on Sundays"):
        await put(rows, {"n": 0})
    await put(rows, {"n": 1})
    with pytest.raises(InvalidInput, match="not on Sundays"):
        await patch(rows, {"n": 0})
    assert database.fetch("SELECT id, n FROM odd") == [(7, 1)]


@on("postgresql")
async def test_a_value_that_is_too_large_for_its_index_is_refused(database: Database, opened: Opens) -> None:
    rows = await opened(database, "id INTEGER PRIMARY KEY, words TEXT UNIQUE")
    with pytest.raises(InvalidInput, match="refused"):
        await put(rows, {"words": "".join(chr(33 + n * 7919 % 9000) for n in range(6000))})


@on("mariadb")
async def test_a_time_that_its_column_does_not_reach_is_refused(database: Database, opened: Opens) -> None:
    rows = await opened(database, "id INTEGER PRIMARY KEY, at TIMESTAMP NULL")
    await put(rows, {"at": "2030-01-31T12:00:00Z"})
    for write in (put, patch):
        with pytest.raises(InvalidInput, match="refused"):
            await write(rows, {"at": "1960-01-31T12:00:00Z"})


@on("postgresql")
async def test_a_key_that_its_column_is_too_small_for_is_no_outage(database: Database, opened: Opens) -> None:
    rows = await opened(database, "id INTEGER PRIMARY KEY, n INTEGER")
    for token in (None, 7):
        with pytest.raises(InvalidInput, match="out of range"):
            await rows.read(("99999999999",), FENCE, token)


@on("postgresql")
async def test_a_domain_cuts_and_rounds_nothing(database: Database, opened: Opens) -> None:
    domains = {"code": "VARCHAR(3)", "padded": "CHAR(3)", "price": "NUMERIC(5, 2)", "cost": "price", "share": "INTEGER"}
    domains |= {"mark": "UUID", "extra": "JSONB", "ratio": "REAL", "at": "TIMESTAMPTZ"}
    database.execute(*(f"CREATE DOMAIN {name} AS {of}" for name, of in domains.items()))
    rows = await opened(database, f"id share PRIMARY KEY, {', '.join(f'{name} {name}' for name in domains)}")
    value: Row = {
        "code": "abc", "padded": "abc", "price": "1.25", "cost": "1.25", "share": 3, "ratio": 0.5, "extra": {"a": None},
        "mark": "123e4567-e89b-12d3-a456-426614174000", "at": "2030-01-31T12:00:00.000250Z",
    }  # fmt: skip
    assert await put(rows, value) == {"id": 7, **value}
    assert await put(rows, {**value, "extra": [1]}) == {"id": 7, **value, "extra": [1]}
    assert await patch(rows, {**value, "extra": [2]}) == {"id": 7, **value, "extra": [2]}
    for write in (put, patch, patch):
        for wrong in ({"code": "abcd"}, {"padded": "abcd"}, {"price": "1.255"}, {"cost": "1.255"}):
            with pytest.raises(InvalidInput):
                await write(rows, {**value, **wrong})
    assert await patch(rows, {"extra": None}) == {"id": 7, **value, "extra": None}


COUNTED = {
    "sqlite": ["n INTEGER PRIMARY KEY, id INTEGER UNIQUE NOT NULL"],
    "mariadb": ["n INTEGER AUTO_INCREMENT PRIMARY KEY, id INTEGER UNIQUE NOT NULL"],
    "postgresql": [
        "id INTEGER PRIMARY KEY, n SERIAL",
        "id INTEGER PRIMARY KEY, n INTEGER GENERATED BY DEFAULT AS IDENTITY",
        "n UUID PRIMARY KEY DEFAULT gen_random_uuid(), id INTEGER UNIQUE NOT NULL",
    ],
}


@on("sqlite", "postgresql", "mariadb")
async def test_a_row_that_is_replaced_keeps_the_number_that_the_database_gave_it(
    database: Database, opened: Opens
) -> None:
    for columns in COUNTED[database.kind]:
        rows = await opened(database, f"{columns}, words VARCHAR(20), other INTEGER DEFAULT 3")
        created = await put(rows, {"words": "a", "other": 4})
        assert created["n"] is not None
        assert await put(rows, {"words": "b"}) == {**created, "words": "b", "other": 3}
        database.execute("DROP TABLE odd")


@on("postgresql")
async def test_a_row_whose_key_the_database_counts_is_changed_but_not_created(
    database: Database, opened: Opens
) -> None:
    rows = await opened(database, "id INTEGER GENERATED ALWAYS AS IDENTITY (START 7) PRIMARY KEY, n INTEGER")
    with pytest.raises(InvalidInput, match="computed by the database"):
        await put(rows, {"n": 1})
    database.execute("INSERT INTO odd (n) VALUES (1)")
    assert await put(rows, {"n": 2}) == {"id": 7, "n": 2}
    assert await patch(rows, {"n": 3}) == {"id": 7, "n": 3}


@on("mariadb")
async def test_a_time_beyond_a_day_is_told_as_it_is(database: Database, opened: Opens) -> None:
    rows = await opened(database, "id INTEGER PRIMARY KEY, at TIME, fine TIME(6), other INTEGER")
    for stored in ("26:30:05", "-00:00:01", "-100:59:59", "838:59:59", "00:00:00", "23:59:59"):
        database.execute(f"REPLACE INTO odd VALUES (7, '{stored}', '{stored}.25', 0)")
        told = await patch(rows, {"other": 1})
        assert (told["at"], told["fine"]) == (stored, f"{stored}.250000")
    assert (await put(rows, {"at": "00:00:01", "fine": "23:59:59.000001"}))["fine"] == "23:59:59.000001"
    with pytest.raises(InvalidInput, match="a time of day"):
        await put(rows, {"at": "26:30:05"})


@on("postgresql", "mariadb")
@pytest.mark.parametrize("kind", ["BOOLEAN", "DOUBLE PRECISION"])
async def test_a_key_that_no_text_can_spell_is_refused_when_the_resource_is_opened(
    database: Database, opened: Opens, kind: str
) -> None:
    with pytest.raises(UnsafeConfiguration, match="can't be part of a key"):
        await opened(database, f"id {kind} PRIMARY KEY, n INTEGER")


@on("mariadb")
async def test_an_unsigned_number_of_64_bits_comes_back_as_it_went(database: Database, opened: Opens) -> None:
    rows = await opened(database, "id INTEGER PRIMARY KEY, n BIGINT UNSIGNED, s BIGINT")
    assert (await put(rows, {"n": "18446744073709551615"}))["n"] == "18446744073709551615"
    for column, value in (("n", "18446744073709551616"), ("n", -1), ("s", "9223372036854775808")):
        with pytest.raises(InvalidInput, match="64 bits"):
            await patch(rows, {column: value})


@on("mariadb")
async def test_a_key_beyond_the_character_set_of_its_column_is_the_senders_mistake(
    database: Database, opened: Opens
) -> None:
    rows = await opened(database, "id VARCHAR(20) CHARACTER SET latin1 PRIMARY KEY, n INTEGER")
    await put(rows, {})
    with pytest.raises(InvalidInput, match="character set"):
        await rows.read(("中",), FENCE)
    beside = rows.write(FENCE, 7, [RowWrite("patch", ("7",), {"n": 3})])
    wrong = rows.write(FENCE, 7, [RowWrite("put", ("中",), {"n": 3})])
    done, refused = await asyncio.gather(beside, wrong, return_exceptions=True)
    assert isinstance(refused, InvalidInput)
    assert not isinstance(done, BaseException)


@on("postgresql")
@pytest.mark.parametrize(("encoding", "takes_all"), [("LATIN1", False), ("SQL_ASCII", True)])
async def test_a_character_is_kept_or_refused_whatever_the_encoding_of_the_database(
    database: Database, encoding: str, takes_all: bool
) -> None:
    assert isinstance(database, Postgresql)
    name = f"{database.schema}_{encoding.lower()}"
    database.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
    url = database.server.url.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE odd (id TEXT PRIMARY KEY, t TEXT)")
    rows = RowsResource("odd", url, table="odd", key=["id"], guard_template=FENCE)
    await rows.open()
    try:
        assert (await put(rows, {"t": "ä"}))["t"] == "ä"
        if takes_all:
            assert (await patch(rows, {"t": "中"}))["t"] == "中"
            return
        with pytest.raises(InvalidInput):
            await patch(rows, {"t": "中"})
        with pytest.raises(InvalidInput):
            await rows.read(("中",), FENCE)
        assert (await patch(rows, {"t": "ö"}))["t"] == "ö"
    finally:
        await rows.close()


@on("postgresql")
async def test_a_row_that_no_partition_takes_is_refused_by_what_the_database_says(
    database: Database, opened: Opens
) -> None:
    rows = await opened(database, "id INTEGER PRIMARY KEY, n INTEGER) PARTITION BY RANGE (id")
    with pytest.raises(InvalidInput, match="no partition"):
        await put(rows, {"n": 1})


@on("postgresql")
async def test_a_row_with_json_that_is_nested_too_deeply_is_told_as_unreadable(
    database: Database, opened: Opens
) -> None:
    rows = await opened(database, "id INTEGER PRIMARY KEY, j JSON, n INTEGER")
    database.execute(f"INSERT INTO odd (id, j) VALUES (7, '{'[' * 3000}{']' * 3000}')")
    with pytest.raises(ResourceUnavailable, match="odd holds a value"):
        await rows.read(("7",), FENCE)
    with pytest.raises(ResourceUnavailable) as refused:
        await patch(rows, {"n": 3})
    assert refused.value.outcome == "not-written"


@on("postgresql")
async def test_times_are_read_whatever_style_of_dates_the_role_has(database: Database, opened: Opens) -> None:
    database.url += "%20-cdatestyle%3DGerman"
    rows = await opened(database, "id INTEGER PRIMARY KEY, d DATE, t TIMESTAMPTZ, n INTEGER")
    times = {"d": "2024-02-01", "t": "2024-02-01T10:00:00Z"}
    assert (await put(rows, times)).items() >= times.items()
    assert (await patch(rows, {"n": 3})).items() >= times.items()
