"""What rows of a table look like in JSON, and what is refused, on PostgreSQL and MariaDB; `test_rows.py` has SQLite."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import types

from fencegate.core.errors import InvalidInput, NotFound, UnsafeConfiguration
from fencegate.core.ports import Row, RowWrite
from fencegate_adapters.sql import RowsResource
from fencegate_adapters.sql.codec import codec_of, is_decimal
from tests.resources.databases import Database, make_database

FENCE = "job:rebuild"

PARENTS = ("CREATE TABLE parents (id INTEGER PRIMARY KEY)", "INSERT INTO parents VALUES (1)")

TABLES = {
    "postgresql": """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN percent AS INTEGER CHECK (VALUE BETWEEN 0 AND 100);
CREATE TABLE accounts (
    tenant TEXT, id INTEGER, owner VARCHAR(20) NOT NULL UNIQUE, balance NUMERIC(12, 2) NOT NULL DEFAULT 5,
    big BIGINT, small SMALLINT, active BOOLEAN, opened TIMESTAMPTZ, seen TIMESTAMP(3), born DATE, at TIME, photo BYTEA,
    extra JSONB, more JSON, ratio DOUBLE PRECISION, mark UUID, mood mood, share percent,
    loud TEXT GENERATED ALWAYS AS (upper(owner)) STORED, counted BIGINT GENERATED ALWAYS AS IDENTITY,
    parent INTEGER REFERENCES parents (id), later INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT solvent CHECK (balance >= 0), PRIMARY KEY (tenant, id)
)
""",
    "mariadb": """
CREATE TABLE accounts (
    tenant VARCHAR(20), id INTEGER, owner VARCHAR(20) NOT NULL UNIQUE, balance NUMERIC(12, 2) NOT NULL DEFAULT 5,
    big BIGINT, small SMALLINT, active TINYINT(1), opened DATETIME(6), seen DATETIME(3), born DATE, at TIME, photo BLOB,
    extra JSON, more JSON, ratio DOUBLE, mark UUID, mood ENUM('sad', 'glad'), share INTEGER,
    loud VARCHAR(20) GENERATED ALWAYS AS (upper(owner)) STORED, counted INTEGER GENERATED ALWAYS AS (id + 1) VIRTUAL,
    parent INTEGER, later INTEGER,
    CONSTRAINT solvent CHECK (balance >= 0), PRIMARY KEY (tenant, id), FOREIGN KEY (parent) REFERENCES parents (id)
)
""",
}

FULL: Row = {
    "owner": "Ann", "balance": "12.50", "big": "9223372036854775807", "small": -7, "active": True,
    "opened": "2030-01-31T11:00:00.250000Z", "seen": "2030-01-31T11:00:00.250000Z", "born": "2000-02-29",
    "at": "23:59:59", "photo": "AAEC/w==", "extra": {"a": [1, None, "é🔒"]}, "more": "a JSON text", "ratio": 0.5,
    "mark": "123e4567-e89b-12d3-a456-426614174000", "mood": "glad", "share": 40, "parent": 1, "later": None,
}  # fmt: skip


@pytest.fixture(params=sorted(TABLES))
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database(request.param, request, tmp_path)


@pytest.fixture
async def accounts(database: Database) -> AsyncIterator[RowsResource]:
    table = TABLES[database.kind]
    if database.is_mysql:  # which has no such type
        table = table.replace(" UUID,", " CHAR(36),")
    database.execute(*PARENTS, *table.split(";"))
    resource = RowsResource("accounts", database.url, table="accounts", key=["tenant", "id"], guard_template=FENCE)
    await resource.open()
    yield resource
    await resource.close()


async def put(rows: RowsResource, key: str, value: Row, token: int = 7) -> Row:
    (row,), _ = await rows.write(FENCE, token, [RowWrite("put", tuple(key.split("/")), value)])
    assert row is not None
    return row


async def get(rows: RowsResource, key: str) -> Row | None:
    row, _ = await rows.read(tuple(key.split("/")), FENCE)
    return row


async def test_columns_travel_both_ways_unchanged(accounts: RowsResource) -> None:
    created = await put(accounts, "acme/7", FULL)
    assert {name: created[name] for name in FULL} == FULL
    assert (created["tenant"], created["id"], created["loud"]) == ("acme", 7, "ANN")
    replaced = await put(accounts, "acme/7", {**FULL, "tenant": "acme", "id": 7, "owner": "Bob", "active": False})
    assert replaced == {**created, "owner": "Bob", "loud": "BOB", "active": False}
    assert await get(accounts, "acme/7") == replaced
    await put(accounts, "acme/7", {**FULL, "opened": "2030-01-31T12:00:00+01:00"})
    assert (await get(accounts, "acme/7") or {})["opened"] == "2030-01-31T11:00:00Z"


async def test_what_is_not_named_is_set_to_its_default_by_put_and_kept_by_patch(accounts: RowsResource) -> None:
    await put(accounts, "acme/7", FULL)
    patch = {"balance": "1.25", "photo": None, "extra": {"b": 2}}
    (row,), _ = await accounts.write(FENCE, 7, [RowWrite("patch", ("acme", "7"), patch)])
    assert row is not None
    assert (row["balance"], row["photo"], row["owner"]) == ("1.25", None, "Ann")
    assert row["extra"] == {"a": [1, None, "é🔒"], "b": 2}
    row = await put(accounts, "acme/7", {"owner": "Bob"})
    assert (row["owner"], row["balance"], row["big"], row["extra"]) == ("Bob", "5.00", None, None)


UPPER_CASE = ("mark", "123E4567-E89B-12D3-A456-426614174000")
WRONG: list[tuple[str, object]] = [
    ("nobody", 1), ("loud", "X"), ("counted", 3), ("tenant", "other"), ("owner", None), ("owner", "x" * 21),
    ("balance", "1.005"), ("balance", "NaN"), ("big", "9223372036854775808"), ("active", 1), ("active", "true"),
    ("opened", "2030-01-31T12:00:00"), ("seen", "2030-01-31T12:00:00.0001Z"), ("photo", "!!!!"), ("ratio", "0.5"),
    UPPER_CASE, ("mark", 5), ("mood", "angry"), ("mood", 1),
]  # fmt: skip


async def test_a_wrong_value_is_refused_by_the_name_of_its_column(accounts: RowsResource, database: Database) -> None:
    for token, (field, value) in enumerate(WRONG, start=9):
        if database.is_mysql and (field, value) == UPPER_CASE:
            continue  # there it is a text like any other
        with pytest.raises(InvalidInput) as refused:
            await put(accounts, "acme/7", {"owner": "Ann", field: value}, token=token)
        assert refused.value.field == field, value
        assert await accounts.mark(FENCE) == token
    assert await get(accounts, "acme/7") is None


async def test_what_only_the_database_can_refuse_is_explained_and_the_mark_stays_raised(
    accounts: RowsResource, database: Database
) -> None:
    await put(accounts, "acme/1", {"owner": "Taken"})
    cases: list[tuple[Row, str]] = [
        ({}, "null"),
        ({"owner": "Taken"}, "another row"),
        ({"owner": "Ann", "balance": "-1"}, "solvent"),
        ({"owner": "Ann", "parent": 99}, "another table"),
        ({"owner": "Ann", "small": 70000}, "range"),
        ({"owner": "Ann", "balance": "12345678901.00"}, "refused"),
    ]
    if database.kind == "postgresql":
        cases += [({"owner": "Ann", "later": 99}, "another table"), ({"owner": "Ann", "share": 101}, "percent")]
        cases += [({"owner": "A\0"}, "NUL")]
    for token, (row, detail) in enumerate(cases, start=10):
        with pytest.raises(InvalidInput, match=detail):
            await put(accounts, "acme/7", row, token=token)
        assert await get(accounts, "acme/7") is None
        assert await accounts.mark(FENCE) == token


async def test_a_key_has_one_spelling_only(accounts: RowsResource) -> None:
    await put(accounts, "acme/7", {"owner": "Ann"})
    for key in ("acme", "acme/7/8", "acme/x", "acme/07", "acme/+7", "acme/7.0"):
        with pytest.raises(InvalidInput) as refused:
            await put(accounts, key, {"owner": "Mallory"}, token=9)
        assert refused.value.field == "key"


async def test_a_collation_does_not_make_two_fences_of_one_row(database: Database) -> None:
    loose = {
        "postgresql": "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        "CREATE TABLE loose (id VARCHAR(20) COLLATE loose PRIMARY KEY, n INTEGER)",
        "mariadb": "CREATE TABLE loose (id VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n INTEGER)",
    }
    database.execute(*loose[database.kind].split(";"))
    rows = RowsResource("loose", database.url, table="loose", key=["id"])
    await rows.open()
    await rows.write("loose:a", 7, [RowWrite("put", ("a",), {"n": 1})])
    for write in (RowWrite("put", ("A",), {"n": 2}), RowWrite("delete", ("A",)), RowWrite("patch", ("A",), {"n": 2})):
        with pytest.raises(InvalidInput):
            await rows.write("loose:A", 7, [write])
    assert database.fetch("SELECT id, n FROM loose") == [("a", 1)]
    await rows.close()


UNFIT = [("ids INTEGER[]", "postgresql"), ("span INTERVAL", "postgresql"), ("flags SET('a', 'b')", "mariadb")]


@pytest.mark.parametrize(("column", "kind"), UNFIT)
async def test_a_column_without_a_json_form_is_refused_by_name(
    request: pytest.FixtureRequest, tmp_path: Path, column: str, kind: str
) -> None:
    database = make_database(kind, request, tmp_path)
    database.execute(f"CREATE TABLE odd (id INTEGER PRIMARY KEY, {column})")
    rows = RowsResource("odd", database.url, table="odd", key=["id"])
    with pytest.raises(UnsafeConfiguration, match=column.split()[0]):
        await rows.open()
    await rows.close()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
@pytest.mark.parametrize("column", ["BOOLEAN", "DOUBLE PRECISION"])
async def test_a_key_that_no_path_can_name_is_refused_at_the_start(
    request: pytest.FixtureRequest, tmp_path: Path, column: str, kind: str
) -> None:
    database = make_database(kind, request, tmp_path)
    database.execute(f"CREATE TABLE odd (tenant VARCHAR(9), flag {column}, n INTEGER, PRIMARY KEY (tenant, flag))")
    rows = RowsResource("odd", database.url, table="odd", key=["tenant", "flag"])
    with pytest.raises(UnsafeConfiguration, match="'flag'"):
        await rows.open()
    await rows.close()


async def test_a_table_may_be_named_with_its_schema(database: Database) -> None:
    other: Any = database.schema if database.kind == "postgresql" else database.name  # type: ignore[attr-defined]
    database.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text VARCHAR(20))")
    rows = RowsResource("notes", database.url, table=f"{other}.notes", key=["id"])
    await rows.open()
    await rows.write("notes:1", 7, [RowWrite("put", ("1",), {"text": "x"})])
    await rows.write("notes:1", 7, [RowWrite("patch", ("1",), {"text": "y"})])
    assert database.fetch("SELECT * FROM notes") == [(1, "y")]
    with pytest.raises(NotFound):
        await rows.delete(("2",), "notes:2", 7)
    await rows.close()


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
async def test_a_url_may_call_a_server_by_the_other_of_its_two_names(database: Database) -> None:
    rows = RowsResource("rows", database.url.replace("mysql:", "mariadb:", 1))
    await rows.open()
    await rows.write("rows:a", 7, [RowWrite("put", ("a",), {"n": 1})])
    assert await rows.mark("rows:a") == 7
    await rows.close()


async def test_a_second_spelling_in_a_group_undoes_it_and_is_told_alone(database: Database) -> None:
    if database.kind == "postgresql":
        database.execute("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    collation = "loose" if database.kind == "postgresql" else "utf8mb4_general_ci"
    database.execute(f"CREATE TABLE loose (id VARCHAR(20) COLLATE {collation} PRIMARY KEY, n INTEGER)")
    database.execute("INSERT INTO loose VALUES ('a', 0), ('b', 0)")
    rows = RowsResource("loose", database.url, table="loose", key=["id"])
    await rows.open()
    writes = [
        rows.write(f"loose:{key}", 7, [RowWrite("patch", (key,), {"n": n})])
        for n, key in enumerate(("A", "B", "b", "B"), start=1)
    ]
    found = await asyncio.gather(*writes, return_exceptions=True)
    assert [isinstance(one, InvalidInput) for one in found] == [True, True, False, True]
    assert sorted(database.fetch("SELECT id, n FROM loose")) == [("a", 0), ("b", 3)]
    await rows.close()


def test_a_floating_point_number_is_no_decimal_where_sqlalchemy_has_it_among_them() -> None:
    class FloatOfSqlalchemy20(types.Float[Any], types.Numeric[Any]):
        pass

    codec = codec_of(FloatOfSqlalchemy20())
    assert codec is not None
    assert codec.encode(0.5) == 0.5
    assert not is_decimal(FloatOfSqlalchemy20())
    assert is_decimal(types.Numeric(10, 2))
