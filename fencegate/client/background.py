"""The one thread of a client process: it renews leases, finishes what was left undone, and works for the sync face.

It is a thread of its own so that a busy event loop can't starve renewal. It starts at first use. A fork leaves it
behind, so the child starts another.
"""

import _thread
import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from types import BuiltinFunctionType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# What is owed at exit (releases, acquires to undo) is worth this much of the user's patience; then the TTL settles it.
_EXIT_PATIENCE_S = 2.0
_STOP_PATIENCE_S = 1.0

# A signal that comes just before a wait begins, or that another thread takes, wakes nobody: Python looks for it when
# the waiting thread next runs.
_LOOK_FOR_SIGNALS_S = 0.5


class Background:
    """A daemon thread with an event loop."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owed: set[concurrent.futures.Future[None]] = set()
        self._stopped = threading.Event()
        self._is_over = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's event loop; it starts here."""
        with self._mutex:
            if self._loop is None:
                loop = _new_loop()
                threading.Thread(target=self._serve, args=(loop,), name="fencegate", daemon=True).start()
                self._loop = loop  # not before it runs: where no thread can be had, the next caller would wait for good
            return self._loop

    def spawn(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the thread do this, and wait for it. Whatever interrupts the wait cancels the work."""
        loop = self._loop or self.loop
        if self._is_over and threading.current_thread() is threading.main_thread():
            return loop.run_until_complete(work)  # an exit handler that comes after ours
        return _Call(loop, work).wait()

    def owe(self, work: Coroutine[Any, Any, None]) -> "concurrent.futures.Future[None]":
        """Have the thread do this in its own time. A process that exits waits a moment for it."""
        future = self.spawn(work)
        self._owed.add(future)
        future.add_done_callback(self._owed.discard)
        return future

    def settle(self, patience_s: float = _EXIT_PATIENCE_S) -> None:
        """Wait for what is owed."""
        concurrent.futures.wait(list(self._owed), patience_s)

    def end(self) -> None:
        """At exit: wait for what is owed, and stop. A callback of uvloop that came while the interpreter is taken down
        would crash the process."""
        self.settle()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._is_over = self._stopped.wait(_STOP_PATIENCE_S)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        self._stopped.set()
        threading.Event().wait()  # for good: a thread that ended would leave what the loop holds to be torn down


class _Call(Generic[T]):
    """Work that another thread waits for. All that passes between the two is a bare lock: the condition and the chain
    of callbacks that a `concurrent.futures.Future` brings took as long as a quarter of a lock call."""

    __slots__ = ("_done", "_error", "_loop", "_result", "_task", "_work")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def wait(self) -> T:
        """In the caller's thread: what came of it."""
        try:
            self._loop.call_soon_threadsafe(self._begin)
            while not self._done.acquire(True, _LOOK_FOR_SIGNALS_S):
                pass
        except BaseException:
            self._loop.call_soon_threadsafe(self._cancel)
            raise
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # it knows this frame: the two would keep each other, and all that they know

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._do())

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._work.close()  # it was never handed over

    async def _do(self) -> None:
        try:
            self._result = await self._work
        except asyncio.CancelledError:
            self._error = concurrent.futures.CancelledError()  # the caller's thread has no task that it could mean
        except BaseException as error:
            self._error = error
        self._done.release()


def _new_loop() -> asyncio.AbstractEventLoop:
    """Not the policy's: this thread must not depend on what the application chose for its own."""
    try:
        import uvloop
    except ImportError:  # not built for every platform
        return asyncio.SelectorEventLoop()
    # gevent and eventlet put a green one in place of each thread. It must give way to the others of its kind where it
    # waits, which uvloop does not.
    is_green = not isinstance(_thread.start_new_thread, BuiltinFunctionType)
    return asyncio.SelectorEventLoop() if is_green else uvloop.new_event_loop()


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


atexit.register(lambda: _current.end())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
