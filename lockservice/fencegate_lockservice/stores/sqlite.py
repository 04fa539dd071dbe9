"""Locks in an SQLite file: the embedded default. One server process, one writer, one flush for many commits.

The file is kept by a process of its own, `sqlite_writer`. At most two groups are on their way to it: while it flushes
one the next is ready, and what comes meanwhile is gathered for the one after.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fencegate.clock import SYSTEM, Clock, sleep_s
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import (
    Ambiguous,
    Capabilities,
    Change,
    Changes,
    Conflict,
    Entry,
    Finding,
    Interval,
    LogEntry,
    TooLate,
    Unavailable,
)
from fencegate.feed import Feed
from fencegate_lockservice.stores.sqlite_line import Line
from fencegate_lockservice.stores.sqlite_writer import Commit, Job, Load, ReadLog, Result, Scan, encode

MAX_GROUP = 512
ON_THE_WAY = 2
RESTART_AFTER_S = 0.5

log = logging.getLogger("fencegate.store.sqlite")

_decode_results = msgspec.msgpack.Decoder(list[Result]).decode

_FAILURES: Mapping[str, type[Exception]] = {
    "conflict": Conflict,
    "too-late": TooLate,
    "ambiguous": Ambiguous,
    "unavailable": Unavailable,
}


class _Asked:
    """A job, and where its result is awaited."""

    __slots__ = ("encoded", "future", "job", "result")

    def __init__(self, job: Job, future: asyncio.Future[Any]) -> None:
        self.job = job
        self.encoded = msgspec.Raw(encode(job))  # each by itself, so that what is no text fails alone
        self.future = future
        self.result: Result | None = None

    def is_here(self) -> bool:
        return self.future.get_loop() is asyncio.get_running_loop()

    def deliver(self) -> None:
        if self.future.done():
            return
        result = self.result or Result("unavailable", "the store was closed")
        if result.verdict == "done":
            self.future.set_result(result.found)
        else:
            self.future.set_exception(_FAILURES[result.verdict](result.found))


class SqliteStore:
    """See the head of this file. Safe to use from several event loops of one process.

    Each of them watches the line from the writer, and whichever is awake reads it: a loop that its owner keeps busy
    must not hold up the others.
    """

    name = "sqlite"
    capabilities = Capabilities(several_processes=False)

    def __init__(self, path: Path, clock: Clock = SYSTEM) -> None:
        self._path = path
        self._clock = clock
        self._gate = threading.RLock()
        self._gathered: list[_Asked] = []
        self._sent: deque[list[_Asked]] = deque()
        self._sending: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._restarting: threading.Thread | None = None
        self._is_unsure = False
        """Whether there may be lines in the log that nobody was told of."""
        self._line = Line(path, clock)
        self._feed = Feed(self._line.revision, self._read_log)

    # --- the contract ---

    async def open(self) -> None:
        """It was opened as it was made: the file must be ours before anybody else asks for it."""

    async def inspect(self) -> Sequence[Finding]:
        return [
            Finding("fine", "every commit is flushed before it is answered (WAL, synchronous=FULL)"),
            Finding("fine", "one process serves these locks; a second one is refused"),
        ]

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        rows = await self._ask(Load(list(keys)))
        return {key: Entry(version, value.encode()) for key, version, value in rows}

    def commit(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int
    ) -> asyncio.Future[None]:
        return self._ask(Commit(list(changes), list(log), not_after_us))

    def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        return self._feed.follow(since)

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        rows = await self._ask(Scan(prefix, after, limit))
        return [(key, Entry(version, value.encode())) for key, version, value in rows]

    def now(self) -> Interval:
        now_us = self._clock.now_us()
        return Interval(now_us, now_us)

    async def close(self) -> None:
        with self._gate:
            self._closed = True
            line, rest = self._line, [asked for group in self._sent for asked in group] + self._gathered
            self._send(room=len(self._sent) + len(self._gathered) + 1)
            if not line.dead:
                line.watch(asyncio.get_running_loop(), self._read)  # a writer whose answers nobody reads never ends
        await asyncio.to_thread(self._hang_up, line)
        while not line.dead:
            self._read(line)
        await asyncio.gather(*(asked.future for asked in rest if asked.is_here()), return_exceptions=True)

    def _hang_up(self, line: Line) -> None:
        line.hang_up()
        if self._restarting is not None:
            self._restarting.join()

    async def _read_log(self, since: int, limit: int) -> Sequence[LogEntry] | None:
        rows = await self._ask(ReadLog(since, limit))
        return None if rows is None else [LogEntry(rev, line, key, event.encode()) for rev, line, key, event in rows]

    # --- to the writer ---

    def _ask(self, job: Job) -> asyncio.Future[Any]:
        """Gather a job; all that come in this turn of the event loop are sent together."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        try:
            asked = _Asked(job, future)
        except ValueError as error:
            future.set_exception(Unavailable(f"the store can't take this: {error}"))
            return future
        with self._gate:
            if self._closed or self._line.dead:
                future.set_exception(Unavailable("the store is closed" if self._closed else "the writer is gone"))
                return future
            self._line.watch(loop, self._read)
            self._gathered.append(asked)
            # One turn of each loop, not of the first: that one may be busy for long, or never run again.
            if self._sending is not loop and len(self._sent) < ON_THE_WAY:
                self._sending = loop
                loop.call_soon(self._send_gathered)
        return future

    def _send_gathered(self) -> None:
        with self._gate:
            self._sending = None
            self._send()

    def _send(self, room: int = ON_THE_WAY) -> None:
        while self._gathered and len(self._sent) < room and not self._line.dead:
            group, self._gathered = self._gathered[:MAX_GROUP], self._gathered[MAX_GROUP:]
            self._sent.append(group)
            self._line.send([asked.encoded for asked in group])

    # --- from the writer ---

    def _read(self, line: Line) -> None:
        """Something came, or the writer died. On the thread of whichever loop was awake."""
        with self._gate:
            if line is not self._line or line.dead:
                return
            messages = line.receive()
            for message in messages:
                self._arrived(self._sent.popleft(), _decode_results(message))
            if line.dead:
                self._cut_off()
            elif messages:
                self._send()

    def _arrived(self, group: list[_Asked], results: list[Result]) -> None:
        lines: list[LogEntry] = []
        for asked, result in zip(group, results, strict=True):
            asked.result = result
            job = asked.job
            if type(job) is Commit and result.verdict == "done":
                revision, result.found = result.found, None
                lines += [LogEntry(revision, number, key, event) for number, (key, event) in enumerate(job.log)]
            self._is_unsure |= result.verdict == "ambiguous"
        if lines and self._is_unsure:  # what may have landed is before these, and in the log if it has
            self._is_unsure = False
            self._feed.lost(lines[0].revision - 1)
        self._feed.publish(lines)
        _deliver(group)

    def _cut_off(self) -> None:
        """The writer is gone: what it was sent may have landed, what it was not sent has not."""
        for asked in (asked for group in self._sent for asked in group):
            asked.result = Result("ambiguous", "the writer of the store died")
        for asked in self._gathered:
            asked.result = Result("unavailable", "the writer of the store died")
        lost = [asked for group in (*self._sent, self._gathered) for asked in group]
        self._sent.clear()
        self._gathered = []
        _deliver(lost)
        if not self._closed:
            log.error("the writer of %s died; starting another", self._path)
            self._restarting = threading.Thread(
                target=self._restart, args=[self._line], name="fencegate-sqlite", daemon=True
            )
            self._restarting.start()

    def _restart(self, died: Line) -> None:
        died.hang_up()
        while not self._closed:
            try:
                line = Line(self._path, self._clock)
            except UnsafeConfiguration as error:
                log.error("%s", error)
                sleep_s(RESTART_AFTER_S)
                continue
            with self._gate:
                self._line = line
                self._feed.lost(line.revision)
                closed = self._closed
            if closed:
                line.hang_up()
                self._read(line)
            return


def _deliver(group: Sequence[_Asked]) -> None:
    """Bring the results of a group to their event loops: one wake-up for each, none for the loop that we are in."""
    loops: dict[asyncio.AbstractEventLoop, list[_Asked]] = {}
    for asked in group:
        loops.setdefault(asked.future.get_loop(), []).append(asked)
    try:
        here = loops.pop(asyncio.get_running_loop(), [])
    except RuntimeError:
        here = []
    for loop, some in loops.items():
        try:
            loop.call_soon_threadsafe(_deliver_here, some)
        except RuntimeError:  # the loop was closed: nobody waits any more
            log.debug("results for a closed event loop were dropped")
    _deliver_here(here)


def _deliver_here(group: Sequence[_Asked]) -> None:
    for asked in group:
        asked.deliver()
