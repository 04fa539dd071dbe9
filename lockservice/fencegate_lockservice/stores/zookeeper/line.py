"""The way to a ZooKeeper ensemble: a connection to one of its servers, and another when that is gone, for ever."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

from fencegate.clock import Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Unavailable
from fencegate_lockservice.stores.zookeeper import wire
from fencegate_lockservice.stores.zookeeper.connection import Connection, Lost, connect
from fencegate_lockservice.stores.zookeeper.wire import Refused

DEFAULT_PORT = 2181
DEFAULT_ROOT = "/fencegate"
CONNECT_WITHIN_S = 4.0
OPEN_WITHIN_S = 10.0
AGAIN_AFTER_S = 0.05
AGAIN_AT_MOST_S = 1.0

log = logging.getLogger("fencegate.store.zookeeper")

_SERVER = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]]+)(?::(?P<port>[0-9]{1,5}))?")
_FORM = "zookeeper://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],…[/ROOT]"


@dataclass(frozen=True, slots=True)
class Address:
    """What the URL of a ZooKeeper store says."""

    servers: tuple[tuple[str, int], ...]
    root: str = DEFAULT_ROOT
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def acl_is_open(self) -> bool:
        return not self.user

    @property
    def acl(self) -> bytes:
        return wire.OPEN if self.acl_is_open else wire.CREATOR


def read_url(url: str) -> Address:
    """UnsafeConfiguration when it is none; the text never shows the password."""
    who, at, rest = url.partition("://")[2].rpartition("@")
    hosts, _, path = rest.partition("/")
    user, _, password = who.partition(":")
    segments = path.strip("/").split("/") if path.strip("/") else []
    if any(segment in ("", ".", "..", "zookeeper") or not segment.isprintable() for segment in segments):
        raise UnsafeConfiguration(f"the root of a ZooKeeper store is a plain path, as in {_FORM}")
    if "?" in rest or "#" in rest or (at and not user):
        raise UnsafeConfiguration(f"a ZooKeeper store is {_FORM}")
    servers = tuple(_server(host) for host in hosts.split(","))
    root = "/" + "/".join(segments) if segments else DEFAULT_ROOT
    return Address(servers, root, unquote(user), unquote(password))


def _server(text: str) -> tuple[str, int]:
    found = _SERVER.fullmatch(text)
    port = int(found["port"] or DEFAULT_PORT) if found is not None else 0
    if found is None or not 0 < port < 65536:
        raise UnsafeConfiguration(f"a ZooKeeper store needs servers as in {_FORM}")
    return found["host"].strip("[]"), port


class Line:
    """See the head of this file. `prepare` makes what is missing on the server, at each new connection, before it is
    used for anything else; `on_lost` is called when one breaks."""

    def __init__(
        self,
        address: Address,
        clock: Clock,
        prepare: Callable[[Connection], Awaitable[None]],
        on_event: Callable[[int, str], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._address = address
        self._clock = clock
        self._prepare = prepare
        self._on_event = on_event
        self._on_lost = on_lost
        self._connection: Connection | None = None
        self._why = "ZooKeeper was not reached yet"
        self._down = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def connection(self) -> Connection:
        """The one that works now. Unavailable when there is none."""
        if self._connection is None:
            raise Unavailable("the store is closed" if self._closed else f"ZooKeeper can't be reached: {self._why}")
        return self._connection

    async def open(self) -> None:
        """Unavailable when no server can be reached in time."""
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                await self._reach()
        except TimeoutError:
            raise Unavailable(f"none of {self._names()} can be used as a ZooKeeper server: {self._why}") from None
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        self._closed = True
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _names(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self._address.servers)

    async def _keep(self) -> None:
        while True:
            await self._down.wait()
            log.warning("not connected to ZooKeeper: %s", self._why)
            try:
                await self._reach()
            except UnsafeConfiguration as error:  # someone put something else there while we were away
                log.error("%s", error)
                self._why = str(error)
                await asyncio.sleep(AGAIN_AT_MOST_S)
            else:
                log.info("connected to ZooKeeper again")

    async def _reach(self) -> None:
        """Try the servers one after the other, from a random one on, until one can be used."""
        servers = self._address.servers
        first = int(self._clock.jitter() * len(servers))
        pause_s = AGAIN_AFTER_S
        while True:
            for number in range(len(servers)):
                if await self._try(servers[(first + number) % len(servers)]):
                    return
            await asyncio.sleep(pause_s * (0.5 + self._clock.jitter()))
            pause_s = min(AGAIN_AT_MOST_S, pause_s * 2)

    async def _try(self, server: tuple[str, int]) -> bool:
        address = self._address
        connection: Connection | None = None
        try:
            connection = await connect(server, self._make, address.user, address.password, CONNECT_WITHIN_S)
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await self._prepare(connection)
        except (OSError, Lost, Refused, TimeoutError) as error:
            self._why = f"{server[0]}:{server[1]}: {str(error) or 'no answer in time'}"
            if connection is not None:
                connection.abort(self._why)
            return False
        except BaseException:
            if connection is not None:
                connection.abort("it can't be used")
            raise
        if connection.lost:
            return False
        self._down.clear()
        self._connection = connection
        return True

    def _make(self) -> Connection:
        return Connection(self._clock, self._on_event, self._lost)

    def _lost(self, why: str) -> None:
        """One of ours broke; it may be one that was never used."""
        connection = self._connection
        if connection is not None and connection.lost:
            self._connection = None
            self._why = why
            self._down.set()
            self._on_lost()
