"""What a replica does beside its commits: forget what is past its time, compact the history, compare the clocks.

What is kept until a time is named by keys in the order of those times (see `keys`). It is removed in small steps, on
condition that the entry is still of that version, by whichever replica comes by: the clock that tells is the
replica's, and who is late only forgets later.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fencegate.clock import Clock
from fencegate.core.ports import Ambiguous, Unavailable
from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.client import COMPACT, RANGE, TXN, Client
from fencegate_lockservice.stores.etcd.clock import ClockCheck
from fencegate_lockservice.stores.etcd.keys import Keys, kept_entries

PAGE = 16
AT_ONCE = 60
LOOK_EVERY_US = 60_000_000
PAUSE_S = 0.1
KEEP_REVISIONS = 100_000
KEEP_US = 3_600_000_000
COMPACT_EVERY_S = 60.0
CLOCK_EVERY_S = 5.0

log = logging.getLogger("fencegate.store.etcd")


class Tending:
    """Jobs in the background, from `start` to `close`."""

    def __init__(self, client: Client, keys: Keys, clock: Clock, clock_check: ClockCheck, *, compact: bool) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock
        self._clock_check = clock_check
        self._compact = compact
        self.look_us = 0
        self._sooner = asyncio.Event()
        self._after = b""
        self._from_start_us = 0
        self._jobs: list[asyncio.Task[None]] = []
        self._stood: deque[tuple[int, int]] = deque()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._jobs.append(loop.create_task(self._again_and_again(self._forget)))
        self._jobs.append(loop.create_task(self._again_and_again(self._watch_clock)))
        if self._compact:
            self._jobs.append(loop.create_task(self._again_and_again(self._compact_some)))

    def kept_until(self, keep_until_us: int) -> None:
        """Something will be past its time then."""
        if keep_until_us < self.look_us:
            self.look_us = keep_until_us
            self._sooner.set()

    async def close(self) -> None:
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)

    async def _again_and_again(self, job: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await job()
            except (Unavailable, Ambiguous) as error:
                log.debug("etcd can't be tended: %s", error)
                await asyncio.sleep(1 + self._clock.jitter())
            except Exception:  # it must not end, or etcd would fill up
                log.exception("etcd can't be tended")
                await asyncio.sleep(5 + self._clock.jitter())

    # --- the clocks ---

    async def check_clock(self) -> bool:
        """Ask the first member that shows its clock; whether there is one."""
        for endpoint in self._client.endpoints:
            if endpoint.trouble is None and await self._clock_check.ask(endpoint):
                return True
        return False

    async def _watch_clock(self) -> None:
        await asyncio.sleep(CLOCK_EVERY_S * (0.5 + self._clock.jitter()))
        await self.check_clock()

    # --- forgetting ---

    async def _forget(self) -> None:
        """Remove all that is past its time now; then wait until something is. Unavailable when our clock is off: what
        it calls past would be lost to all replicas."""
        self._clock_check.check()
        now_us = self._clock.now_us()
        self.look_us = now_us + LOOK_EVERY_US
        if now_us > self._from_start_us:
            # In between it goes on from where it was: etcd steps over each key that was removed, until it is compacted.
            self._after, self._from_start_us = b"", now_us + LOOK_EVERY_US
        while await self._forget_some(now_us):
            pass
        await asyncio.sleep(PAUSE_S * (1 + self._clock.jitter()))
        while (wait_us := self.look_us - self._clock.now_us()) > 0:
            self._sooner.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_us / 1_000_000):
                    await self._sooner.wait()

    async def _forget_some(self, now_us: int) -> bool:
        """One step; whether there may be more."""
        first, end = self._keys.kept_range(self._after)
        found = (await self._client.read(RANGE, proto.range_of(first, end, PAGE), proto.range_answer)).kvs
        removals: list[bytes] = []
        after = self._after
        for kv in found:
            until_us = self._keys.kept_until_us(kv.key)
            if until_us > now_us:
                self.kept_until(until_us)
                break
            removals += [self._removal(entry, version) for entry, version in kept_entries(kv.value)]
            removals.append(proto.delete(kv.key))  # with the last of its entries, or later
            after = kv.key
        if not removals:
            return False
        for start in range(0, len(removals), AT_ONCE):
            body = proto.txn([proto.absent(self._keys.gate)], removals[start : start + AT_ONCE])
            if not await self._client.write(TXN, body, proto.succeeded):
                await asyncio.sleep(PAUSE_S)  # somebody has closed the gate (see `commits`)
                return True
        self._after = after
        return True

    def _removal(self, entry: str, version: str) -> bytes:
        key, name = self._keys.place(entry)
        removed = [proto.delete(key)] if name is None else [proto.delete(key), proto.delete(name)]
        return proto.nested([proto.starts_with_line(key, version.encode())], removed)

    # --- compacting ---

    async def _compact_some(self) -> None:
        """Keep an hour of history, and no more than so many revisions."""
        found = await self._client.read(RANGE, proto.range_of(self._keys.layout), proto.range_answer)
        now_us, revision = self._clock.monotonic_us(), found.revision
        if self._stood and revision < self._stood[-1][1]:
            self._stood.clear()  # etcd was restored
        self._stood.append((now_us, revision))
        while self._stood[0][0] < now_us - KEEP_US and len(self._stood) > 1 and self._stood[1][0] <= now_us - KEEP_US:
            self._stood.popleft()
        an_hour_ago = self._stood[0][1] if self._stood[0][0] <= now_us - KEEP_US else 0
        target = max(an_hour_ago, revision - KEEP_REVISIONS)
        if target > 0:
            with suppress(Unavailable, Ambiguous):  # another replica was faster
                await self._client.write(COMPACT, proto.compaction(target), proto.nothing)
        await asyncio.sleep(COMPACT_EVERY_S * (1 + self._clock.jitter()))
