"""The async face of whatever is held: `async with` it, or acquire and release it; and the event of its loss."""

import asyncio
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar

from fencegate.client.connection import Connection
from fencegate.client.holding import Holding
from fencegate.client.life import LeaseState, Life
from fencegate.client.telling import LoopTeller, Reactions, follow, soon, wanted

K = TypeVar("K", bound=Life)


class AsyncReactions(Reactions[K], Generic[K], total=False):
    """Callbacks are called in the event loop that acquired."""

    cancel_on_lost: bool
    """Cancel the body of the `async with` when the lock is lost; the block then raises LockLost."""


class LostEvent:
    """Like an `asyncio.Event` that belongs to no event loop; it is set from the renewal thread."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def is_set(self) -> bool:
        return self._life.state is LeaseState.LOST

    async def wait(self) -> Literal[True]:
        """Return when it is lost. After a release that never happens."""
        if self.is_set():
            return True
        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake() -> None:
            soon(loop, lambda: None if woken.done() else woken.set_result(None))

        self._life._when_lost(wake)
        try:
            await woken
        finally:
            self._life._forget(wake)
        return True


class Handle(Generic[K]):
    """A handle: `async with` it, or `await` it (the same as `acquire`) and `release` it.

    Leaving the block always releases. It raises LockLost when the lock was lost meanwhile, unless the body raised
    something itself; that gets a note instead.
    """

    def __init__(self, connection: Connection, holding: Holding[Any, K], reactions: AsyncReactions[K]) -> None:
        self._connection = connection
        self._holding = holding
        self._reactions = reactions
        self._is_silent = connection.on_state is None and not wanted(reactions)
        self._body: _Body | None = None

    def acquire(self) -> Coroutine[Any, Any, K]:
        """Get it, and have it renewed until `release`. LockHeld when it can't be had."""
        return self._holding.acquire() if self._is_silent else self._acquire_and_follow()

    async def _acquire_and_follow(self) -> K:
        """Have whoever wants to know told of what is got."""
        held = await self._holding.acquire()
        teller = LoopTeller(asyncio.get_running_loop())
        follow(held, self._reactions, teller)
        for lease in held._leases():
            follow(lease, {"on_state": self._connection.on_state}, teller)
        return held

    def release(self) -> Coroutine[Any, Any, None]:
        """Give it back. Raises LockLost when it was lost before that; does nothing when it was released."""
        return self._holding.release()

    def __await__(self) -> Generator[Any, None, K]:
        return self.acquire().__await__()

    async def __aenter__(self) -> K:
        held = await self.acquire()
        if self._reactions.get("cancel_on_lost"):
            self._body = _Body(held)
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        if body is not None and body.was_cancelled_by_us(error):
            error = None
        await self._holding.finish(error)


class _Body:
    """The task inside an `async with` block, cancelled when the lock is lost; the way `asyncio.timeout` does it."""

    def __init__(self, life: Life) -> None:
        task = asyncio.current_task()
        assert task is not None, "async with runs in a task"
        loop = asyncio.get_running_loop()
        self._task = task
        self._cancelling = task.cancelling()
        self._over = False
        self._cancelled = False
        life._when_lost(lambda: soon(loop, self._cancel))

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
