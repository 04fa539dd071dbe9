"""Locks in the memory of this process: for tests, and for trying things out. Nothing survives a restart."""

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice

from fencegate.clock import SYSTEM, Clock
from fencegate.core.ports import Capabilities, Change, Changes, Conflict, Entry, Finding, Interval, LogEntry, TooLate
from fencegate.feed import Feed


class MemoryStore:
    """A dictionary under a mutex. Any number of engines in this process may share it."""

    name = "memory"
    capabilities = Capabilities(several_processes=False, durable=False, notes=("gone when the process ends",))

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._order: list[bytes] = []
        self._keep: dict[str, int] = {}
        self._times: list[tuple[int, str]] = []
        self._feed = Feed(0, self._read_log)

    async def open(self) -> None:
        """It is there."""

    async def inspect(self) -> Sequence[Finding]:
        return [Finding("warning", "locks are gone when the process ends", "use it to try things out")]

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        with self._mutex:
            return {key: self._entries[key] for key in keys if key in self._entries}

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        with self._mutex:
            now_us = self._clock.now_us()
            if now_us > not_after_us:
                raise TooLate
            for change in changes:
                entry = self._entries.get(change.key)
                if (entry.version if entry else None) != change.expected:
                    raise Conflict
            for change in changes:
                if not change.compare_only:
                    self._write(change)
            self._forget(now_us, 8 + 2 * len(changes))
            if log:
                revision = self._feed.revision + 1
                self._feed.publish([LogEntry(revision, index, key, event) for index, (key, event) in enumerate(log)])

    def _write(self, change: Change) -> None:
        key = change.key
        if change.value is None:
            self._remove(key)
            return
        if key not in self._entries:
            insort(self._order, key.encode())
        self._entries[key] = Entry(change.version, change.value)
        self._keep.pop(key, None)
        if change.keep_until_us is not None:
            self._keep[key] = change.keep_until_us
            heappush(self._times, (change.keep_until_us, key))

    def _remove(self, key: str) -> None:
        if self._entries.pop(key, None) is not None:
            del self._order[bisect_right(self._order, key.encode()) - 1]
        self._keep.pop(key, None)

    def _forget(self, now_us: int, at_most: int) -> None:
        """Drop some entries past their time: more than one commit brings, so that they don't pile up."""
        for _ in range(at_most):
            if not self._times or self._times[0][0] > now_us:
                return
            keep_until_us, key = heappop(self._times)
            if self._keep.get(key) == keep_until_us:  # it may have been written anew since
                self._remove(key)

    def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        return self._feed.follow(since)

    async def _read_log(self, _since: int, _limit: int) -> None:
        """What has left the tail is compacted: there is no other log."""

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        with self._mutex:
            first = prefix.encode()
            start = max(bisect_left(self._order, first), bisect_right(self._order, after.encode()) if after else 0)
            found = []
            for raw in islice(self._order, start, start + limit):
                if not raw.startswith(first):
                    break
                key = raw.decode()
                found.append((key, self._entries[key]))
            return found

    def now(self) -> Interval:
        now_us = self._clock.now_us()
        return Interval(now_us, now_us)

    async def close(self) -> None:
        """Nothing to let go of."""
