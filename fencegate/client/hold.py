"""The async face of a hold: `async with locks.hold(key) as lease`."""

import asyncio
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Literal

from fencegate.client.connection import Connection
from fencegate.client.grant import Grant
from fencegate.client.holding import Holding, Request
from fencegate.client.lease import LeaseCore, LeaseState
from fencegate.client.release import give_back
from fencegate.core.errors import LockHeld


class Lease(LeaseCore):
    """A time-bound hold on a lock key, renewed in the background until it is released or lost."""

    def __init__(self, connection: Connection, grant: Grant) -> None:
        super().__init__(grant, connection.clock)
        self._connection = connection
        self.lost = LostEvent(self)
        """Set when the lease is lost: `await lease.lost.wait()`."""

    async def release(self) -> None:
        """Give the lock back. Raises LockLost when it was lost before that; does nothing when it was released."""
        await give_back(self._connection, self)


class LostEvent:
    """Like an `asyncio.Event` that belongs to no event loop; it is set from the renewal thread."""

    def __init__(self, lease: LeaseCore) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        return self._lease.state is LeaseState.LOST

    async def wait(self) -> Literal[True]:
        """Return when the lease is lost. After a release that never happens."""
        if self.is_set():
            return True
        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake() -> None:
            _soon(loop, lambda: None if woken.done() else woken.set_result(None))

        self._lease._when_lost(wake)
        try:
            await woken
        finally:
            self._lease._forget(wake)
        return True


class Hold:
    """A handle on a lock: `async with` it, or `await` it (the same as `acquire`) and `release` it.

    Leaving the block always releases. It raises LockLost when the lock was lost meanwhile, unless the body raised
    something itself; that gets a note instead.
    """

    def __init__(
        self,
        connection: Connection,
        request: Callable[[], Request],
        *,
        cancel_on_lost: bool = False,
        on_lost: Callable[[Lease], None] | None = None,
    ) -> None:
        self._holding = Holding(connection, request, Lease)
        self._cancel_on_lost = cancel_on_lost
        self._on_lost = on_lost
        self._body: _Body | None = None

    async def acquire(self) -> Lease:
        """Get the lock, and have it renewed until `release`. LockHeld when it can't be had."""
        lease = await self._holding.acquire()
        on_lost = self._on_lost
        if on_lost is not None:
            loop = asyncio.get_running_loop()
            lease._when_lost(lambda: _soon(loop, lambda: on_lost(lease)))
        return lease

    async def release(self) -> None:
        """Give the lock back. Raises LockLost when it was lost before that; does nothing when it was released."""
        await self._holding.release()

    def __await__(self) -> Generator[Any, None, Lease]:
        return self.acquire().__await__()

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        if self._cancel_on_lost:
            self._body = _Body(lease)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        if body is not None and body.was_cancelled_by_us(error):
            error = None
        await self._holding.finish(error)


class TryHold:
    """Like Hold, but gives None where that would raise LockHeld."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    async def acquire(self) -> Lease | None:
        try:
            return await self._hold.acquire()
        except LockHeld:
            return None

    async def release(self) -> None:
        await self._hold.release()

    def __await__(self) -> Generator[Any, None, Lease | None]:
        return self.acquire().__await__()

    async def __aenter__(self) -> Lease | None:
        try:
            return await self._hold.__aenter__()
        except LockHeld:
            return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._hold.__aexit__(kind, error, traceback)


class _Body:
    """The task inside an `async with` block, cancelled when the lease is lost; the way `asyncio.timeout` does it."""

    def __init__(self, lease: Lease) -> None:
        task = asyncio.current_task()
        assert task is not None, "async with runs in a task"
        loop = asyncio.get_running_loop()
        self._task = task
        self._cancelling = task.cancelling()
        self._over = False
        self._cancelled = False
        lease._when_lost(lambda: _soon(loop, self._cancel))

    def _cancel(self) -> None:
        if not self._over:
            self._cancelled = True
            self._task.cancel()

    def was_cancelled_by_us(self, error: BaseException | None) -> bool:
        """Whether `error` is our cancellation and nobody else's; takes the request to cancel back."""
        self._over = True
        if not self._cancelled:
            return False
        others = self._task.uncancel() > self._cancelling
        return isinstance(error, asyncio.CancelledError) and not others


def _soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Run this on the loop's own thread; a loop that is closed has nobody left to tell."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return
