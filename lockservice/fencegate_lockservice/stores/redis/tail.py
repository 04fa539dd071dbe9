"""The newest lines of the change log in Redis, as they come, on a connection of its own."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import hiredis

from fencegate.core.ports import LogEntry, Unavailable
from fencegate_lockservice.stores.redis import log as redis_log
from fencegate_lockservice.stores.redis.line import Line
from fencegate_lockservice.stores.redis.server import Server

BLOCK_MS = 1000
COUNT = 1000
REST_FIRST_S, REST_MOST_S = 0.0005, 0.005


class Tail:
    """Lines after a revision. `writer` is what our own commits are marked with."""

    def __init__(self, server: Server, writer: str) -> None:
        self._server = server
        self._writer = writer.encode()
        self._log = f"{server.address.prefix}fencegate-log"
        self._line: Line | None = None
        self._reign: bytes | None = None

    async def follow(self, since: int) -> AsyncIterator[Sequence[LogEntry] | None]:
        """What `Following` wants of a tail."""
        await self._server.up.wait()
        self._line = line = await self._server.dial()
        try:
            reign = await self._server.enter()
            last, self._reign = self._reign, reign.id
            if since < reign.began or last not in (None, reign.id):
                yield None
                return
            rest_s = 0.0
            while True:
                rows = await self._read(line, since)
                now = self._server.reign
                if rows is None or redis_log.has_break(rows) or (now is not None and now.id != reign.id):
                    yield None
                    now = self._server.reign  # as it was asked for since: who follows need not be told of it twice
                    self._reign = now.id if now is not None else None
                    return
                if not rows:
                    continue
                since = redis_log.revision_of(rows[-1])
                yield redis_log.decode(rows)
                rest_s = self._rest_s(rows, rest_s)
                if rest_s:
                    await asyncio.sleep(rest_s)
        except hiredis.ReplyError as error:
            raise Unavailable(f"{self._server.address}: {error}") from None
        finally:
            await line.hang_up()

    def _rest_s(self, rows: Sequence[redis_log.Row], last_s: float) -> float:
        """How long to gather before reading on. While nobody but us writes, nobody waits for what is in there; each
        read costs as much as a commit."""
        if any(row[1][0] != self._writer for row in rows):
            return 0.0
        return min(REST_MOST_S, max(REST_FIRST_S, 2 * last_s))

    async def _read(self, line: Line, since: int) -> list[redis_log.Row] | None:
        """Lines after a revision, waiting for them; None when some of them were trimmed.

        The oldest line is asked for in the same breath, afterwards: what is still there then was there before.
        """
        reading = line.call("XREAD", "COUNT", COUNT, "BLOCK", BLOCK_MS, "STREAMS", self._log, f"{since}-0")
        found, oldest = await asyncio.gather(reading, line.call("XRANGE", self._log, "-", "+", "COUNT", 1))
        if not oldest or redis_log.revision_of(oldest[0]) > since:
            return None
        return found[0][1] if found else []

    async def close(self) -> None:
        if self._line is not None:
            await self._line.hang_up()
