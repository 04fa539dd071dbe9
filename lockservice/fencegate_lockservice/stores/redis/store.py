"""Locks in Redis or Valkey: a Lua script compares, writes and appends to a stream, for all commits of one turn.

Entries are strings under names that a person can read (`lock:orders:7`): the version, a line feed, the value. Beside
them is an index of the keys, and one of those that are kept for a time. Commits of all callers share one pipelined
connection; a second one waits for the change log.
"""

from asyncio import Future, get_running_loop
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial

from fencegate.clock import SYSTEM, Clock
from fencegate.core.ports import (
    Capabilities,
    Change,
    Changes,
    Entry,
    Finding,
    Interval,
    LogEntry,
    Unavailable,
)
from fencegate_lockservice.stores.following import Following
from fencegate_lockservice.stores.landing import settle
from fencegate_lockservice.stores.redis import log as redis_log
from fencegate_lockservice.stores.redis import settings as redis_settings
from fencegate_lockservice.stores.redis.commits import Commits
from fencegate_lockservice.stores.redis.script import USED_BY_OTHERS
from fencegate_lockservice.stores.redis.server import Server
from fencegate_lockservice.stores.redis.tail import Tail
from fencegate_lockservice.stores.redis.url import Address, parse

NOTES = (
    "as durable as the server: a crash without appendfsync always, or a failover, may forget the last commits",
    "after such a loss tokens still rise as long as the servers' clocks agree; fence the resource",
    "the change log holds the last 100 000 commits",
)


class RedisStore:
    """See the head of this file."""

    name = "redis"
    capabilities = Capabilities(lists_settled=False, notes=NOTES)

    def __init__(self, address: Address, clock: Clock = SYSTEM) -> None:
        self._address = address
        self._server = Server(address, clock)
        self.now: Callable[[], Interval] = self._server.time.now
        writer = clock.random_id(4)
        self._commits = Commits(self._server, clock, writer)
        self.commit_then = self._commits.add
        self._tail = Tail(self._server, writer)
        self._following = Following(self._tail.follow, self._newest, self._read_log)

    async def open(self) -> None:
        await self._server.open()

    async def inspect(self) -> Sequence[Finding]:
        line = self._server.line
        if line is None:
            raise Unavailable(self._server.why)
        return await redis_settings.look(line)

    async def close(self) -> None:
        await self._following.close()
        await self._tail.close()
        self._commits.go()
        await self._server.close()

    # --- entries ---

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        _, *found = await self._server.run(self._server.scripts.load, *keys)
        return {key: self._read(key, raw) for key, raw in zip(keys, found, strict=True) if raw is not None}

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        lowest = f"({after}" if after.encode() >= prefix.encode() and after else f"[{prefix}"
        highest = b"(" + prefix.encode() + b"\xff"  # above every key with this prefix: no UTF-8 holds that byte
        _, *found = await self._server.run(self._server.scripts.scan, lowest, highest, limit)
        return [(key.decode(), self._read(key, raw)) for key, raw in zip(found[::2], found[1::2], strict=True)]

    def _read(self, key: str | bytes, raw: bytes) -> Entry:
        version, line_feed, value = raw.partition(b"\n")
        if not line_feed:
            raise Unavailable(f"{self._address}: {key!r} is used by others: {USED_BY_OTHERS}")
        return Entry(version.decode(), value)

    def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> Future[None]:
        future: Future[None] = get_running_loop().create_future()
        self.commit_then(changes, log, not_after_us, partial(settle, future))
        return future

    # --- the change log ---

    def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        return self._following.changes(since)

    async def _newest(self) -> int:
        return (await self._server.enter()).newest

    async def _read_log(self, since: int, limit: int) -> Sequence[LogEntry] | None:
        rows = await self._server.run(self._server.scripts.lines, since, limit)
        return None if rows is None else redis_log.decode(rows)


def make_store(url: str, clock: Clock = SYSTEM) -> RedisStore:
    """The store behind redis://HOST:PORT/DB, or rediss:// for TLS; see `url` for what else a URL may say."""
    return RedisStore(parse(url), clock)
