"""The change log in ZooKeeper, as it is read: by a watch that tells of every new line, and without asking for our own.

A persistent recursive watch on the segment that is written tells which line was made. Lines of this process's own
commits are known from their answers; those of others are read, all that are missing at once.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from fencegate.core.ports import LogEntry, Unavailable
from fencegate_lockservice.stores.zookeeper import wire
from fencegate_lockservice.stores.zookeeper.connection import Connection, Lost
from fencegate_lockservice.stores.zookeeper.line import Line
from fencegate_lockservice.stores.zookeeper.log import SegmentedLog, decode_lines
from fencegate_lockservice.stores.zookeeper.pulse import Pulse
from fencegate_lockservice.stores.zookeeper.wire import Refused

READ_AT_ONCE = 100
MAX_OWN = 2000


class Compacted(Exception):
    """What was to be read is gone."""


class Tail:
    """See the head of this file."""

    def __init__(self, line: Line, pulse: Pulse, segments: SegmentedLog) -> None:
        self._line = line
        self._pulse = pulse
        self._log = segments
        self._own: dict[int, Sequence[LogEntry]] = {}
        self.highest = 0
        """The highest revision that was ever seen here."""
        self._moved = asyncio.Event()
        self._watched = ""
        self._made = 0
        """How many lines the watched segment has, as far as its watch has told."""

    def committed(self, revision: int, lines: Sequence[tuple[str, bytes]]) -> None:
        """A commit of our own is in the log there."""
        if len(self._own) >= MAX_OWN:  # nobody reads: they will be read from the log
            self._own.clear()
        self.highest = max(self.highest, revision)
        self._own[revision] = [LogEntry(revision, line, key, event) for line, (key, event) in enumerate(lines)]

    def on_event(self, kind: int, path: str) -> None:
        folder, _, name = path.rpartition("/")
        if kind == wire.CREATED and folder == self._watched:
            self._made = max(self._made, int(name) + 1)
        self._moved.set()

    def on_lost(self) -> None:
        self._own.clear()  # what is there when we are back may come from a backup
        self._moved.set()

    async def follow(self, since: int) -> AsyncIterator[Sequence[LogEntry] | None]:
        """What `Following` wants of a tail."""
        connection = self._line.connection
        try:
            start, number = await self._find(connection, since)
            while True:
                async for lines in self._follow(connection, start, number):
                    yield lines
                start, number = await self._next(connection, start), 0
        except Compacted:
            yield None
        except (Lost, Refused) as error:
            raise Unavailable(f"the change log in ZooKeeper can't be read: {error}") from None

    async def _follow(self, connection: Connection, start: int, number: int) -> AsyncIterator[Sequence[LogEntry]]:
        """The lines of one segment from a number on, until it is sealed and all are told."""
        path = self._log.segment(start)
        self._watched, self._made = path, 0
        await connection.watch(path, wire.RECURSIVE)
        try:
            sealed = False
            while number < self._made or not sealed:
                if number < self._made:
                    end = min(self._made, number + READ_AT_ONCE)
                    self.highest = max(self.highest, start + end - 1)
                    yield await self._read(connection, start, number, end)
                    number = end
                    continue
                self._moved.clear()
                segment = await self._log.read(connection, start)
                sealed = segment.sealed
                self._made = max(self._made, segment.count)
                if number >= self._made and not sealed:
                    await self._moved.wait()
                    if connection.lost:
                        raise Lost("the connection broke")
        finally:
            connection.unwatch(path)

    async def _next(self, connection: Connection, start: int) -> int:
        """The segment after a sealed one, as soon as there is one."""
        last = (await self._log.read(connection, start)).newest(start)
        while True:
            self._moved.clear()
            later = [other for other in await self._log.segments(connection) if other > start]
            if later:
                segment = await self._log.read(connection, later[0])
                if segment.after != last:
                    raise Compacted
                return later[0]
            await self._moved.wait()  # the log's own node is watched since the connection was made
            if connection.lost:
                raise Lost("the connection broke")

    async def _find(self, connection: Connection, since: int) -> tuple[int, int]:
        """Where the line after a revision is, or will be. Compacted when it is gone, or this revision is in none of the
        segments: then it is of another past, before a restore."""
        starts = await self._log.segments(connection)
        if not starts:
            raise Compacted
        if since == 0 and self._log.is_whole(starts):
            return starts[0], 0
        start = max((start for start in starts if start <= since), default=starts[0])
        segment = await self._log.read(connection, start)
        if since > segment.newest(start) or (since < start and since != segment.after):
            raise Compacted
        return start, max(0, since + 1 - start)

    async def _read(self, connection: Connection, start: int, first: int, end: int) -> list[LogEntry]:
        """All lines from one number to before another. Compacted when one is gone."""
        own = self._own
        path = self._log.segment(start)
        mine = {number: own.pop(start + number) for number in range(first, end) if start + number in own}
        asked = {number: connection.get(f"{path}/{number:010d}") for number in range(first, end) if number not in mine}
        lines: list[LogEntry] = []
        for number in range(first, end):
            if number in mine:
                lines += mine[number]
                continue
            try:
                lines += decode_lines(start + number, (await asked[number])[0])
            except Refused as refused:
                if refused.code == wire.NO_NODE:
                    raise Compacted from None
                raise
            own.pop(start + number, None)
        return lines

    # --- for those who come later ---

    async def newest(self) -> int:
        """The revision of the last line. All that was committed before this was asked for is up to it."""
        connection = self._line.connection
        try:
            pulse = self._pulse.beat(connection)
            while True:
                start = self._log.start
                looking = connection.get(self._log.path)
                try:
                    segment = await self._log.read(connection, start)
                    await pulse
                    if int((await looking)[0]) == start:
                        return segment.newest(start)
                except Refused as refused:  # it may have been taken away since this replica wrote to it
                    if refused.code != wire.NO_NODE or int((await looking)[0]) == start:
                        raise
                await self._log.look(connection)
        except (Lost, Refused) as error:
            raise Unavailable(f"the change log in ZooKeeper can't be read: {error}") from None

    async def read_log(self, since: int, limit: int) -> Sequence[LogEntry] | None:
        """Lines after a revision, so many at least if there are; None when they are gone."""
        connection = self._line.connection
        lines: list[LogEntry] = []
        try:
            start, number = await self._find(connection, since)
            while len(lines) < limit:
                segment = await self._log.read(connection, start)
                end = min(segment.count, number + READ_AT_ONCE)
                if number < end:
                    lines += await self._read(connection, start, number, end)
                    number = end
                elif segment.sealed and max(await self._log.segments(connection), default=0) > start:
                    start, number = await self._next(connection, start), 0
                else:
                    break
        except Compacted:
            return None
        except (Lost, Refused) as error:
            raise Unavailable(f"the change log in ZooKeeper can't be read: {error}") from None
        return lines
