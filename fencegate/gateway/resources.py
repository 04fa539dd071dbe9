"""The settings of protected resources of every kind, and the adapters that they ask for."""

from fencegate.core.ports import Objects, Resource, Rows
from fencegate.gateway.kinds.common import SUPPORTED, BadSetting, ResourceSettings
from fencegate.gateway.kinds.objects import (
    MAX_OBJECT_BYTES,
    BucketSettings,
    FolderSettings,
    ObjectsSettings,
    StringSettings,
)
from fencegate.gateway.kinds.rows import MAX_ROW_BYTES, HashSettings, RowsSettings, SqlSettings
from fencegate.gateway.kinds.upstream import RouteSettings, UpstreamSettings

__all__ = [
    "MAX_OBJECT_BYTES",
    "MAX_ROW_BYTES",
    "SUPPORTED",
    "BadSetting",
    "BucketSettings",
    "FolderSettings",
    "HashSettings",
    "ObjectsSettings",
    "ResourceSettings",
    "RouteSettings",
    "RowsSettings",
    "SqlSettings",
    "StringSettings",
    "UpstreamSettings",
    "build",
    "build_objects",
    "build_rows",
]


def build(settings: ResourceSettings) -> Resource:
    """The adapter for these settings, not yet opened."""
    resource: Resource = settings.build()
    return resource


def build_rows(settings: ResourceSettings) -> Rows:
    assert isinstance(settings, RowsSettings), f"{settings.name} is not a resource of rows"
    return settings.build()


def build_objects(settings: ResourceSettings) -> Objects:
    assert isinstance(settings, ObjectsSettings), f"{settings.name} is not a resource of objects"
    return settings.build()
