"""Locks in Redis or Valkey: a commit is one Lua script, which compares, writes and appends to a stream.

Entries are hashes under names that a person can read (`lock:orders:7`), beside an index of all keys and one of those
that are kept for a time. Commits of all callers share one pipelined connection; a second one waits for the change log.
"""

from asyncio import Future
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import hiredis

from fencegate.clock import SYSTEM, Clock
from fencegate.core.ports import (
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
from fencegate.loop import running_loop
from fencegate_lockservice.stores.following import Following
from fencegate_lockservice.stores.redis import log as redis_log
from fencegate_lockservice.stores.redis import settings as redis_settings
from fencegate_lockservice.stores.redis.line import Asked, pack
from fencegate_lockservice.stores.redis.script import COMMIT, LINES, LOAD, SCAN
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
    capabilities = Capabilities(notes=NOTES)

    def __init__(self, address: Address, clock: Clock = SYSTEM) -> None:
        self._address = address
        self._server = Server(address, clock)
        self._writer = clock.random_id(4)
        self._tail = Tail(self._server, self._writer)
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
        await self._server.close()

    def now(self) -> Interval:
        return self._server.time.now()

    # --- entries ---

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        _, *found = await self._server.run(LOAD, *keys)
        pairs = zip(keys, found[::2], found[1::2], strict=True)
        return {key: Entry(version.decode(), value) for key, version, value in pairs if version is not None}

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        lowest = f"({after}" if after.encode() >= prefix.encode() and after else f"[{prefix}"
        highest = b"(" + prefix.encode() + b"\xff"  # above every key with this prefix: no UTF-8 holds that byte
        _, *found = await self._server.run(SCAN, lowest, highest, limit)
        rows = zip(found[::3], found[1::3], found[2::3], strict=True)
        return [(key.decode(), Entry(version.decode(), value)) for key, version, value in rows]

    def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> Future[None]:
        future: Future[None] = running_loop().create_future()
        line = self._server.line
        if line is None:
            future.set_exception(Unavailable(self._server.why))
            return future
        try:
            packed = self._packed(changes, log, not_after_us)
        except ValueError as error:
            future.set_exception(Unavailable(f"the store can't take this: {error}"))
            return future
        line.ask(packed, future, self._hear_commit, writes=True)
        return future

    def _packed(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> bytes:
        """A commit as a command: see commit.lua."""
        command: list[str | bytes | int] = ["EVALSHA", COMMIT.sha, 0, self._address.prefix]
        command += (not_after_us, self._writer, redis_log.encode(log))
        for key, expected, version, value, compare_only, keep_until_us in changes:
            if compare_only:
                command += (key, expected or "", "=")
            elif value is None:
                command += (key, expected or "", "-")
            else:
                command += (key, expected or "", "+" if keep_until_us is None else keep_until_us, version, value)
        return pack(tuple(command))

    def _hear_commit(self, asked: Asked, answer: Any) -> None:
        if type(answer) is int:
            self._server.heard(asked, abs(answer))
            if answer > 0:
                asked.done()
            else:
                asked.failed(Conflict())
        elif isinstance(answer, hiredis.ReplyError):
            self._server.refused(asked, answer)
        elif answer[0] == b"late":
            self._server.heard(asked, answer[1])
            asked.failed(TooLate())
        else:  # everything is gone, also what the comparisons rest on
            self._server.begin_anew()
            asked.failed(Conflict())

    # --- the change log ---

    def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        return self._following.changes(since)

    async def _newest(self) -> int:
        return (await self._server.enter()).newest

    async def _read_log(self, since: int, limit: int) -> Sequence[LogEntry] | None:
        rows = await self._server.run(LINES, since, limit)
        return None if rows is None else redis_log.decode(rows)


def make_store(url: str, clock: Clock = SYSTEM) -> RedisStore:
    """The store behind redis://HOST:PORT/DB, or rediss:// for TLS; see `url` for what else a URL may say."""
    return RedisStore(parse(url), clock)
