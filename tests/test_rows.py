"""Rows in SQLite: the resource suite over both shapes."""

import sqlite3
from pathlib import Path
from typing import cast

import pytest
from fencegate_adapters.sql import RowsResource

from fencegate.core.ports import Key, Resource, RowWrite, Seen
from fencegate.testing.resource_suite import PER_KEY, Mode, ResourceSuite, Subject


class RowsSubject:
    """Rows as the suite sees them: a text is one member of a row."""

    def __init__(self, folder: Path, table: str | None) -> None:
        self.path = folder / "data.db"
        self._table = table
        if table is not None:
            with sqlite3.connect(self.path) as database:
                database.execute("CREATE TABLE notes (id TEXT PRIMARY KEY, text TEXT NOT NULL)")
            database.close()

    def new(self, mode: Mode = "enforce", guard: str = PER_KEY) -> RowsResource:
        url = f"sqlite:///{self.path}"
        key = ("key",) if self._table is None else ("id",)
        return RowsResource("s", url, table=self._table, key=key, guard_template=guard, mode=mode)

    async def write(self, resource: Resource, key: Key, fence: str, text: str, token: int) -> Seen:
        _, seen = await cast(RowsResource, resource).write(fence, token, [RowWrite("put", key, {"text": text})])
        return seen

    async def read(self, resource: Resource, key: Key, fence: str, token: int | None = None) -> str | None:
        row, _ = await cast(RowsResource, resource).read(key, fence, token)
        return None if row is None else cast(str, row["text"])


class TestDocuments(ResourceSuite):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return RowsSubject(tmp_path, None)


class TestTable(ResourceSuite):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return RowsSubject(tmp_path, "notes")
