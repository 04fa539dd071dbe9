"""The change log of a redlock store: hints from a short stream of each node, told once a majority has them.

What only a minority accepted may never have happened. Nobody is told of it before a look at the register shows that it
did: the majority that accepted it may be another one than that which can be heard from here. A revision is a number of
this process: another one tells the same lines under others, and what was told before this one began is gone.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fencegate.clock import Clock
from fencegate.core.ports import Changes, LogEntry, Unavailable
from fencegate.feed import Feed
from fencegate_lockservice.stores.redlock.keys import Keys
from fencegate_lockservice.stores.redlock.node import Line, Node, NodeDown
from fencegate_lockservice.stores.redlock.polls import poll
from fencegate_lockservice.stores.redlock.untold import KEEP, Lines, Untold

BLOCK_MS = 2000
BATCH = 1000
AGAIN_AFTER_S = 0.1
DOUBT_AFTER_US = 300_000
CATCH_UP_WITHIN_S = 5.0
ALL_ANSWER_WITHIN_S = 0.3
ALL_CATCH_UP_WITHIN_S = 1.0

log = logging.getLogger("fencegate.store.redlock")

Place = tuple[int, int]

Landed = Callable[[Mapping[str, str]], Awaitable[set[str]]]
"""Which of these commits have landed, each given with its register."""


class _Tail:
    """How far the stream of one node was read."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.place: Place | None = None
        self.task: asyncio.Task[None] | None = None


class Hints:
    """Follows all nodes, in the event loop that opened the store."""

    def __init__(self, nodes: Sequence[Node], keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._majority = len(nodes) // 2 + 1
        self._tails = [_Tail(node) for node in nodes]
        self._feed = Feed(clock.now_us() // 1000, self._read_log)
        self._untold = Untold(self._majority, clock, self._tell, self.lost)
        self._landed: Landed | None = None
        self._doubting: asyncio.Task[None] | None = None
        self._told: dict[int, None] = {self._feed.revision: None}
        self._moved = asyncio.Condition()
        self._closed = False

    async def start(self, landed: Landed) -> None:
        self._landed = landed
        for tail in self._tails:
            tail.task = asyncio.get_running_loop().create_task(self._follow(tail))

    async def close(self) -> None:
        self._closed = True
        for task in [self._doubting, *(tail.task for tail in self._tails)]:
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        async with self._moved:
            self._moved.notify_all()
        self.lost()  # wakes those who follow, so that they hear that it is closed

    def lost(self) -> None:
        """Something may have happened that nobody was told of: whoever follows has to look for itself."""
        self._feed.lost(self._next())

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        """What `Store.changes` promises, as far as this process knows the past."""
        await self._caught_up()
        if since is not None and since not in self._told:
            since = self._feed.revision
            yield Changes(since, reset=True)
        async for changes in self._feed.follow(since):
            if self._closed:
                raise Unavailable("the store is closed")
            yield changes

    async def _read_log(self, _since: int, _limit: int) -> None:
        """What has left the tail is gone."""

    async def _caught_up(self) -> None:
        """Wait until all is told here that the nodes were told before we asked."""
        asked = {tail.node.number: _newest(tail.node, self._keys) for tail in self._tails if tail.node.up}
        answers = await poll(asked, CATCH_UP_WITHIN_S, lambda heard: len(heard) >= self._majority)
        if len(answers) < len(asked):
            answers |= await poll(asked, ALL_ANSWER_WITHIN_S)
        if len(answers) < self._majority:
            raise Unavailable("a majority of the nodes does not tell of changes")
        places = {number: _place_of(answer) for number, answer in answers.items()}

        def reached(number: int) -> bool:
            there = self._tails[number].place
            return there is not None and there >= places[number]

        async def until(enough: int, within_s: float) -> None:
            async with asyncio.timeout(within_s), self._moved:
                await self._moved.wait_for(lambda: self._closed or sum(map(reached, places)) >= enough)

        try:
            with suppress(TimeoutError):  # all of them, for then nothing is left to be found by `_doubt`
                await until(len(places), ALL_CATCH_UP_WITHIN_S)
            await until(self._majority, CATCH_UP_WITHIN_S)
        except TimeoutError:
            raise Unavailable("the changes of the nodes can't be read") from None
        if self._closed:
            raise Unavailable("the store is closed")

    # --- one node ---

    async def _follow(self, tail: _Tail) -> None:
        while True:
            try:
                line = await tail.node.connect()
                try:
                    await self._read(tail, line)
                finally:
                    line.abort()
            except (NodeDown, TimeoutError):
                pass  # who votes tells of it
            except Exception:  # it must not end, or this node would never be heard again
                log.exception("the changes of %s can't be read", tail.node.seat.name)
            await asyncio.sleep(AGAIN_AFTER_S * (1 + 4 * self._clock.jitter()))

    async def _read(self, tail: _Tail, line: Line) -> None:
        await self._resume(tail, line)
        while True:
            assert tail.place is not None
            after = f"{tail.place[0]}-{tail.place[1]}"
            asked = line.call("XREAD", "COUNT", BATCH, "BLOCK", BLOCK_MS, "STREAMS", self._keys.changes, after)
            await asyncio.wait([asked], timeout=BLOCK_MS / 1000 + CATCH_UP_WITHIN_S)
            if not asked.done():
                return
            answer = asked.result()
            for key, fields in answer[0][1] if answer else []:
                tail.place = _place(key)
                self._heard(tail.node.number, fields[1])
            if answer:
                async with self._moved:
                    self._moved.notify_all()
                if len(answer[0][1]) >= BATCH:
                    await self._resume(tail, line)  # it may be trimmed faster than we read

    async def _resume(self, tail: _Tail, line: Line) -> None:
        """Find out whether what comes next is still there; begin with what is newest if it is not."""
        async with asyncio.timeout(CATCH_UP_WITHIN_S):
            oldest = await line.call("XRANGE", self._keys.changes, "-", "+", "COUNT", 1)
            newest = await line.call("XREVRANGE", self._keys.changes, "+", "-", "COUNT", 1)
        first = tail.place is None
        # Of a stream that was empty before, nobody can say whether its oldest line is the first that it ever had.
        if tail.place is None or _place_of(newest) < tail.place or (oldest and _place_of(oldest) > tail.place):
            tail.place = _place_of(newest)
            if not first:
                self.lost()
        async with self._moved:
            self._moved.notify_all()

    # --- all of them ---

    def _heard(self, number: int, packed: bytes) -> None:
        self._untold.heard(number, packed)
        if self._untold and self._doubting is None:
            self._doubting = asyncio.get_running_loop().create_task(self._doubt())

    def _tell(self, lines: Lines) -> None:
        revision = self._next()
        self._feed.publish([LogEntry(revision, at, key, event) for at, (key, event) in enumerate(lines)])

    async def _doubt(self) -> None:
        """Look for what too few nodes tell of: it may have landed all the same."""
        try:
            while self._untold:
                await asyncio.sleep(DOUBT_AFTER_US / 1_000_000)
                old = self._untold.older_than(DOUBT_AFTER_US)
                if not old:
                    continue
                assert self._landed is not None
                with suppress(Unavailable):
                    landed = await self._landed(old)
                    for commit_id in old:
                        if commit_id in landed:
                            self._untold.landed(commit_id)
                    self._untold.give_up()
        finally:
            self._doubting = None

    def _next(self) -> int:
        revision = max(self._feed.revision + 1, self._clock.now_us() // 1000)
        self._told[revision] = None
        if len(self._told) > KEEP:
            for old in list(self._told)[: KEEP // 4]:
                del self._told[old]
        return revision


def _newest(node: Node, keys: Keys) -> "asyncio.Future[Any]":
    return node.call("XREVRANGE", keys.changes, "+", "-", "COUNT", 1)


def _place(key: bytes) -> Place:
    millis, _, number = key.partition(b"-")
    return int(millis), int(number)


def _place_of(answer: Sequence[Any]) -> Place:
    return _place(answer[0][0]) if answer else (0, 0)
