"""Where the outcome of a command is awaited, by one who may be made to go on in the very moment that it is there.

A future has its waiter go on in the next turn of the event loop. That is a system call, and a good part of what one
lock call after the other costs. Here it is the same, unless whoever brings the outcome holds it back until all else is
done, and then has the waiter go on as the last thing of all.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Callback = Callable[["Answer[Any]"], object]

_WAITING = object()
_CANCELLED = object()


class Answer(Generic[T]):
    """As much of an `asyncio.Future` as a task needs that awaits it. Has one waiter."""

    __slots__ = ("_asyncio_future_blocking", "_callback", "_context", "_error", "_held_back", "_loop", "_value")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self._value: Any = _WAITING
        self._error: BaseException | None = None
        self._callback: Callback | None = None
        self._held_back = False

    # --- for whoever brings it ---

    def done(self) -> bool:
        return self._value is not _WAITING

    def set_result(self, value: T) -> None:
        self._value = value
        self._wake()

    def set_exception(self, error: BaseException) -> None:
        self._value, self._error = None, error
        self._wake()

    def hold_back(self) -> None:
        """Have whoever waits go on at `go_on`, and not before."""
        self._held_back = True

    def go_on(self) -> None:
        """Whoever waits goes on before this returns, if there is an outcome. (While a task runs, another can't.)"""
        self._held_back = False
        callback = self._callback
        if callback is None or self._value is _WAITING:
            return
        if asyncio.current_task(self._loop) is None:
            self._callback = None
            self._context.run(callback, self)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._callback is not None and not self._held_back:
            callback, self._callback = self._callback, None
            self._loop.call_soon(callback, self, context=self._context)

    # --- for whoever waits: what a task asks of a future ---

    def __await__(self) -> "Generator[Answer[T], None, T]":
        if self._value is _WAITING:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        if self._value is _CANCELLED:
            raise asyncio.CancelledError
        value: T = self._value
        return value

    def cancel(self, msg: object = None) -> bool:
        if self._value is not _WAITING:
            return False
        self._value = _CANCELLED
        self._wake()
        return True

    def add_done_callback(self, callback: Callback, *, context: Context) -> None:
        assert self._callback is None, "an answer has one waiter"
        self._callback, self._context = callback, context
        if self._value is not _WAITING:
            self._wake()

    def remove_done_callback(self, callback: Callback) -> int:
        """A task whose waiting was interrupted."""
        if self._callback != callback:
            return 0
        self._callback = None
        return 1

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop
