"""What a client is in this process: its address, its owner, a transport for each event loop, and what it holds."""

import asyncio
import logging
import os
import socket
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from fencegate.client.attempt import repeated, worth_repeating
from fencegate.client.background import background
from fencegate.client.life import LeaseState, Life
from fencegate.client.renewal import keep
from fencegate.client.rota import Rota
from fencegate.client.transport import Transport, open_transport
from fencegate.clock import Clock
from fencegate.core.errors import FencegateError

if TYPE_CHECKING:
    from concurrent.futures import Future

log = logging.getLogger("fencegate.client")

Work = Callable[[Transport], Awaitable[None]]
OnState = Callable[[Any, LeaseState], None]


class Closable(Protocol):
    async def aclose(self) -> None: ...


class Connection:
    """Shared by both faces of a client. Nothing happens before its first use.

    A transport belongs to one event loop, so there is one for each that this client is used in, and one for the
    background thread. After a fork the child begins anew, as another owner: by the parent's name it would be let in
    re-entrantly where the parent holds.
    """

    def __init__(
        self, url: str, owner_id: str | None, timeout_s: float, clock: Clock, on_state: OnState | None = None
    ) -> None:
        self.url = url
        self.timeout_s = timeout_s
        self.clock = clock
        self.on_state = on_state
        """What is told of every lease of this client; it is given the lease of the face that it was set on."""
        self.owner_id = owner_id or _own_name(clock)
        self._given_owner_id = owner_id
        self._transports: dict[asyncio.AbstractEventLoop, _LoopTransport] = {}
        self._is_prepared = False
        self._kept: dict[Life, None] = {}
        self._keepers: dict[Life, asyncio.Task[None]] = {}
        """What is being renewed by now, in the thread; the others wait for their time."""
        self._rota = Rota(clock, self._begin)
        self._owed: set[Future[None]] = set()
        self._left_behind: list[object] = []
        self.watchers: weakref.WeakSet[Closable] = weakref.WeakSet()
        """What ends when this client is closed: a watch would open another connection."""
        _connections.add(self)

    def ready(self) -> Transport | None:
        """The transport of the running event loop, once it is open and so is the thread's: nothing to wait for."""
        if not self._is_prepared:
            return None
        found = self._transports.get(asyncio.get_running_loop())
        return None if found is None else found.transport

    async def transport(self) -> Transport:
        """The transport of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._transports.get(loop)
        if found is None:
            for other in list(self._transports):
                if other.is_closed():
                    self._transports.pop(other, None)
            found = self._transports[loop] = _LoopTransport()
        return await found.get(self.url, self.timeout_s)

    async def open(self, until_us: float = 0) -> Transport:
        """The transport of the running event loop, with the thread's opened before a lock is acquired, not when it is
        to be renewed. A store that can't be reached is tried again until then: a server would be asked again, too.

        An embedded store closes with its last user, and with `memory://` its locks are gone then: so the thread has
        to be one of them before the caller's event loop can end.
        """
        return await repeated(self._open, lambda error: worth_repeating(error) and self.clock.monotonic_us() < until_us)

    async def _open(self) -> Transport:
        found = self._transports.get(background().loop)
        if found is None or found.transport is None:
            await asyncio.wrap_future(background().spawn(self.transport()))
        self._is_prepared = True
        return await self.transport()

    def keep(self, life: Life) -> None:
        """Renew this from now on."""
        self._kept[life] = None
        self._rota.join(life)

    def _begin(self, life: Life) -> None:
        """In the thread: the first renewal is due."""
        keeper = asyncio.get_running_loop().create_task(keep(life, self.transport, self.clock, self.timeout_s))
        self._keepers[life] = keeper
        keeper.add_done_callback(lambda _: self._end(life))
        if life not in self._kept:  # looked at last: another thread may have let go of it just before
            keeper.cancel()

    def _end(self, life: Life) -> None:
        self._keepers.pop(life, None)
        self._kept.pop(life, None)

    def let_go(self, life: Life) -> None:
        """Renew this no more."""
        self._kept.pop(life, None)
        self._rota.leave(life)
        keeper = self._keepers.pop(life, None)
        if keeper is not None:
            keeper.get_loop().call_soon_threadsafe(keeper.cancel)

    def kept(self) -> list[Life]:
        """Leases, groups and sessions that are renewed now; what hangs on one of them is not named by itself."""
        return list(self._kept)

    def owe(self, work: Work) -> None:
        """Have this done in the background, where no cancellation and no closing loop can reach it."""

        async def do() -> None:
            try:
                await work(await self.transport())
            except FencegateError as error:
                log.warning("given up in the background; the TTL will settle it: %s", error.detail)

        future = background().owe(do())
        self._owed.add(future)
        future.add_done_callback(self._owed.discard)

    async def close(self) -> None:
        """Finish what is owed, and close the transports of the running loop and of the thread. Later uses open others.

        It waits for both: an embedded store that is closing still would refuse the next one who opens it.
        """
        for watcher in list(self.watchers):
            await watcher.aclose()
        owed = [asyncio.wrap_future(future) for future in list(self._owed)]
        if owed:
            await asyncio.wait(owed, timeout=self.timeout_s)
        self._is_prepared = False
        await self._close_here()
        if self._transports:
            await asyncio.wrap_future(background().spawn(self._close_here()))

    async def _close_here(self) -> None:
        found = self._transports.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()

    def _after_fork_in_child(self) -> None:
        # Kept, not dropped: their finalizers would act on connections and loops that are the parent's.
        self._left_behind += [self._transports, self._kept, self._keepers, self._rota, self._owed]
        self._transports, self._kept, self._keepers, self._owed = {}, {}, {}, set()
        self._is_prepared = False
        self._rota = Rota(self.clock, self._begin)
        suffix = self.clock.random_id(4)
        self.owner_id = f"{self._given_owner_id}:{suffix}" if self._given_owner_id else _own_name(self.clock)


class _LoopTransport:
    """The transport of one event loop, opened at first use and closed with its loop."""

    def __init__(self) -> None:
        self._opening = asyncio.Lock()
        self._life: AsyncGenerator[Transport, None] | None = None
        self.transport: Transport | None = None
        """None before it is open."""

    async def get(self, url: str, timeout_s: float) -> Transport:
        if self.transport is None:
            async with self._opening:
                if self.transport is None:
                    self._life = _living(url, timeout_s)
                    self.transport = await anext(self._life)
        return self.transport

    async def close(self) -> None:
        async with self._opening:  # it can't be closed in the middle of that
            if self._life is not None:
                await self._life.aclose()


async def _living(url: str, timeout_s: float) -> AsyncGenerator[Transport, None]:
    """A transport for as long as its loop lives: `asyncio.run` closes the generators that are left when it ends."""
    transport = await open_transport(url, timeout_s)
    try:
        yield transport
    finally:
        await transport.close()


def _own_name(clock: Clock) -> str:
    """Unique per process start: a restarted worker must not be let in as the zombie that it replaces."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{clock.random_id(6)}"


_connections: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for connection in list(_connections):
        connection._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
