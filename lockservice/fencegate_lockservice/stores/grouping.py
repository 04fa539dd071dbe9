"""Group commit: what arrives while one group is under way goes out together in the next."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from fencegate.core.ports import Ambiguous, Unavailable
from fencegate_lockservice.stores.landing import Fate

Item = TypeVar("Item")


class Waiting(Generic[Item]):
    """An item on its way, and where its result is awaited."""

    __slots__ = ("future", "item")

    def __init__(self, item: Item, future: Fate) -> None:
        self.item = item
        self.future = future

    def done(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def failed(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


Send = Callable[[Sequence[Waiting[Item]]], Coroutine[Any, Any, None]]
"""Carries out a group and settles each of it. What it leaves unsettled, or raises, is told to those that remain. What
it does before it gives the coroutine is done at once, and the rest in the next turn of the event loop."""

Choose = Callable[[list[Waiting[Item]]], tuple[list[Waiting[Item]], list[Waiting[Item]]]]
"""Parts what was gathered into the next group and the rest. A group may be empty while another is under way."""


class Groups(Generic[Item]):
    """Gathers items and sends them in groups of at most `size`, at most `at_once` groups at a time. With `enough` of
    them a group need not wait for the end of the turn of the event loop: the server begins, while we make the rest."""

    def __init__(
        self,
        send: Send[Item],
        *,
        size: int = 128,
        at_once: int = 1,
        enough: int | None = None,
        choose: Choose[Item] | None = None,
    ) -> None:
        self._send = send
        self._enough = enough
        self._choose: Choose[Item] = choose or (lambda gathered: (gathered[:size], gathered[size:]))
        self._at_once = at_once
        self._gathered: list[Waiting[Item]] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._starting = False
        self._closed = False

    def add(self, item: Item) -> "asyncio.Future[None]":
        """Have it sent with the next group; all that come in this turn of the event loop go together."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add_as(item, future)
        return future

    def add_as(self, item: Item, future: Fate) -> None:
        """The same, with the result where the caller wants it."""
        if self._closed:
            future.set_exception(Unavailable("the store is closed"))
            return
        self._gathered.append(Waiting(item, future))
        if len(self._under_way) >= self._at_once:
            return
        if self._enough is not None and len(self._gathered) % self._enough == 0:
            self._start()
        elif not self._starting:
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start_due)

    @staticmethod
    def refuse(error: Exception) -> "asyncio.Future[None]":
        """The result of an item that can't be sent at all."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        return future

    def _start_due(self) -> None:
        self._starting = False
        self._start()

    def _start(self) -> None:
        while self._gathered and len(self._under_way) < self._at_once:
            group, self._gathered = self._choose(self._gathered)
            if not group:
                return
            try:
                sending = self._send(group)
            except Exception as error:  # it is not the fault of whoever came last
                for waiting in group:
                    waiting.failed(error)
                continue
            self._begin(group, sending)

    def _begin(self, group: Sequence[Waiting[Item]], sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(group, sending))
        self._under_way.add(task)
        task.add_done_callback(partial(self._ended, group, sending))

    def _ended(
        self, group: Sequence[Waiting[Item]], sending: Coroutine[Any, Any, None], task: "asyncio.Task[None]"
    ) -> None:
        """One that was cancelled before it began, with all tasks of a loop that ends, has not left by itself. It may
        have been sent by then, and what the application's tasks still want of the store waits behind it."""
        if task in self._under_way:
            self._under_way.discard(task)
            self._begin(group, sending)

    async def _carry(self, group: Sequence[Waiting[Item]], sending: Coroutine[Any, Any, None]) -> None:
        error: BaseException = Unavailable("the store left this unanswered")
        try:
            await sending
        except asyncio.CancelledError:
            error = Ambiguous("the store was closed while this was under way")
            raise
        except Exception as failed:
            error = failed
        finally:
            for waiting in group:
                waiting.failed(error)
            task = asyncio.current_task()
            assert task is not None
            self._under_way.discard(task)
            self._start()

    async def close(self) -> None:
        """Take nothing more, and return when all that was taken is settled."""
        self._closed = True
        self._start()
        while self._under_way:
            await asyncio.wait(self._under_way)
