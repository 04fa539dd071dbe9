"""Objects: files in a folder, objects in a bucket, and strings in Redis."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from fencegate.core.ports import Objects
from fencegate.gateway.kinds.common import BadSetting, Data, Kind, ResourceSettings, register
from fencegate.gateway.kinds.rows import HashSettings

MAX_OBJECT_BYTES = 64 * 1024 * 1024
MAX_STRING_BYTES = 16 * 1024 * 1024

_EXTRAS = {"s3": "s3", "az": "azure", "azure": "azure", "gs": "gcs"}


class ObjectsSettings(ResourceSettings, frozen=True, kw_only=True):
    """What all kinds of objects have in common."""

    kind: ClassVar[Kind] = "objects"

    @property
    def max_object_bytes(self) -> int:
        return self.max_bytes or MAX_OBJECT_BYTES

    def build(self) -> Objects:
        raise NotImplementedError


class FolderSettings(ObjectsSettings, frozen=True, kw_only=True):
    """Files in a local folder."""

    layout: Literal["framed"] = "framed"

    def check(self) -> None:
        _ = self.folder

    @property
    def folder(self) -> Path:
        """The folder that the URL names."""
        parts = urlsplit(self.url)
        path = Path(unquote(parts.path))
        if parts.netloc or parts.query or parts.fragment or not path.is_absolute() or "\0" in str(path):
            raise self.wrong("a folder's URL is file:///path/to/folder", "url")
        return path

    @property
    def data(self) -> Data:
        """By its real name: links lead to one folder from several."""
        return Data(("file", ""), "", os.path.join(os.path.realpath(self.folder), ""))

    def build(self) -> Objects:
        from fencegate_adapters.objects import FolderObjects

        return FolderObjects(
            self.name, self.folder, guard_template=self.guard, mode=self.mode, max_bytes=self.max_object_bytes
        )


class BucketSettings(ObjectsSettings, frozen=True, kw_only=True):
    """Objects in a bucket: S3 and compatibles, Azure, Google Cloud Storage."""

    layout: Literal["framed", "pointer"] = "framed"

    def check(self) -> None:
        if not urlsplit(self.url).netloc:
            raise self.wrong(f"its url names no bucket: {self.scheme}://bucket/prefix", "url")

    @property
    def extra(self) -> str:
        """What brings its client."""
        return _EXTRAS[self.scheme]

    def build(self) -> Objects:
        with self.needs(self.extra):
            from fencegate_adapters.objects import BucketObjects

            return BucketObjects(
                self.name,
                self.url,
                layout=self.layout,
                guard_template=self.guard,
                mode=self.mode,
                max_bytes=self.max_object_bytes,
            )


class StringSettings(ObjectsSettings, frozen=True, kw_only=True):
    """Redis strings: an object is a string, its content type and metadata beside it."""

    values: Literal["strings"] = "strings"

    @property
    def max_object_bytes(self) -> int:
        return self.max_bytes or MAX_STRING_BYTES

    def build(self) -> Objects:
        with self.needs("redis"):
            from fencegate_adapters.redis import RedisStrings

            return RedisStrings(
                self.name, self.url, guard_template=self.guard, mode=self.mode, max_bytes=self.max_object_bytes
            )


def _folder(_name: str, _table: Mapping[str, Any]) -> type[ResourceSettings]:
    return FolderSettings


def _bucket(_name: str, _table: Mapping[str, Any]) -> type[ResourceSettings]:
    return BucketSettings


def _redis(name: str, table: Mapping[str, Any]) -> type[ResourceSettings]:
    values = table.get("values", "strings")
    if values not in ("strings", "hashes"):
        raise BadSetting(name, "values: must be 'strings' (served as objects) or 'hashes' (served as rows)", "values")
    return HashSettings if values == "hashes" else StringSettings


register({"file": "file:///path/to/folder"}, _folder)
register(
    {
        "s3": "s3://bucket/prefix",
        "az": "az://container/prefix",
        "azure": "az://container/prefix",
        "gs": "gs://bucket/prefix",
    },
    _bucket,
)
register({"redis": "redis://host:6379/0", "rediss": "redis://host:6379/0"}, _redis)
