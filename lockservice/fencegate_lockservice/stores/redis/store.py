"""Locks in Redis or Valkey: a commit is one Lua script, which compares, writes and appends to a stream.

Entries are strings under names that a person can read (`lock:orders:7`): the version, a line feed, the value. Beside
them is an index of the keys, and one of those that are kept for a time. Commits of all callers share one pipelined
connection; a second one waits for the change log.
"""

from asyncio import Future, get_running_loop
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any

import hiredis

from fencegate.clock import SYSTEM, Clock
from fencegate.core.model import DONE
from fencegate.core.ports import (
    Capabilities,
    Change,
    Changes,
    Conflict,
    Entry,
    Finding,
    Interval,
    Landed,
    LogEntry,
    TooLate,
    Unavailable,
)
from fencegate_lockservice.stores.following import Following
from fencegate_lockservice.stores.landing import settle
from fencegate_lockservice.stores.redis import log as redis_log
from fencegate_lockservice.stores.redis import settings as redis_settings
from fencegate_lockservice.stores.redis.line import Asked
from fencegate_lockservice.stores.redis.script import USED_BY_OTHERS
from fencegate_lockservice.stores.redis.server import Server
from fencegate_lockservice.stores.redis.tail import Tail
from fencegate_lockservice.stores.redis.url import Address, parse

NOTES = (
    "as durable as the server: a crash without appendfsync always, or a failover, may forget the last commits",
    "after such a loss tokens still rise as long as the servers' clocks agree; fence the resource",
    "the change log holds the last 100 000 commits",
)


UNLISTED = DONE
"""What became of a request is asked for by its name: no scan has to find it, and most of what is kept is that."""


BULK = b"$%d\r\n%b\r\n"
THREE, FOUR, FIVE = BULK * 3, BULK * 4, BULK * 5
"""Arguments of a command as they are sent: the size of each, and itself. (To fill in a form of so many takes a fifth
less time than to have hiredis pack them, and commits are most of what is sent.)"""
COMMON = 6
"""So many come before the changes of a commit."""


class RedisStore:
    """See the head of this file."""

    name = "redis"
    capabilities = Capabilities(lists_settled=False, notes=NOTES)

    def __init__(self, address: Address, clock: Clock = SYSTEM) -> None:
        self._address = address
        self._server = Server(address, clock)
        writer = clock.random_id(4)
        same = ("EVALSHA", self._server.scripts.commit.sha, "0", writer)
        self._head = b"*%d\r\n" + b"".join(BULK % (len(part), part.encode()) for part in same) + BULK + BULK
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
        await self._server.close()

    def now(self) -> Interval:
        return self._server.time.now()

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

    def commit_then(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int, landed: Landed
    ) -> None:
        line = self._server.line
        try:
            if line is None:
                raise Unavailable(self._server.why)
            packed = self._packed(changes, log, not_after_us)
        except Unavailable as error:
            get_running_loop().call_soon(landed, error)
        except ValueError as error:
            get_running_loop().call_soon(landed, Unavailable(f"the store can't take this: {error}"))
        else:
            line.tell(packed, landed, self._hear_commit)

    def _packed(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> bytes:
        """A commit as a command: see commit.lua."""
        packed, count = [b""], COMMON
        for key, expected, version, value, compare_only, keep_until_us in changes:
            name, compared = key.encode(), b"%b\n" % expected.encode() if expected else b""
            if compare_only or value is None:
                packed.append(THREE % (len(name), name, len(compared), compared, 1, b"=" if compare_only else b"-"))
                count += 3
                continue
            written = b"%b\n%b" % (version.encode(), value)
            how = b"+" if keep_until_us is None else b"%d" % -(-keep_until_us // 1000)
            if keep_until_us is None or not key.startswith(UNLISTED):
                fields = (len(name), name, len(compared), compared, len(how), how, len(written), written)
                packed.append(FOUR % fields)
                count += 4
            else:
                kept = (len(name), name, len(compared), compared, 1, b"~", len(written), written, len(how), how)
                packed.append(FIVE % kept)
                count += 5
        not_after, lines = b"%d" % not_after_us, redis_log.encode(log)
        packed[0] = self._head % (count, len(not_after), not_after, len(lines), lines)
        return b"".join(packed)

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
        rows = await self._server.run(self._server.scripts.lines, since, limit)
        return None if rows is None else redis_log.decode(rows)


def make_store(url: str, clock: Clock = SYSTEM) -> RedisStore:
    """The store behind redis://HOST:PORT/DB, or rediss:// for TLS; see `url` for what else a URL may say."""
    return RedisStore(parse(url), clock)
