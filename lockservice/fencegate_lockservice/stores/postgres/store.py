"""Locks in PostgreSQL: a group of commits is one call of one function, judged and written where the data is.

No connection has state of its own, so a transaction-pooling proxy may stand in between. The time is the server's.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence

import psycopg

from fencegate.clock import Clock
from fencegate.core.ports import Capabilities, Change, Changes, Entry, Finding, Interval, Unavailable
from fencegate_lockservice.stores.following import Following
from fencegate_lockservice.stores.grouping import Groups
from fencegate_lockservice.stores.postgres import server as postgres_server
from fencegate_lockservice.stores.postgres.group import Commit
from fencegate_lockservice.stores.postgres.link import Connection, Link, in_one_line
from fencegate_lockservice.stores.postgres.reader import Reader
from fencegate_lockservice.stores.postgres.reading import Statements
from fencegate_lockservice.stores.postgres.tail import Tail
from fencegate_lockservice.stores.postgres.url import Target, parse_url
from fencegate_lockservice.stores.postgres.writer import Writer
from fencegate_lockservice.stores.server_time import ServerTime

AT_ONCE = 2
"""While one group is flushed, the next is judged."""
PULSE_S = 5.0

log = logging.getLogger("fencegate.store.postgresql")


def make_store(url: str, clock: Clock) -> "PostgresStore":
    return PostgresStore(parse_url(url), clock)


class PostgresStore:
    """See the head of this file. Used in the event loop that opened it."""

    name = "postgresql"
    capabilities = Capabilities()

    def __init__(self, target: Target, clock: Clock) -> None:
        self._target = target
        self._clock = clock
        self._time = ServerTime(clock, target.server)
        self._closed = False
        self._pulse: asyncio.Task[None] | None = None
        self._statements = Statements()
        self._links = [self._link() for _ in range(AT_ONCE + 2)]
        tail_link, reader_link, *writer_links = self._links
        self._tail = Tail(self._connect, Reader(tail_link, self._statements), self._statements)
        self._reader = Reader(reader_link, self._statements)
        self._writer = Writer(writer_links, self._statements, self._tail.tell)
        self._following = Following(self._tail.lines, self._reader.newest, self._reader.read_log)

    def _link(self) -> Link:
        return Link(self._connect, self._target.server, self._time, self._clock, self._silent)

    def _silent(self) -> None:
        """One connection got no answer: the others would not either, and need not wait as long to know."""
        for link in self._links:
            link.suspect()

    async def _connect(self) -> Connection:
        return await postgres_server.connect(self._target)

    # --- the contract ---

    async def open(self) -> None:
        await postgres_server.prepare(self._target, self._statements)
        try:
            async with asyncio.timeout(postgres_server.OPEN_WITHIN_S):
                for link in self._links:
                    await link.open()
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise Unavailable(f"{self._target.server} can't be reached: {in_one_line(error)}") from None
        self._pulse = asyncio.get_running_loop().create_task(self._keep_time())

    async def _keep_time(self) -> None:
        """What is known of the server's time wears out while nobody asks for anything."""
        while True:
            await asyncio.sleep(PULSE_S)
            if self._time.is_stale():
                try:
                    await self._reader.newest()
                except Unavailable as error:
                    log.debug("the server does not tell its time: %s", error)
                except Exception:  # it must go on, or the time would never be known again
                    log.exception("the server can't be asked for its time")

    async def inspect(self) -> Sequence[Finding]:
        return await postgres_server.inspect(self._target)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        return await self._reader.load(keys)

    def commit(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int
    ) -> "asyncio.Future[None]":
        try:
            return self._writer.add(Commit(changes, log, not_after_us))
        except Unavailable as error:
            return Groups.refuse(error)

    def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        return self._following.changes(since)

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        return await self._reader.scan(prefix, after, limit)

    def now(self) -> Interval:
        if self._closed:
            raise Unavailable("the store is closed")
        return self._time.now()

    async def close(self) -> None:
        self._closed = True
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.wait({self._pulse})
        await self._writer.close()
        await self._following.close()
        await self._reader.close()
        await self._tail.close()
