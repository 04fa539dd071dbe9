"""The change log of a store that several processes write to: read by one task, told to all who follow it here.

It is read while somebody follows: whoever only takes free locks pays nothing for what others do.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

from fencegate.core.ports import Changes, LogEntry, Unavailable
from fencegate.feed import Feed, ReadLog

AGAIN_AFTER_S = 0.2
CATCH_UP_WITHIN_S = 10.0
LINGER_S = 5.0
SAME_OUTAGE_S = 15.0

log = logging.getLogger("fencegate.store")

Tail = Callable[[int], AsyncIterator[Sequence[LogEntry] | None]]
"""Lines after a revision as they come, whole revisions in order, for ever; None when those were compacted, or the log
is another one now. It raises Unavailable when the connection breaks, and is called again from where the feed stands."""
Newest = Callable[[], Awaitable[int]]
"""Asks the store for the newest revision that can be read, and none below it can still be committed."""


class Following:
    """Keeps a `Feed` up with the store's own log, in the event loop that opened the store."""

    def __init__(self, tail: Tail, newest: Newest, read_log: ReadLog) -> None:
        self._tail = tail
        self._newest = newest
        self._read_log = read_log
        self._feed = Feed(0, self._read_told)
        self._moved = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None
        self._is_lost = False
        """Whether those who follow have still to be told that the log is not what it was: a tail says so only once."""
        self._followers = 0
        self._stopping: asyncio.TimerHandle | None = None
        self._closed = False

    async def start(self) -> None:
        """See that the log can be read. It is followed when somebody asks."""
        await self._newest()

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        """What `Store.changes` promises: the first answer knows of all that was committed before it was asked for."""
        self._followers += 1
        try:
            await self._caught_up()
            async with aclosing(self._feed.follow(since)) as told:
                async for changes in told:
                    yield changes
        finally:
            self._followers -= 1
            if not self._followers and not self._closed:
                if self._stopping is not None:
                    self._stopping.cancel()
                self._stopping = asyncio.get_running_loop().call_later(LINGER_S, self._stop_reading)

    def _stop_reading(self) -> None:
        """Nobody has followed for a while."""
        if not self._followers and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def close(self) -> None:
        self._closed = True
        self._feed.close()
        if self._stopping is not None:
            self._stopping.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        async with self._moved:
            self._moved.notify_all()

    async def _read_told(self, since: int, limit: int) -> Sequence[LogEntry] | None:
        """Not beyond what the feed has been told of: whoever were ahead of it would be thought to be in the future."""
        lines = await self._read_log(since, limit)
        return None if lines is None else [line for line in lines if line.revision <= self._feed.revision]

    async def _caught_up(self) -> None:
        newest = await self._newest()
        if self._reading is None and not self._closed:
            self._feed.lost(newest)
            self._reading = asyncio.get_running_loop().create_task(self._read())
        try:
            async with asyncio.timeout(CATCH_UP_WITHIN_S), self._moved:
                await self._moved.wait_for(lambda: self._closed or self._feed.revision >= newest)
        except TimeoutError:
            raise Unavailable("the change log of the store can't be read") from None
        if self._closed:
            raise Unavailable("the store is closed")

    async def _read(self) -> None:
        now_s = asyncio.get_running_loop().time
        down_until_s = 0.0  # an outage is told of once, and not at each try
        while True:
            try:
                if self._is_lost:
                    await self._reset()
                async for lines in self._tail(self._feed.revision):
                    if lines is None:
                        self._is_lost = True
                        await self._reset()
                        continue
                    down_until_s = 0.0
                    self._feed.publish(lines)
                    async with self._moved:
                        self._moved.notify_all()
            except Unavailable as error:
                if now_s() > down_until_s:
                    log.warning("the change log can't be read: %s", error)
                down_until_s = now_s() + SAME_OUTAGE_S
            except Exception:  # it must not end, or nobody here would hear of anything again
                log.exception("the change log can't be read")
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _reset(self) -> None:
        self._feed.lost(await self._newest(), reset=True)
        self._is_lost = False
        async with self._moved:
            self._moved.notify_all()
