"""The real client's connection in a simulated process: its background is the process's own event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fencegate.client.connection import Connection, Work
from fencegate.client.life import Life
from fencegate.client.renewal import keep
from fencegate.client.transport import Transport
from fencegate.core.errors import FencegateError
from fencegate.verify.sim.clock import SimClock
from fencegate.verify.sim.world import Process

TIMEOUT_S = 2.0


class SimConnection(Connection):
    """A process is stopped as a whole, threads and all: so what a thread would do is done in its event loop."""

    def __init__(self, process: Process, transport: Any, clock: SimClock) -> None:
        super().__init__("sim://", f"{process.name}-{clock.random_id(3)}", TIMEOUT_S, clock)
        self._wire: Transport = transport
        self._process = process

    def ready(self) -> Transport | None:
        return self._wire

    async def transport(self) -> Transport:
        return self._wire

    def keep(self, life: Life) -> None:
        self._kept[life] = None
        self._keepers[life] = self._process.spawn(keep(life, self._in_thread, self.clock, self.timeout_s))

    def let_go(self, life: Life) -> None:
        self._kept.pop(life, None)
        keeper = self._keepers.pop(life, None)
        if keeper is not None:
            keeper.cancel()

    def owe(self, work: Work) -> None:
        async def do() -> None:
            try:
                await work(await self._in_thread())
            except FencegateError:
                return

        self._process.spawn(do())

    async def _in_thread(self) -> Transport:
        """What the background thread has."""
        return self._wire


class DirectConnection(SimConnection):
    """That of a client that opens the store itself. An engine belongs to one event loop, so there are two, as in a real
    process: one for the caller, and one for the thread that renews."""

    def __init__(self, process: Process, opening: Callable[[], Coroutine[Any, Any, Any]], clock: SimClock) -> None:
        super().__init__(process, None, clock)
        self._here: asyncio.Task[Transport] = process.spawn(opening())
        self._thread: asyncio.Task[Transport] = process.spawn(opening())

    def ready(self) -> Transport | None:
        return self._here.result() if self._here.done() and self._thread.done() else None

    async def transport(self) -> Transport:
        return await asyncio.shield(self._here)

    async def open(self, until_us: float = 0) -> Transport:
        await asyncio.shield(self._thread)
        return await self.transport()

    async def _in_thread(self) -> Transport:
        return await asyncio.shield(self._thread)
