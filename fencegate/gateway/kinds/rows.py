"""Rows: tables and JSON documents in a database, and hashes in Redis."""

import os
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from fencegate.core.ports import Rows
from fencegate.gateway.kinds.common import Data, Duration, Kind, ResourceSettings, register

MAX_ROW_BYTES = 1024 * 1024

_SQLITE_FILE = re.compile(r"sqlite:///(?!:memory:|[?]|$)")
_EXTRAS = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}


class RowsSettings(ResourceSettings, frozen=True, kw_only=True):
    """What all kinds of rows have in common."""

    kind: ClassVar[Kind] = "rows"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return ("key",)

    @property
    def documents(self) -> bool:
        """Whether the key is one name, the whole path; else it has a segment for each key column."""
        return True

    @property
    def columns(self) -> tuple[str, ...]:
        return self.key_columns

    @property
    def max_row_bytes(self) -> int:
        return self.max_bytes or MAX_ROW_BYTES

    def build(self) -> Rows:
        raise NotImplementedError


class SqlSettings(RowsSettings, frozen=True, kw_only=True):
    """Rows of a database."""

    table: str | None = None
    """A table that is there already; without one, rows are JSON documents in a table of our own."""
    key: str | tuple[str, ...] = ()
    """The key columns of `table`, in the order of the path."""
    token_column: str | None = None
    """A column of `table` that holds the mark, where lock and row are one to one."""
    lock_timeout: Duration = "5s"
    """How long a write waits for others in the database."""

    def check(self) -> None:
        if self.scheme == "sqlite" and _SQLITE_FILE.match(self.url) is None:
            raise self.wrong("marks must outlive this process, so name a file: sqlite:///path/to/file.db", "url")
        if self.scheme == "sqlite" and "?" in self.url:  # by `file:NAME?uri=true` one file would have two names
            raise self.wrong("the URL of a file has no options: write sqlite:///path/to/file.db", "url")
        if (self.table is None) != (not self.key):
            raise self.wrong(
                "table and key go together: a table needs its key columns, documents have none to name",
                "key" if self.table is None else "table",
            )
        if len(set(self.key_columns)) < len(self.key_columns):
            raise self.wrong("key names a column twice; name each once, in the order of the path", "key")
        if self.token_column is not None and self.table is None:
            raise self.wrong("token_column is a column of a table of yours: name it in table", "token_column")
        _ = self.lock_timeout_s

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else self.key or ("key",)

    @property
    def documents(self) -> bool:
        return self.table is None

    @property
    def data(self) -> Data:
        """By real names: links lead to one file from several, and a table may be named with its schema."""
        server, database = super().data.server, urlsplit(self.url).path[1:]
        if self.scheme == "sqlite":
            database = os.path.realpath(database)
        schema = {"sqlite": "main", "postgresql": "public"}.get(server[0], database)
        what = self.name if self.table is None else f"table {self.table.removeprefix(f'{schema}.')}"
        return Data(server, what, f"{database}/")

    @property
    def extra(self) -> str:
        """What brings its driver."""
        return _EXTRAS.get(self.scheme, "postgres")

    @property
    def lock_timeout_s(self) -> float:
        return self.duration_s("lock_timeout", self.lock_timeout)

    def build(self) -> Rows:
        # Only a resource of this kind should need the packages that its adapter needs.
        with self.needs(self.extra):
            from fencegate_adapters.sql import RowsResource

            more: dict[str, Any] = {} if self.token_column is None else {"token_column": self.token_column}
            return RowsResource(
                self.name,
                self.url,
                table=self.table,
                key=self.key_columns,
                guard_template=self.guard,
                mode=self.mode,
                max_row_bytes=self.max_row_bytes,
                wait_ms=round(self.lock_timeout_s * 1000),
                **more,
            )


class HashSettings(RowsSettings, frozen=True, kw_only=True):
    """Redis hashes: a row is a hash, and its fields are the columns."""

    values: Literal["hashes"] = "hashes"

    def build(self) -> Rows:
        with self.needs("redis"):
            from fencegate_adapters.redis import RedisHashes

            return RedisHashes(
                self.name, self.url, guard_template=self.guard, mode=self.mode, max_row_bytes=self.max_row_bytes
            )


def _sql(_name: str, _table: Mapping[str, Any]) -> type[ResourceSettings]:
    return SqlSettings


register(
    {
        "sqlite": "sqlite:///path/to/file.db",
        "postgresql": "postgresql://user@host/database",
        "mysql": "mysql://user@host/database",
        "mariadb": "mariadb://user@host/database",
    },
    _sql,
)
