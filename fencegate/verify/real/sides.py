"""The two ends of a cell, the lock store and the resource: where they are, and what can be done to them."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fencegate.core.errors import StoreUnavailable
from fencegate.testing.fault_proxy import FaultProxy
from fencegate_demo.startable import moved_clock
from fencegate_demo.startable.here import DURABLE, KINDS, Kind, startable
from fencegate_demo.startable.moved_clock import MovedClock
from fencegate_demo.startable.redis import RedisServer
from fencegate_demo.startable.service import ServiceServer
from fencegate_demo.venues import ResourceVenue, StoreVenue, embedded

COMMITS = {
    "redis": b"EVALSHA",
    "redlock": b"EVALSHA",
    "postgresql": b"COMMIT",
    "mysql": b"COMMIT",
    "mariadb": b"COMMIT",
    "etcd": b"/v3/kv/txn",
    "s3": b"PUT ",
    "az": b"PUT ",
    "azure": b"PUT ",
    "http": b"PUT ",
}
"""What a request that changes something has in it; the answer to one is cut off."""
WITH_CLOCK = ("redis", "postgresql", "mysql")
"""Stores whose own clock says when a lease is over."""
ENCRYPTED = ("rediss", "https")


class Missing(StoreUnavailable):
    """A server that is not on this machine: what could be told of it is told elsewhere."""


@dataclass(slots=True)
class Side:
    """One end. `servers` are those that we started: only they are stopped and killed."""

    addresses: list[str] = field(default_factory=list)
    servers: list[Any] = field(default_factory=list)
    commits: bytes = b""
    clock: MovedClock | None = None
    standby: "Standby | None" = None
    embedded: bool = False
    busy: bool = False
    killable: bool = True

    async def kill(self, server: Any) -> None:
        await asyncio.to_thread(server.kill)

    async def start(self, server: Any) -> None:
        """With the disk as it was."""
        with _around(self.clock):
            await asyncio.to_thread(server.start)


@dataclass(slots=True)
class StoreSide(Side):
    venue: StoreVenue = field(default_factory=lambda: StoreVenue("sqlite", ""))


@dataclass(slots=True)
class ResourceSide(Side):
    venue: ResourceVenue = field(default_factory=lambda: ResourceVenue("rows"))


class Standby:
    """A second Redis that follows the first by a line of its own, which can be held up: so it misses writes."""

    def __init__(self, primary: RedisServer, folder: Path) -> None:
        self.primary = primary
        self.line = FaultProxy(primary.address)
        self.line.start()
        self.other = RedisServer(folder, *DURABLE)

    def start(self) -> None:
        self.other.start()
        self._follow()

    def _follow(self) -> None:
        host, _, port = self.line.address.rpartition(":")
        self.other.ask("REPLICAOF", host, port)

    def fail_over(self) -> str:
        """Kill the first, promote the second: whatever was written while the line was held is forgotten. The address
        of the new first."""
        self.primary.kill()
        self.other.ask("REPLICAOF", "NO", "ONE")
        self.primary, self.other = self.other, self.primary
        return self.primary.address

    def follow_again(self) -> None:
        """What was the first comes back, and follows: it forgets what only it knew."""
        self.line.pass_()
        self.line.retarget(self.primary.address)
        self.other.start()
        self._follow()

    def terminate(self) -> None:
        self.line.close()
        self.other.terminate()
        self.primary.terminate()


@contextmanager
def _around(clock: MovedClock | None) -> Iterator[None]:
    """Servers that are started meanwhile have this clock."""
    before = {name: os.environ.get(name) for name in (clock.environment if clock is not None else {})}
    if clock is not None:
        os.environ |= clock.environment
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@asynccontextmanager
async def store_side(wanted: str, folder: Path) -> AsyncIterator[StoreSide]:
    """`sqlite`, the name of one that can be started, or a URL of the user's."""
    if wanted == "sqlite":
        yield StoreSide(embedded=True, venue=StoreVenue.embedded(folder))
        return
    kind = next((kind for kind in KINDS if wanted in kind.stores), None)
    if kind is None:
        venue = StoreVenue.of(wanted)
        scheme = urlsplit(wanted).scheme.partition("+")[0]
        yield StoreSide(_addresses(wanted), commits=COMMITS.get(scheme, b""), venue=venue)
        return
    side = StoreSide(commits=COMMITS.get(wanted, b""))
    if wanted in WITH_CLOCK and moved_clock.missing() is None:
        place = folder / "clock"
        place.mkdir(mode=0o755)
        side.clock = MovedClock(place)
        for open_to_all in (folder, *folder.parents[:2]):
            open_to_all.chmod(0o755)  # PostgreSQL runs as another user, who reads what is in it
    async with _running(kind, folder / "server", side) as (stores, _):
        # Each replica reaches the nodes by addresses of its own: to redlock they must be the same by name.
        names = f"?names={','.join(f'n{n}' for n in range(len(side.addresses)))}" if wanted == "redlock" else ""
        side.venue = StoreVenue(wanted, f"{stores[wanted]}{names}")
        if wanted == "redis":
            (primary,) = side.servers
            side.standby = Standby(primary, folder / "standby")
            await asyncio.to_thread(side.standby.start)
        try:
            yield side
        finally:
            if side.standby is not None:
                await asyncio.to_thread(side.standby.terminate)


@asynccontextmanager
async def resource_side(wanted: str, folder: Path) -> AsyncIterator[ResourceSide]:
    """`rows`, `objects`, the name of one that can be started, or a URL of the user's."""
    own = embedded(folder)
    if wanted in own:
        yield ResourceSide(embedded=True, venue=own[wanted])
        return
    if wanted == "service":
        async with _service(folder / "server") as side:
            yield side
        return
    kind = next((kind for kind in KINDS if wanted in kind.resources), None)
    if kind is None:
        venue = ResourceVenue.of(wanted)
        scheme = urlsplit(wanted).scheme.partition("+")[0]
        is_file = scheme in ("sqlite", "file")
        yield ResourceSide(_addresses(wanted), commits=COMMITS.get(scheme, b""), venue=venue, embedded=is_file)
        return
    side = ResourceSide(commits=COMMITS.get(wanted.partition("-")[0], b""))
    async with _running(kind, folder / "server", side) as (_, resources):
        side.venue = ResourceVenue(wanted, resources[wanted])
        yield side


@asynccontextmanager
async def _running(
    kind: Kind, folder: Path, side: Side
) -> AsyncIterator[tuple[Mapping[str, str], Mapping[str, Mapping[str, Any]]]]:
    """Start what can be started; StoreUnavailable says why it can't."""
    module, why = startable(kind)
    if why is not None:
        raise Missing(why)
    server = kind.make(module, folder)
    try:
        try:
            with _around(side.clock):
                await asyncio.to_thread(server.start)
            told = await asyncio.to_thread(kind.tell, server)
        except Exception as error:
            words = " ".join(str(error).split())[-200:] or type(error).__name__
            raise StoreUnavailable(f"{kind.module} did not start: {words}") from None
        side.servers = list(getattr(server, "members", [server]))
        side.killable = kind.killable
        side.addresses = [getattr(each, "address", None) or f"127.0.0.1:{each.port}" for each in side.servers]
        yield told
    finally:
        await asyncio.to_thread(server.terminate)


@asynccontextmanager
async def _service(folder: Path) -> AsyncIterator[ResourceSide]:
    server = ServiceServer(folder)
    try:
        await asyncio.to_thread(server.start)
        venue = ResourceVenue("service", {"url": f"http://{server.address}"}, database=server.database)
        yield ResourceSide([server.address], [server], COMMITS["http"], venue=venue)
    finally:
        await asyncio.to_thread(server.terminate)


def _addresses(url: str) -> list[str]:
    """What of a user's URL can go through a proxy: not what is encrypted, for the name would not fit."""
    parts = urlsplit(url)
    if parts.scheme in ENCRYPTED or "tls" in parts.query or "ssl" in parts.query:
        return []
    endpoint = parse_qs(parts.query).get("endpoint", [""])[0]
    if endpoint:
        return [urlsplit(endpoint).netloc] if endpoint.startswith("http:") else []
    if parts.scheme in ("s3", "az", "azure", "gs", "file", "sqlite", "memory"):
        return []
    return [host for host in parts.netloc.rpartition("@")[2].split(",") if ":" in host]
