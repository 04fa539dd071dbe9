"""Locks in an etcd cluster: one transaction for many commits.

Where things lie, and what a commit compares, is told in `keys`; how commits go out in groups in `commits`;
the change log, which is etcd's own history, in `log`; what goes over the line in `grpc` and `proto`.
etcd has no clock that a commit could be judged by.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from fencegate.clock import Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Capabilities, Change, Changes, Entry, Finding, Interval, Landed, Unavailable
from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.client import NOT_ALLOWED, RANGE, TXN, Client
from fencegate_lockservice.stores.etcd.clock import ClockCheck
from fencegate_lockservice.stores.etcd.commits import Commits
from fencegate_lockservice.stores.etcd.inspect import inspect
from fencegate_lockservice.stores.etcd.keys import LAYOUT, Keys, unpacked
from fencegate_lockservice.stores.etcd.lines import Lines
from fencegate_lockservice.stores.etcd.log import Log
from fencegate_lockservice.stores.etcd.rights import check_rights
from fencegate_lockservice.stores.etcd.tending import Tending
from fencegate_lockservice.stores.etcd.url import Settings, parse
from fencegate_lockservice.stores.following import Following
from fencegate_lockservice.stores.landing import Landing, settle

OPEN_WITHIN_S = 10.0
CLOSE_WITHIN_S = 6.0
LOAD_AT_ONCE = 64


def make_store(url: str, clock: Clock) -> "EtcdStore":
    return EtcdStore(parse(url), clock)


class EtcdStore:
    """See the head of this file."""

    name = "etcd"
    capabilities = Capabilities(clock=False, max_value=1_000_000)

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._keys = Keys(settings.root)
        self._client = Client(settings, clock, self._keys.layout)
        self._clock_check = ClockCheck(clock)
        self._tending = Tending(self._client, self._keys, clock, self._clock_check, compact=settings.compact)
        lines = Lines(clock.random_id())
        self._commits = Commits(self._client, self._keys, lines, clock, self.load, self._tending.kept_until)
        self._log = Log(self._client, self._keys, lines)
        self._following = Following(self._log.tail, self._log.newest, self._log.read)

    async def open(self) -> None:
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                await check_rights(self._client, self._keys)
                await self._check_layout()
                await self._tending.check_clock()
        except TimeoutError:
            raise Unavailable(f"etcd did not answer within {OPEN_WITHIN_S:.0f} s") from None
        except Unavailable as error:
            if str(error).startswith(NOT_ALLOWED):
                raise UnsafeConfiguration(f"etcd refuses the user of the URL: {error}") from None
            raise
        self._tending.start()

    async def _check_layout(self) -> None:
        key = self._keys.layout
        body = proto.txn([proto.absent(key)], [proto.put(key, LAYOUT.encode())], [proto.read(key)])
        answer = await self._client.read(TXN, body, proto.txn_answer)  # it does no harm to say it twice
        found = answer.responses[0] if answer.responses else None
        if answer.succeeded or (isinstance(found, proto.Range) and [kv.value for kv in found.kvs] == [LAYOUT.encode()]):
            return
        raise UnsafeConfiguration(
            f"etcd holds a layout of Fencegate that this version does not know, under {key.decode()}:"
            " use the version that wrote it, or another root in the URL (etcd://…/ROOT)"
        )

    async def inspect(self) -> Sequence[Finding]:
        shows_clock = await self._tending.check_clock()
        return await inspect(self._client, compacts=self._settings.compact, shows_clock=shows_clock)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        try:
            asked = [proto.range_of(self._keys.place(key)[0]) for key in keys]
        except ValueError as error:
            raise Unavailable(f"the store can't take this: {error}") from None
        answers = await self._ask(asked)
        if len(answers) > 1:
            await self._make_one_moment(asked, answers)
        return {key: unpacked(found.kvs[0].value) for key, found in zip(keys, answers, strict=True) if found.kvs}

    async def _make_one_moment(self, asked: Sequence[bytes], answers: list[proto.Range]) -> None:
        """Look again at what may have been otherwise at the earliest moment of these: a commit may lie between two."""
        moment = min(found.revision for found in answers)
        later = [
            number
            for number, found in enumerate(answers)
            if found.revision > moment and not (found.kvs and found.kvs[0].mod_revision <= moment)
        ]
        for number, found in zip(later, await self._ask([asked[n] + proto.at(moment) for n in later]), strict=True):
            answers[number] = found

    async def _ask(self, asked: Sequence[bytes]) -> list[proto.Range]:
        # A range each, side by side on one connection. Not one transaction that only reads: etcd 3.5.1 was seen to
        # panic when the line is cut in the middle of one, and an etcd that is full refuses it.
        if len(asked) == 1:
            return [await self._client.read(RANGE, asked[0], proto.range_answer)]
        found: list[proto.Range] = []
        for start in range(0, len(asked), LOAD_AT_ONCE):
            ranges = [
                self._client.read(RANGE, message, proto.range_answer) for message in asked[start : start + LOAD_AT_ONCE]
            ]
            found += await asyncio.gather(*ranges)
        return found

    def commit(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int
    ) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.commit_then(changes, log, not_after_us, partial(settle, future))
        return future

    def commit_then(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int, landed: Landed
    ) -> None:
        self._commits.add(changes, log, not_after_us, Landing(landed))

    def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        return self._following.changes(since)

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        """What is there under other keys than its name is loaded then: a name without anything is a lock that went."""
        found: list[tuple[str, Entry]] = []
        while True:
            try:
                first, end = self._keys.scanned(prefix, after)
            except ValueError as error:
                raise Unavailable(f"the store can't take this: {error}") from None
            if first >= end:
                return found
            asked = proto.range_of(first, end, limit - len(found))
            page = await self._client.read(RANGE, asked, proto.range_answer)
            rows = [(self._keys.entry(kv.key), kv.value) for kv in page.kvs]
            locks = await self.load([key for key, value in rows if not value])
            found += [(key, unpacked(value) if value else locks[key]) for key, value in rows if value or key in locks]
            if len(found) >= limit or not page.more:
                return found
            after = rows[-1][0]

    def now(self) -> Interval | None:
        self._clock_check.check()
        return None

    async def close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._commits.close()
        await self._tending.close()
        await self._following.close()
        await self._log.close()
        await self._client.close()
        await self._commits.close()
