"""Hears of what was committed to PostgreSQL: by NOTIFY on a direct connection, else by asking again and again."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

import psycopg
from psycopg.sql import SQL, Identifier

from fencegate.core.ports import LogEntry, Unavailable
from fencegate_lockservice.stores.postgres.link import Connect, Connection, cut, in_one_line
from fencegate_lockservice.stores.postgres.reader import Reader
from fencegate_lockservice.stores.postgres.reading import Statements
from fencegate_lockservice.stores.postgres.server import is_direct

PAGE = 1000
LOOK_AGAIN_S = 1.0
"""Also when nothing was notified: a notification may be lost, and what is known of the server's time wears out."""
PROBE_WITHIN_S = 2.0
SHORTEST_S = 0.005
LONGEST_S = 0.05

log = logging.getLogger("fencegate.store.postgresql")


class Tail:
    """Follows the log, for `Following`. What this replica commits itself is read at once."""

    def __init__(self, connect: Connect, reader: Reader, statements: Statements) -> None:
        self._connect = connect
        self._reader = reader
        self._statements = statements
        self._news = asyncio.Event()
        self._server: str | None = None
        self._connection: Connection | None = None
        self._busy = False
        self._ending = False
        self.listens = False
        self.is_pooled = False

    def tell(self) -> None:
        """Something was committed."""
        self._news.set()

    async def lines(self, since: int) -> AsyncIterator[Sequence[LogEntry] | None]:
        """Whole revisions as they come; None, and no more, when those after `since` are gone, or it is another server
        that has them: it may have lost some that were told, and have given their numbers to others."""
        listening: asyncio.Task[None] | None = None
        pause_s = SHORTEST_S
        try:
            while True:
                self._news.clear()
                page = await self._reader.page(since, PAGE)
                known, self._server = self._server, page.server
                found = page.lines
                if found is None or known not in (None, page.server):
                    yield None
                    return
                if listening is None:  # not before the server has answered: while it is down, one who tries is enough
                    listening = asyncio.get_running_loop().create_task(self._listen())
                if found:
                    since, pause_s = found[-1].revision, SHORTEST_S
                    yield found
                    continue
                pause_s = LOOK_AGAIN_S if self.listens else min(2 * pause_s, LONGEST_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._news.wait()
        finally:
            if listening is not None:
                await self._end(listening)

    async def close(self) -> None:
        await self._reader.close()

    async def _end(self, listening: asyncio.Task[None]) -> None:
        """Let it end by itself: a driver that is cancelled may wait for the server, or leave a socket behind."""
        self._ending = True
        if self._connection is not None:
            cut(self._connection)
        if self._busy:
            await asyncio.wait({listening}, timeout=LOOK_AGAIN_S)
        listening.cancel()
        await asyncio.wait({listening})
        self._ending = False

    async def _listen(self) -> None:
        """Have every notification wake us. Where none can come, or while none can, what is new is asked for."""
        while not self._ending:
            self._busy = True
            try:
                self._connection = await self._connect()
                if self._ending:
                    return
                if not await is_direct(self._connection):
                    self.is_pooled = True
                    return
                await self._hear(self._connection)
            except (psycopg.Error, OSError, Unavailable) as error:
                if not self._ending:
                    log.warning("no notifications, so changes are polled: %s", in_one_line(error))
            finally:
                self._busy = self.listens = False
                if self._connection is not None:
                    self._connection.pgconn.finish()
                    self._connection = None
            if not self._ending:
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _hear(self, connection: Connection) -> None:
        await connection.execute(SQL("LISTEN {}").format(Identifier(self._statements.channel)))
        await self._reader.notify()
        async for _ in connection.notifies(timeout=PROBE_WITHIN_S, stop_after=1):
            self.listens = True
        if not self.listens:
            raise Unavailable("a notification that was sent did not arrive")
        self._news.set()
        async for _ in connection.notifies():
            self._news.set()
