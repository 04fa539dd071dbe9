"""Rows run the resource suite on the servers; `test_rows.py` has SQLite, and other files the tables of MariaDB."""

from pathlib import Path
from typing import cast

import pytest

from fencegate.core.ports import Key, Resource, Rows, RowWrite, Seen
from fencegate.testing.resource_suite import PER_KEY, Mode, ResourceSuite, Subject
from fencegate_adapters.sql import RowsResource
from tests.resources.databases import KINDS, Database, make_database

NOTES = "CREATE TABLE notes (id VARCHAR(255) PRIMARY KEY, text VARCHAR(255) NOT NULL)"


class RowsSubject:
    """A text is one member of a row."""

    def __init__(self, database: Database, table: str | None) -> None:
        self._database = database
        self._table = table
        if table is not None:
            database.execute(NOTES)

    def new(self, mode: Mode = "enforce", guard: str = PER_KEY) -> Rows:
        key = ("key",) if self._table is None else ("id",)
        return RowsResource("s", self._database.url, table=self._table, key=key, guard_template=guard, mode=mode)

    async def write(self, resource: Resource, key: Key, fence: str, text: str, token: int) -> Seen:
        _, seen = await cast(Rows, resource).write(fence, token, [RowWrite("put", key, {"text": text})])
        return seen

    async def read(self, resource: Resource, key: Key, fence: str, token: int | None = None) -> str | None:
        row, _ = await cast(Rows, resource).read(key, fence, token)
        return None if row is None else cast(str, row["text"])


@pytest.fixture(params=[kind for kind in KINDS if kind != "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database(request.param, request, tmp_path)


class TestDocuments(ResourceSuite):
    @pytest.fixture
    def subject(self, database: Database) -> Subject:
        return RowsSubject(database, None)


class TestTable(ResourceSuite):
    @pytest.fixture
    def subject(self, request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
        return RowsSubject(make_database("postgresql", request, tmp_path), "notes")
