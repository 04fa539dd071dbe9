"""The change log in ZooKeeper, as it is written: sequential nodes in segments, each made in the commit it tells of.

`ROOT/log` names the segment that is written now: `ROOT/log/T`. A commit checks that the segment is as it was made, and
creates the next node in it. ZooKeeper numbers these in the order of the commits, without a gap, so the revision of a
commit is T + number: it is known at once, it only rises, and none below it can still come. T is Unix milliseconds at
least, so that revisions go on rising when all is lost, and never below what came before.

A full segment is sealed by writing to it, which makes every later commit to it fail; when it is sealed its end is
known, and the next one is made. Whoever finds a sealed one may do so: nobody waits for a process that died over it.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from fencegate.clock import Clock
from fencegate.core.ports import LogEntry
from fencegate_lockservice.stores.zookeeper import wire
from fencegate_lockservice.stores.zookeeper.connection import Connection, Lost
from fencegate_lockservice.stores.zookeeper.wire import Op, Refused

SEGMENT = 4096
KEEP_SEGMENTS = 25
DELETE_AT_ONCE = 256

log = logging.getLogger("fencegate.store.zookeeper")

_decode = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode

encode_lines = msgspec.msgpack.Encoder().encode


def decode_lines(revision: int, raw: bytes) -> list[LogEntry]:
    return [LogEntry(revision, line, key, event) for line, (key, event) in enumerate(_decode(raw))]


class Segment:
    """What the node of a segment says: the last revision before it, and whether it is sealed."""

    __slots__ = ("after", "count", "sealed")

    def __init__(self, data: bytes, stat: wire.Stat) -> None:
        self.after = int(data)
        self.count = (stat.cversion + stat.children) // 2  # how many were made, also when some were deleted since
        self.sealed = stat.version > 0

    def newest(self, start: int) -> int:
        return start + self.count - 1 if self.count else self.after


class SegmentedLog:
    """See the head of this file. `start` is the T of the segment that is written now, as far as is known here."""

    def __init__(self, root: str, acl: bytes, clock: Clock) -> None:
        self.path = f"{root}/log"
        self._acl = acl
        self._clock = clock
        self.start = 0

    def segment(self, start: int) -> str:
        return f"{self.path}/{start}"

    def ops(self, lines: bytes) -> tuple[Op, Op]:
        """The check that comes first in the commit, and the line that comes last."""
        path = self.segment(self.start)
        return wire.check(path, 0), wire.create(f"{path}/", lines, self._acl, wire.SEQUENTIAL)

    async def prepare(self, connection: Connection) -> None:
        """Make it if there is none, and see where it is."""
        start = self._clock.now_us() // 1000
        first = [
            wire.create(self.path, b"%d" % start, self._acl),
            wire.create(self.segment(start), b"%d" % (start - 1), self._acl),
        ]
        try:
            await connection.multi(first)
        except Refused as refused:
            if refused.code != wire.NODE_EXISTS:
                raise
        await self.look(connection)

    async def look(self, connection: Connection) -> wire.Stat:
        data, stat = await connection.get(self.path)
        self.start = int(data)
        return stat

    async def read(self, connection: Connection, start: int) -> Segment:
        return Segment(*await connection.get(self.segment(start)))

    async def advance(self, connection: Connection, full: int) -> None:
        """Seal the segment `full`, if nobody did, and go on in the next, which another may have made."""
        with suppress(Refused):
            sealed = await connection.get(self.segment(full))
            await connection.put(self.segment(full), sealed[0], 0)
        stat = await self.look(connection)
        if self.start != full:
            return
        last = (await self.read(connection, full)).newest(full)
        start = max(self._clock.now_us() // 1000, last + 1)
        with suppress(Refused):
            await connection.multi(
                [
                    wire.put(self.path, b"%d" % start, stat.version),
                    wire.create(self.segment(start), b"%d" % last, self._acl),
                ]
            )
        await self.look(connection)

    async def segments(self, connection: Connection) -> list[int]:
        return sorted(int(name) for name in (await connection.children(self.path))[0] if name.isdecimal())

    @staticmethod
    def is_whole(starts: Sequence[int]) -> bool:
        """Whether these segments are all that there ever were: where one was taken away, so many are left."""
        return len(starts) < KEEP_SEGMENTS

    async def trim(self, connection: Connection) -> None:
        """Take away the oldest segments. Another may do the same: what is gone is gone."""
        try:
            for start in (await self.segments(connection))[:-KEEP_SEGMENTS]:
                path = self.segment(start)
                names = sorted((await connection.children(path))[0])
                for first in range(0, len(names), DELETE_AT_ONCE):
                    await connection.multi(
                        [wire.delete(f"{path}/{name}") for name in names[first : first + DELETE_AT_ONCE]]
                    )
                await connection.delete(path)
        except (Refused, Lost) as error:
            log.debug("the change log was not trimmed: %s", error)
