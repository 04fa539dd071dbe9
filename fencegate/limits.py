"""A limit for what a call waits for: one timer for all calls of an event loop, not one for each.

`asyncio.timeout` sets a timer and takes it back, which costs as much as half of a write's way through the gateway. Here
a wait stands in a dictionary, and a timer that rings ten times a second, only while there are any, cancels those that
took too long: at most a tenth of a second late.
"""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

RING_EVERY_S = 0.1


class _Wait:
    __slots__ = ("cancelling", "expired", "task", "until_s")

    def __init__(self, task: "asyncio.Task[Any]", until_s: float) -> None:
        self.task = task
        self.until_s = until_s
        self.cancelling = task.cancelling()
        self.expired = False


_Bound = tuple[float | None, float, Callable[[float], Exception]]
"""When it is too late (None: no ring has seen it yet, and it is the first one that it counts from), how long it may
take, and what it ends with then."""


class Awaited(Protocol):
    """A future, or what is awaited in place of one."""

    def done(self) -> bool: ...

    def set_exception(self, error: BaseException, /) -> None: ...


class Waits:
    """Those of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waits: dict[_Wait, None] = {}
        self._bound: dict[Awaited, _Bound] = {}
        self._rings = False

    @staticmethod
    def of(loop: asyncio.AbstractEventLoop) -> "Waits":
        known = _of_loops.get(loop)
        waits = None if known is None else known()
        if waits is None:
            waits = Waits(loop)
            _of_loops[loop] = weakref.ref(waits)
        return waits

    def begin(self, loop: asyncio.AbstractEventLoop, wait: _Wait) -> None:
        self._waits[wait] = None
        if not self._rings:
            self._start(loop)

    def bound(self, future: Awaited, limit_s: float, late: Callable[[float], Exception]) -> None:
        """Have a future of this loop end with what `late` makes when it takes longer: for whoever may give such an end
        to it, the cheapest way. It is counted from the next ring, so it may be two tenths of a second late. (Counted
        from the last one it would be too early where the event loop stood still since.) `free` it when it is done."""
        if not self._rings and (loop := self._loop()) is not None:
            self._start(loop)
        self._bound[future] = (None, limit_s, late)

    def free(self, future: Awaited) -> None:
        """It is done. The next ring would find that too; but whatever lives on until then is looked at by the garbage
        collector, again and again: that cost a tenth of a lock call."""
        self._bound.pop(future, None)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._rings = True
        loop.call_later(RING_EVERY_S, self._ring)

    def end(self, wait: _Wait) -> None:
        del self._waits[wait]

    def _ring(self) -> None:
        loop = self._loop()
        if loop is None or not (self._waits or self._bound):
            self._rings = False
            return
        now_s = loop.time()
        for wait in [wait for wait in self._waits if wait.until_s <= now_s and not wait.expired]:
            wait.expired = True
            wait.task.cancel()
        for future, (until_s, limit_s, late) in list(self._bound.items()):
            if future.done():
                del self._bound[future]
            elif until_s is None:
                self._bound[future] = (now_s + limit_s, limit_s, late)
            elif until_s <= now_s:
                future.set_exception(late(limit_s))
        loop.call_later(RING_EVERY_S, self._ring)


_of_loops: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Waits]]" = weakref.WeakKeyDictionary()
"""Kept alive by their timer alone: what is bound knows its loop, which would be kept for ever from here."""


async def within(awaited: Awaitable[T], limit_s: float) -> T:
    """What `awaited` gives; it is cancelled and TimeoutError raised when it takes longer than that."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task(loop)
    assert task is not None, "an await is in a task"
    waits = Waits.of(loop)
    wait = _Wait(task, loop.time() + limit_s)
    waits.begin(loop, wait)
    try:
        result = await awaited
    except asyncio.CancelledError:
        if wait.expired and task.uncancel() <= wait.cancelling:
            raise TimeoutError from None
        raise
    except BaseException:
        if wait.expired:
            task.uncancel()  # it failed in the same turn in which its time was up
        raise
    finally:
        waits.end(wait)
    if wait.expired:  # it was done all the same
        task.uncancel()
    return result
