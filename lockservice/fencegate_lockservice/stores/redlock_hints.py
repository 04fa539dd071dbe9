"""The change log of a redlock store: hints from a short stream of each node, told once a majority has them.

What only a minority accepted may never have happened, so nobody is told of it. A revision is a number of this process:
another one tells the same lines under others, and what was told before this one began can't be told again.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from fencegate.clock import Clock
from fencegate.core.ports import Changes, LogEntry, Unavailable
from fencegate.feed import Feed
from fencegate.loop import running_loop
from fencegate_lockservice.stores.redlock_keys import Keys
from fencegate_lockservice.stores.redlock_node import Line, Node, NodeDown
from fencegate_lockservice.stores.redlock_polls import poll

KEEP = 20_000
"""How many lines a node keeps, and how many of them are remembered here."""
BLOCK_MS = 2000
BATCH = 1000
AGAIN_AFTER_S = 0.1
CATCH_UP_WITHIN_S = 5.0

log = logging.getLogger("fencegate.store.redlock")

Place = tuple[int, int]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, list[tuple[str, bytes]]]).decode


def hint(commit_id: str, lines: Sequence[tuple[str, bytes]]) -> bytes:
    """What goes with a value: the lines of the commit that made it."""
    return _encode((commit_id, lines)) if lines else b""


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
        self._seen: dict[str, set[int]] = {}
        self._told: dict[int, None] = {self._feed.revision: None}
        self._moved = asyncio.Condition()
        self._closed = False

    async def start(self) -> None:
        for tail in self._tails:
            tail.task = running_loop().create_task(self._follow(tail))

    async def close(self) -> None:
        self._closed = True
        for tail in self._tails:
            if tail.task is not None:
                tail.task.cancel()
                with suppress(asyncio.CancelledError):
                    await tail.task
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
        answers = await poll(asked, CATCH_UP_WITHIN_S)
        if len(answers) < self._majority:
            raise Unavailable("a majority of the nodes does not tell of changes")
        places = {number: _place_of(answer) for number, answer in answers.items()}

        def reached() -> bool:
            there = [self._tails[number].place for number in places]
            return self._closed or all(
                place is not None and place >= places[number] for number, place in zip(places, there, strict=True)
            )

        try:
            async with asyncio.timeout(CATCH_UP_WITHIN_S), self._moved:
                await self._moved.wait_for(reached)
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
            except NodeDown:
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
        oldest = await line.call("XRANGE", self._keys.changes, "-", "+", "COUNT", 1)
        newest = await line.call("XREVRANGE", self._keys.changes, "+", "-", "COUNT", 1)
        first = tail.place is None
        if tail.place is None or _place_of(newest) < tail.place or (oldest and _place_of(oldest) > tail.place > (0, 0)):
            tail.place = _place_of(newest)
            if not first:
                self.lost()
        async with self._moved:
            self._moved.notify_all()

    # --- all of them ---

    def _heard(self, number: int, packed: bytes) -> None:
        commit_id, lines = _decode(packed)
        nodes = self._seen.setdefault(commit_id, set())
        nodes.add(number)
        if len(nodes) == self._majority:
            nodes.update(range(-1, -1 - len(self._tails), -1))  # more than a majority: told once
            revision = self._next()
            self._feed.publish([LogEntry(revision, at, key, event) for at, (key, event) in enumerate(lines)])
        if len(self._seen) > KEEP:
            for old in list(self._seen)[: KEEP // 4]:
                del self._seen[old]

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
