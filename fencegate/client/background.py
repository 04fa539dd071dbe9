"""The one thread of a client process: it renews leases, finishes what was left undone, and works for the sync face.

It is a thread of its own so that a busy event loop can't starve renewal. It starts at first use. A fork leaves it
behind, so the child starts another.
"""

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# What is owed at exit (releases, acquires to undo) is worth this much of the user's patience; then the TTL settles it.
_EXIT_PATIENCE_S = 2.0


class Background:
    """A daemon thread with an event loop."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owed: set[concurrent.futures.Future[None]] = set()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's event loop; it starts here."""
        with self._mutex:
            if self._loop is None:
                # Not the policy's loop: this thread must not depend on what the application chose for its own.
                self._loop = asyncio.SelectorEventLoop()
                threading.Thread(target=self._loop.run_forever, name="fencegate", daemon=True).start()
            return self._loop

    def spawn(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the thread do this, and wait for it. Whatever interrupts the wait cancels the work."""
        future = self.spawn(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def owe(self, work: Coroutine[Any, Any, None]) -> "concurrent.futures.Future[None]":
        """Have the thread do this in its own time. A process that exits waits a moment for it."""
        future = self.spawn(work)
        self._owed.add(future)
        future.add_done_callback(self._owed.discard)
        return future

    def settle(self, patience_s: float = _EXIT_PATIENCE_S) -> None:
        """Wait for what is owed."""
        concurrent.futures.wait(list(self._owed), patience_s)


_current = Background()
_left_behind: list[Background] = []


def background() -> Background:
    """The thread of this process."""
    return _current


def _after_fork_in_child() -> None:
    # The parent's loop is kept, not dropped: closing it here would reach into the epoll that both processes share.
    global _current
    _left_behind.append(_current)
    _current = Background()


atexit.register(lambda: _current.settle())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
