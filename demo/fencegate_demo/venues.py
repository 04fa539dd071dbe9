"""Where a run can happen: in which lock store, and over which resource."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fencegate.core.errors import InvalidInput
from fencegate.gateway.resources import ResourceSettings
from fencegate_lockservice.routes import is_routes, without_secrets

Mode = Literal["enforce", "shadow"]


@dataclass(frozen=True, slots=True)
class StoreVenue:
    """A lock store."""

    name: str
    """As people call it, without secrets."""
    url: str
    mine: bool = False
    """Whether it is the user's own, so that nothing may be left in it."""

    @classmethod
    def of(cls, url: str) -> "StoreVenue":
        if is_routes(url):
            raise InvalidInput(
                "store", "must be the URL of one store, such as redis://HOST:PORT/DB; the demo needs no more"
            )
        return cls(without_secrets(url), url, mine=True)

    @property
    def slug(self) -> str:
        """For names of resources."""
        return self.name.partition(":")[0]

    @classmethod
    def embedded(cls, folder: Path) -> "StoreVenue":
        return cls("sqlite", f"sqlite:///{folder / 'locks.db'}")


@dataclass(frozen=True, slots=True)
class ResourceVenue:
    """A protected resource: its settings, from which each arm gets its own corner of it."""

    name: str
    table: Mapping[str, Any] = field(default_factory=dict)
    mine: bool = False
    database: Path | None = None
    """Where the demo's own service keeps its values."""

    @classmethod
    def of(cls, url: str) -> "ResourceVenue":
        if "://" not in url:
            raise InvalidInput("resource", f"{url!r} is neither one that the demo can start (see --help), nor a URL")
        if url.startswith(("http:", "https:")):
            raise InvalidInput(
                "resource", "the demo can't clean up in a service of yours; 'service' runs one of its own"
            )
        return cls(without_secrets(url), {"url": url}, mine=True)

    @property
    def slug(self) -> str:
        """For names of resources: rows, s3, redis-hashes."""
        return urlsplit(self.name).scheme if "://" in self.name else self.name

    def settings(self, name: str, mode: Mode, folder: Path) -> ResourceSettings:
        """A resource `name` of its own in this one."""
        return ResourceSettings.of(name, {**self.table, **self._corner(name, mode, folder), "mode": mode})

    def _corner(self, name: str, mode: Mode, folder: Path) -> dict[str, Any]:
        parts = urlsplit(self.table["url"])
        scheme = parts.scheme.partition("+")[0]
        if scheme in ("file", "s3", "az", "azure", "gs"):  # a folder or a prefix is one resource
            return {"url": urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))}
        if scheme in ("redis", "rediss"):
            options = dict(parse_qsl(parts.query))
            options["prefix"] = f"{options.get('prefix', '')}{name}:"
            return {"url": urlunsplit(parts._replace(query=urlencode(options)))}
        if scheme in ("http", "https"):
            return {
                "url": f"{self.table['url']}/{'checked' if mode == 'enforce' else 'unchecked'}/{name}",
                "upstream_checks": True,
                "fence": f"sqlite:///{folder / name}.fence.db",
                "drain_timeout": "60s",
            }
        return {}  # documents in a database are apart by the resource's name


def embedded(folder: Path) -> dict[str, ResourceVenue]:
    """What needs no server."""
    return {
        "rows": ResourceVenue("rows", {"url": f"sqlite:///{folder / 'rows.db'}"}),
        "objects": ResourceVenue("objects", {"url": f"file://{folder / 'objects'}"}),
    }
