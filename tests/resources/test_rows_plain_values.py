"""What a plain patch in PostgreSQL says of values and names, which it spells into its statement by itself."""

from pathlib import Path

import pytest

from fencegate.core.errors import InvalidInput
from fencegate.core.ports import Row, RowWrite
from fencegate_adapters.sql import RowsResource
from tests.resources.databases import Database, make_database
from tests.resources.test_rows_plain import Watched


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database("postgresql", request, tmp_path)


TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE things (
    id UUID PRIMARY KEY, words TEXT, short VARCHAR(20), padded CHAR(4), amount NUMERIC(12, 2), free NUMERIC, big BIGINT,
    small SMALLINT, active BOOLEAN, opened TIMESTAMPTZ, seen TIMESTAMP(3), born DATE, at TIME, photo BYTEA, extra JSONB,
    more JSON, ratio DOUBLE PRECISION, mark UUID, mood mood
);
INSERT INTO things (id) VALUES ('123e4567-e89b-12d3-a456-426614174000')
"""
THING = ("123e4567-e89b-12d3-a456-426614174000",)
TEXTS = ("", "plain", 'a "quoted" one', "back\\slash", "{1,NULL}", "NULL", "it's", "é🔒\n\t\x01", "\\x41", "%s :x {0}")
VALUES: list[Row] = [{"words": text, "short": text} for text in TEXTS] + [
    {
        "padded": "ab", "amount": "-12.50", "free": "0.000001", "big": "-9223372036854775808", "small": 7,
        "active": False, "opened": "2030-01-31T11:00:00.250000Z", "seen": "2030-01-31T11:00:00.250000Z",
        "born": "2000-02-29", "at": "23:59:59.5", "photo": "AAEC/w==", "extra": ["a", 1, None, '"\\'], "more": "text",
        "ratio": 1e-7, "mark": "00000000-e89b-12d3-a456-426614174000", "mood": "glad",
    },
    dict.fromkeys(("words", "amount", "active", "opened", "photo", "extra", "more", "mark", "mood")),
]  # fmt: skip


async def test_values_arrive_by_both_ways_as_the_same(database: Database) -> None:
    database.execute(*TYPES.split(";"))
    rows = RowsResource("a", database.url, table="things", key=["id"], guard_template="job:x")
    await rows.open()
    for token, value in enumerate(VALUES, 1):
        told: list[tuple[Row | None, str | None]] = []
        for way in ("raises the mark", "plain"):
            watched = Watched(rows)
            (row,), seen = await rows.write("job:x", token, [RowWrite("patch", THING, value)])
            assert watched.plain == (way == "plain")
            told.append((row, seen.etag))
        assert told[0] == told[1]
        row, seen = await rows.read(THING, "job:x")
        assert (row, seen.etag) == told[0]
    with pytest.raises(InvalidInput, match="NUL"):
        await rows.write("job:x", len(VALUES), [RowWrite("patch", THING, {"words": "a\0b"})])
    await rows.close()


@pytest.mark.parametrize("table", ["free", "v", "t", 'we"ird: %s {x}'])
async def test_names_are_only_names(database: Database, table: str) -> None:
    quoted = table.replace('"', '""')
    columns = ["token", "fence", "v0", "lock_key", 'b"a: %(d)s {0}']
    listed = ", ".join('"{}" INTEGER'.format(column.replace('"', '""')) for column in columns)
    database.execute(f'CREATE TABLE "{quoted}" (id INTEGER PRIMARY KEY, {listed})')
    database.execute(f'INSERT INTO "{quoted}" VALUES (1)')
    rows = RowsResource("it's", database.url, table=table, key=["id"], guard_template="j'o\"b\\:{id}")
    await rows.open()
    for number in (1, 2):
        value = dict.fromkeys(columns, number)
        watched = Watched(rows)
        (row,), _ = await rows.write("j'o\"b\\:1", 7, [RowWrite("patch", ("1",), value)])
        assert row == {"id": 1, **value}
        assert watched.plain == (number == 2)
    await rows.close()
