"""The change log in MySQL, which has no way to tell of news: it is asked for them, more often while there are some."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

from fencegate.clock import Clock
from fencegate.core.ports import LogEntry, Unavailable
from fencegate_lockservice.stores.mysql.lines import Lines, Rows
from fencegate_lockservice.stores.mysql.statements import sql
from fencegate_lockservice.stores.server_time import ServerTime

READ_WITHIN_S = 4.0
PAGE = 500
PAUSES_S = (0.008, 0.025)
"""Between two looks: soon after there was something, and when there was nothing for long."""
SLOWER = 1.02
"""By which the pause grows with each look that finds nothing: from the first to the last in a second."""

KEPT_LINES = 100_000
KEPT_MS = 3_600_000
DROP_AT_ONCE = 1_000


Run = Callable[[Sequence[str], float], Awaitable[list[Rows]]]
"""How statements are sent: at once, or when it is our turn."""


class Log:
    """Reads lines, and drops old ones."""

    def __init__(self, lines: Lines, time: ServerTime, clock: Clock) -> None:
        self._lines = lines
        self._time = time
        self._clock = clock
        self._news = asyncio.Event()
        self._server: int | None = None

    def look(self) -> None:
        """There is something new, as we know for sure."""
        self._news.set()

    async def newest(self) -> int:
        _, (revision, _compacted) = await self._read([], self._lines.run_in_turn)
        return revision

    async def read(self, since: int, limit: int) -> Sequence[LogEntry] | None:
        """Lines after `since`, whole revisions only; None when some of them are gone, or were never here."""
        return await self._after(since, limit, self._lines.run_in_turn)

    async def _after(self, since: int, limit: int, run: Run) -> Sequence[LogEntry] | None:
        # What was dropped is looked at after the lines were read: so none of them can be missing unnoticed.
        (rows,), (revision, compacted) = await self._read([sql("lines_after", since=int(since), limit=int(limit))], run)
        if since < compacted or since > revision:
            return None
        if len(rows) == limit:
            last = rows[-1][0]
            whole: Rows = [row for row in rows if row[0] != last]
            if not whole:
                (whole,), _ = await self._read([sql("lines_of", revision=int(last))], run)
            rows = whole
        return [LogEntry(revision, line, key.decode(), event) for revision, line, key, event in rows]

    async def tail(self, since: int) -> AsyncIterator[Sequence[LogEntry] | None]:
        """What `Following` asks for."""
        pause_s = PAUSES_S[0]
        while True:
            self._news.clear()
            found = await self._after(since, PAGE, self._lines.run)
            if self._server != self._lines.servers_seen:  # another server: who knows what it has of the past
                known, self._server = self._server, self._lines.servers_seen
                found = None if known is not None else found
            if found is None:
                yield None
                return
            if found:
                yield found
                since, pause_s = found[-1].revision, PAUSES_S[0]
                continue
            await self._pause(pause_s)
            pause_s = min(pause_s * SLOWER, PAUSES_S[1])

    async def drop_old(self) -> bool:
        """Drop some lines that are too old, or too many. Gives whether there may be more of them."""
        statements = [sql("log_size"), sql("oldest_lines", limit=DROP_AT_ONCE + 1)]
        meta, rows = await self._lines.run(statements, READ_WITHIN_S)
        ((newest, kept, now_us),) = meta
        if len(rows) <= DROP_AT_ONCE:
            kept = min(kept, len(rows))  # whatever the counters say, when somebody removed lines by hand
        before_ms = now_us // 1000 - KEPT_MS  # the server's time: revisions follow it, and our clock may be wrong
        too_many = min(kept - KEPT_LINES, DROP_AT_ONCE)
        upto = 0
        for number, (revision,) in enumerate(rows, 1):
            if revision < newest and (revision < before_ms or number <= too_many):
                upto = revision
        if not upto:
            return False
        dropping = [sql("drop_lines", upto=upto), "SET @fg_count = ROW_COUNT()", sql("note_dropped", upto=upto)]
        await self._lines.run(["START TRANSACTION", *dropping, "COMMIT"], READ_WITHIN_S)
        return len(rows) > DROP_AT_ONCE

    async def _read(self, statements: Sequence[str], run: Run) -> tuple[list[Rows], tuple[int, int]]:
        """What the statements find, and then the newest revision and the last one that may be gone."""
        sent_us = self._clock.monotonic_us()
        *found, meta = await run([*statements, sql("log_state")], READ_WITHIN_S)
        if not meta:
            raise Unavailable("the tables of the store were emptied: fencegate_meta has lost its row")
        ((revision, compacted, now_us),) = meta
        self._time.heard(sent_us, now_us)
        return found, (revision, compacted)

    async def _pause(self, pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._news.wait()
