"""The settings of a protected resource, and the adapter that they ask for."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

import msgspec

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.names import Guard
from fencegate.core.ports import Objects, Rows

SUPPORTED = "sqlite:///path/to/file.db (rows) and file:///path/to/folder (objects)"

MAX_ROW_BYTES = 1024 * 1024
MAX_OBJECT_BYTES = 64 * 1024 * 1024

_SQLITE_FILE = re.compile(r"sqlite:///(?!:memory:|[?]|$)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ResourceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[resources.NAME]` table of the configuration."""

    name: str
    url: str
    table: str | None = None
    """A table that is there already; without one, rows are JSON documents in a table of our own."""
    key: str | tuple[str, ...] = ()
    """The key columns of `table`, in the order of the path."""
    guard: str = "{resource}:{key}"
    mode: Literal["enforce", "shadow"] = "enforce"
    layout: Literal["framed", "pointer"] | None = None
    issuer: bool = False
    """Whether all tokens come from a Fencegate lock service: then one far beyond now is refused."""
    max_bytes: int | None = None
    """The largest body of a write."""

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise UnsafeConfiguration(f"resource {self.name!r}: a name is 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise self._unsafe("max_bytes must be at least 1")
        if self.kind == "rows" and _SQLITE_FILE.match(self.url) is None:
            raise self._unsafe("marks must outlive this process, so name a file: sqlite:///path/to/file.db")
        if self.kind == "rows" and self.layout is not None:
            raise self._unsafe("layout is for objects; rows have none")
        if self.kind == "rows" and (self.table is None) != (not self.key):
            raise self._unsafe("table and key go together: a table needs its key columns, documents have none to name")
        if self.kind == "objects" and (self.table is not None or self.key):
            raise self._unsafe("table and key are for rows; an object's key is its path")
        if self.layout == "pointer":
            raise self._unsafe("layout 'pointer' is not there for a local folder; use 'framed'")
        _ = self.guard_rule

    @classmethod
    def of(cls, name: str, table: Mapping[str, Any]) -> Self:
        """From a table of the configuration file; UnsafeConfiguration says what is wrong with it."""
        try:
            return msgspec.convert({**table, "name": name}, cls)
        except msgspec.ValidationError as error:
            raise UnsafeConfiguration(f"resource {name!r}: {error}") from None

    @property
    def kind(self) -> Literal["rows", "objects"]:
        scheme = self.url.partition(":")[0]
        if scheme == "sqlite":
            return "rows"
        if scheme == "file":
            return "objects"
        raise self._unsafe(f"the scheme {scheme[:32]!r} is not supported; there are {SUPPORTED}")

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else self.key or ("key",)

    @property
    def guard_rule(self) -> Guard:
        return Guard(self.guard, self.name, self.key_columns if self.kind == "rows" else ())

    @property
    def folder(self) -> Path:
        """The folder that a `file:` URL names."""
        parts = urlsplit(self.url)
        path = Path(unquote(parts.path))
        if parts.netloc or parts.query or parts.fragment or not path.is_absolute() or "\0" in parts.path:
            raise self._unsafe("a folder's URL is file:///path/to/folder")
        return path

    def _unsafe(self, detail: str) -> UnsafeConfiguration:
        return UnsafeConfiguration(f"resource {self.name!r}: {detail}")


def build(settings: ResourceSettings) -> Rows | Objects:
    """The adapter for these settings, not yet opened."""
    return build_rows(settings) if settings.kind == "rows" else build_objects(settings)


def build_rows(settings: ResourceSettings) -> Rows:
    # Only a resource of this kind should need the packages that its adapter needs.
    from fencegate_adapters.sql import RowsResource

    return RowsResource(
        settings.name,
        settings.url,
        table=settings.table,
        key=settings.key_columns,
        guard_template=settings.guard,
        mode=settings.mode,
        max_row_bytes=settings.max_bytes or MAX_ROW_BYTES,
    )


def build_objects(settings: ResourceSettings) -> Objects:
    from fencegate_adapters.objects import FolderObjects

    return FolderObjects(
        settings.name,
        settings.folder,
        guard_template=settings.guard,
        mode=settings.mode,
        max_bytes=settings.max_bytes or MAX_OBJECT_BYTES,
    )
