"""Writes the history from the change log, after the fact: no lock call waits for it.

Each commit writes what ended and how far the log was read, on condition that nobody else has read on meanwhile. So
several may write at once, each line is written once, and whoever comes after a crash goes on where that one was.
"""

import asyncio
import logging
import zlib
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress

import msgspec

from fencegate.clock import Clock
from fencegate.core.model import Event
from fencegate.core.ports import Ambiguous, Change, Changes, Conflict, LogEntry, Store, TooLate, Unavailable
from fencegate.engine.codec import LogLine, decode_line
from fencegate_lockservice.history_rows import (
    POSITION,
    Gap,
    Position,
    decode_position,
    encode,
    ended_place,
    row_of,
    rows_of,
)

MAX_PER_LOCK = 10_000
BATCH = 256
PAUSE_S = 0.1
TRIES = 10
LAND_WITHIN_US = 10_000_000
UNWRITTEN = 10_000  # revisions that may pass without an ending before the position is written all the same
MAX_GAPS = 16
PAGE = 500

log = logging.getLogger("fencegate.history")


class HistoryWriter:
    """Follows the change log of one store, in one event loop. An entry is kept for `keep_us` after its hold ended."""

    def __init__(self, store: Store, clock: Clock, keep_us: int, max_per_lock: int = MAX_PER_LOCK) -> None:
        self.keep_us = keep_us
        self.max_per_lock = max_per_lock
        self._store = store
        self._clock = clock
        self._turn = asyncio.Lock()
        self._position: Position | None = None
        """As far as was read here, which may be further than was written; None when that has to be asked."""
        self._written = Position()
        self._version: str | None = None

    async def run(self) -> None:
        """Write for ever, up to a tenth of a second behind: a busy service costs ten commits a second, not one each."""
        while True:
            try:
                async with aclosing(self._store.changes(None)) as stream:
                    async for _ in stream:
                        await self.catch_up()
                        await asyncio.sleep(PAUSE_S)
            except Unavailable as error:
                log.warning("the history can't be written now: %s", error)
                await asyncio.sleep(1 + self._clock.jitter())
            except Exception:  # it must not end: the next line may fare better, and nothing is lost meanwhile
                log.exception("the history can't be written")
                await asyncio.sleep(5 + self._clock.jitter())

    async def catch_up(self) -> Position:
        """Write down what was committed before this call. Unavailable when the store can't be reached."""
        async with self._turn:
            for attempt in range(TRIES):
                try:
                    return await self._read_on()
                except (Conflict, TooLate, Ambiguous):  # another writes too, or nobody knows: the position will tell
                    await asyncio.sleep(self._clock.jitter() * min(0.2, 0.005 * 2**attempt))
            raise Unavailable("the history could not be written: others were faster each time, or the store is unsure")

    async def _read_on(self) -> Position:
        async with aclosing(self._store.changes(None)) as stream:
            newest = (await anext(stream)).revision
        position = await self._known()
        if position.revision == newest:
            return position
        async with aclosing(self._store.changes(position.revision)) as stream:
            async for changes in stream:
                position = await self._take(position, changes)
                if position.revision >= newest:
                    break
        return position

    async def _known(self) -> Position:
        if self._position is not None and not self._store.capabilities.several_processes:
            return self._position
        found = (await self._store.load([POSITION])).get(POSITION)
        version = found.version if found is not None else None
        if self._position is None or version != self._version:
            self._position = self._written = decode_position(found.value) if found is not None else Position()
            self._version = version
        return self._position

    # --- from the log to the store ---

    async def _take(self, position: Position, changes: Changes) -> Position:
        now_us = self._now_us()
        gaps = tuple(gap for gap in position.gaps if gap.to_us + self.keep_us > now_us)
        if changes.reset:
            log.warning("the change log is gone from where the history was: it has a gap, and says so")
            gaps = _bounded((*gaps, Gap(position.at_us, now_us)))
            return await self._write(Position(changes.revision, now_us, gaps), [])
        for batch in _batches(changes.entries):
            read = list(map(_read, batch))
            if None in read:  # it may have told of an end
                gaps = _bounded((*gaps, Gap(position.at_us, now_us)))
            position = Position(batch[-1].revision, now_us, gaps)
            told = [(line, found.event) for line, found in zip(batch, read, strict=True) if found is not None]
            await self._write_lines(position, told)
        return position

    async def _write_lines(self, position: Position, lines: Sequence[tuple[LogEntry, Event | None]]) -> None:
        rows: list[Change] = []
        grown: set[str] = set()
        for line, event in lines:
            row = row_of(event) if event is not None else None
            if event is None or row is None:
                continue
            place = ended_place(row, line.revision, line.line)
            key = rows_of(event.lock_key) + place
            rows.append(Change(key, None, place, encode(row), keep_until_us=event.at_us + self.keep_us))
            if zlib.crc32(place.encode()) % max(1, self.max_per_lock // 4) == 0:
                grown.add(event.lock_key)  # by chance, so that nobody has to count and a restart forgets nothing
        await self._write(position, rows)
        for lock_key in grown:
            await self._trim(lock_key)

    async def _write(self, position: Position, rows: Sequence[Change]) -> Position:
        """Write rows and position on condition that the position is where it was. What adds nothing can wait."""
        written = self._written
        self._position = None  # until it is known what became of this
        if rows or position.gaps != written.gaps or not 0 <= position.revision - written.revision < UNWRITTEN:
            version = self._clock.random_id(8)
            moved = Change(POSITION, self._version, version, encode(position))
            try:
                await self._store.commit([moved, *rows], [], self._now_us() + LAND_WITHIN_US)
            except Conflict:
                await self._store.commit([moved, *await self._missing(rows)], [], self._now_us() + LAND_WITHIN_US)
            self._written, self._version = position, version
        self._position = position
        return position

    async def _missing(self, rows: Sequence[Change]) -> list[Change]:
        """Those that are not there, if the position is where it was. A line makes the same row each time: where the
        position was lost and the log was not, others were written before it was. Conflict when somebody has read on."""
        found = await self._store.load([POSITION, *(row.key for row in rows)])
        position = found.get(POSITION)
        if (position.version if position is not None else None) != self._version:
            raise Conflict
        return [row for row in rows if row.key not in found]

    async def _trim(self, lock_key: str) -> None:
        """Take away what is beyond the newest `max_per_lock`."""
        prefix, after, newer = rows_of(lock_key), "", 0
        while page := await self._store.scan(prefix, after, PAGE):
            beyond = [Change(key, entry.version) for key, entry in page[max(0, self.max_per_lock - newer) :]]
            with suppress(Conflict, TooLate, Ambiguous):  # another took them away, or the next one will
                if beyond:
                    await self._store.commit(beyond, [], self._now_us() + LAND_WITHIN_US)
            newer += len(page)
            after = page[-1][0]

    def _now_us(self) -> int:
        now = self._store.now()
        return now.latest if now is not None else self._clock.now_us()


def _read(line: LogEntry) -> LogLine | None:
    """None for one that somebody else wrote: it must not keep us from those behind it."""
    try:
        return decode_line(line.event)
    except msgspec.MsgspecError:
        log.warning("line %d of revision %d can't be read; the history has a gap there", line.line, line.revision)
        return None


def _batches(lines: Sequence[LogEntry]) -> Iterator[Sequence[LogEntry]]:
    """A few hundred lines at a time, whole revisions only: the position is a revision."""
    start = 0
    while start < len(lines):
        end = min(start + BATCH, len(lines))
        while end < len(lines) and lines[end].revision == lines[end - 1].revision:
            end += 1
        yield lines[start:end]
        start = end


def _bounded(gaps: tuple[Gap, ...]) -> tuple[Gap, ...]:
    """So many at most: the oldest two become one, and say more than is missing rather than less."""
    while len(gaps) > MAX_GAPS:
        gaps = (Gap(gaps[0].from_us, gaps[1].to_us), *gaps[2:])
    return gaps
