"""The change log in etcd: the history of the keys `log/…`, which each commit overwrites, as a watch tells it.

A revision of the log is etcd's own. The newest is the one at which such a key was written last, whatever else was
written since. What was compacted is gone.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from operator import attrgetter

from fencegate.core.ports import LogEntry, Unavailable
from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.client import RANGE, WATCH, Client
from fencegate_lockservice.stores.etcd.keys import Keys
from fencegate_lockservice.stores.etcd.lines import Lines

QUIET_S = 3.0
"""A watch that says nothing for so long is checked against a linearizable read: its member may be cut off."""
WITHIN_S = 5.0
KEEP_S = 1.0
FRONT = 80
"""Within so many bytes, and those of its key, an event names who wrote it."""
PAGES_AT_ONCE = 4
"""Each page of the past may need a connection of its own, and all who watch may come back in the same moment."""

log = logging.getLogger("fencegate.store.etcd")


class _Compacted(Exception):
    """What was asked for is gone."""


class _Past:
    """A watch that begins far back, and what it has told beyond the page that was asked for."""

    __slots__ = ("_surplus", "pieces", "since", "was_kept")

    def __init__(self, pieces: AsyncGenerator[list[LogEntry], None], since: int) -> None:
        self.pieces = pieces
        self.since = since
        self.was_kept = False
        self._surplus: list[LogEntry] = []

    async def page(self, limit: int, newest: int) -> list[LogEntry]:
        """The next lines, whole revisions: about so many, or all until the newest."""
        found = self._surplus
        while len(found) < limit and (found[-1].revision if found else self.since) < newest:
            try:
                found += await anext(self.pieces)
            except StopAsyncIteration:
                raise Unavailable("a watch of etcd was ended") from None
        last = found[min(limit, len(found)) - 1].revision if found else self.since
        end = bisect_right(found, last, key=attrgetter("revision"))
        self.since, self._surplus = last, found[end:]
        return found[:end]


class Log:
    """Reads it, by way of any member."""

    def __init__(self, client: Client, keys: Keys, lines: Lines) -> None:
        self._client = client
        self._keys = keys
        self._lines = lines
        self._quiet = (0, 0)
        """A revision of the log, and a later one of etcd until which nothing was written to the log."""
        self._kept: _Past | None = None
        self._ending: asyncio.Task[None] | None = None
        self._turns = asyncio.Semaphore(PAGES_AT_ONCE)

    async def newest(self) -> int:
        return (await self._stand())[0]

    async def _stand(self) -> tuple[int, int]:
        """The newest revision of the log, and that of etcd as this was read."""
        message = proto.range_of(self._keys.log, self._keys.log_end, 1) + proto.NEWEST_FIRST
        found = await self._client.read(RANGE, message, proto.range_answer)
        self._quiet = (found.kvs[0].mod_revision if found.kvs else 0), found.revision
        return self._quiet

    async def tail(self, since: int) -> AsyncGenerator[Sequence[LogEntry] | None, None]:
        """What `Following` asks of it."""
        quiet_since, quiet_until = self._quiet
        newest, revision = await self._stand()
        if newest < since:  # etcd was restored: this is another past
            yield None
            return
        if newest == since:
            quiet_since, quiet_until = newest, revision
        # What lies in a time of quiet may have been compacted, and nothing is lost by that.
        start = max(since, quiet_until if quiet_since == since else 0) + 1
        due = since
        try:
            async with aclosing(self._watch(start)) as pieces:
                async for lines in pieces:
                    if lines:
                        since = lines[-1].revision
                        yield lines
                    elif due > since:
                        raise Unavailable("a watch of etcd has fallen silent")
                    else:
                        due = await self.newest()
        except _Compacted:
            yield None

    async def read(self, since: int, limit: int) -> Sequence[LogEntry] | None:
        """Lines after a revision, whole revisions; None when they were compacted."""
        async with self._turns:
            return await self._page(since, limit)

    async def _page(self, since: int, limit: int) -> Sequence[LogEntry] | None:
        newest = await self.newest()
        past = self._take(since)
        try:
            async with asyncio.timeout(WITHIN_S):
                found = await past.page(limit, newest)
        except _Compacted:
            return None
        except TimeoutError:
            raise Unavailable("etcd does not tell its past") from None
        except Unavailable:
            if past.was_kept:  # its member may be gone since the last page
                return await self._page(since, limit)
            raise
        if past.since < newest:
            await self._keep(past)
        else:
            await past.pieces.aclose()
        return found

    # --- a watch on the past is kept for the next page: etcd looks through all of it for each new one ---

    def _take(self, since: int) -> "_Past":
        """The one that was kept, if it goes on after this revision; else a new one."""
        kept = self._kept
        if kept is None or kept.since != since:
            return _Past(self._watch(since + 1), since)
        self._kept = None
        if self._ending is not None:
            self._ending.cancel()
        return kept

    async def _keep(self, past: "_Past") -> None:
        await self.close()
        self._kept, past.was_kept = past, True
        self._ending = asyncio.get_running_loop().create_task(self._end_unused())

    async def _end_unused(self) -> None:
        await asyncio.sleep(KEEP_S)
        await self._let_go()

    async def _let_go(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.pieces.aclose()

    async def close(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        await self._let_go()

    async def _watch(self, start: int) -> AsyncGenerator[list[LogEntry], None]:
        """Whole revisions as they come; an empty list after each time of silence."""
        message = proto.watch(self._keys.log, self._keys.log_end, start)
        async with self._client.stream(WATCH, message) as call:
            assert call.told is not None
            call.told.can_wait = self._is_our_own
            while True:
                try:
                    async with asyncio.timeout(QUIET_S):
                        told = await call.told.take()
                except TimeoutError:
                    yield []
                    continue
                lines: list[LogEntry] = []
                for one in told:
                    lines += _lines(one) if one is not None else ()
                if lines:
                    yield lines
                if None in told:
                    error = call.answer.exception() if call.answer.done() else None
                    raise Unavailable(f"a watch of etcd has ended: {error or 'without a reason'}")

    def _is_our_own(self, told: bytes) -> bool:
        """Whether we wrote all that it tells of, so that nobody here waits for it."""
        own, front = self._lines.own, len(self._keys.log) + FRONT
        try:
            events = [event for number, event in proto.fields(told) if number == proto.EVENT]
        except proto.Malformed:
            return False
        return bool(events) and all(isinstance(event, bytes) and own in event[:front] for event in events)


def _lines(told: bytes) -> list[LogEntry]:
    """The lines of one message of a watch; those of all commits of a revision are numbered through."""
    try:
        watched = proto.watched(told)
    except proto.Malformed as error:
        raise Unavailable(f"a watch of etcd can't be read: {error}") from None
    if watched.compact_revision:
        raise _Compacted
    if watched.canceled:
        raise Unavailable(f"a watch of etcd was ended: {watched.reason}")
    lines: list[LogEntry] = []
    revision = number = 0
    for kv in watched.events:
        if kv.mod_revision != revision:
            revision, number = kv.mod_revision, 0
        try:
            found = Lines.read(kv.value)
        except ValueError:
            log.warning("somebody else has written to %r of etcd, which is the change log", kv.key)
            continue
        lines += [LogEntry(revision, at, key, event) for at, (key, event) in enumerate(found, number)]
        number += len(found)
    return lines
