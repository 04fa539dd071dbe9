"""The change log as its followers see it: a tail in memory, a wake-up, and the store's own log for what lies before it.

A follower that is slow never holds up a commit: nothing is queued for it, it reads on from where it was.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from fencegate.core.ports import Changes, LogEntry
from fencegate.loop import running_loop

TAIL = 20_000
PAGE = 1_000

ReadLog = Callable[[int, int], Awaitable[Sequence[LogEntry] | None]]
"""Entries after a revision, at most so many, whole revisions only; None when they were compacted."""


class _Follower:
    __slots__ = ("event", "loop", "woken")

    def __init__(self) -> None:
        self.loop = running_loop()
        self.event = asyncio.Event()
        self.woken = False


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return running_loop()
    except RuntimeError:
        return None


class Feed:
    """Published to by whoever commits, on any thread; followed from any event loop."""

    def __init__(self, revision: int, read_log: ReadLog) -> None:
        self._lock = threading.Lock()
        self._read_log = read_log
        self._tail: deque[LogEntry] = deque()
        self._before_tail = revision
        self._revision = revision
        self._followers: set[_Follower] = set()

    @property
    def revision(self) -> int:
        return self._revision

    def publish(self, entries: Sequence[LogEntry]) -> None:
        """Append what was committed, in order, and wake who follows."""
        if not entries:
            return
        with self._lock:
            self._tail.extend(entries)
            self._revision = entries[-1].revision
            while len(self._tail) > TAIL:
                self._before_tail = self._tail.popleft().revision
            sleeping = [follower for follower in self._followers if not follower.woken]
            for follower in sleeping:
                follower.woken = True
        self._call(sleeping)

    def lost(self, revision: int) -> None:
        """Lines up to `revision` may have been committed without being published here: the log has them."""
        with self._lock:
            if revision != self._revision:
                self._tail.clear()
                self._before_tail = self._revision = revision
            sleeping = [follower for follower in self._followers if not follower.woken]
            for follower in sleeping:
                follower.woken = True
        self._call(sleeping)

    def _call(self, followers: Sequence[_Follower]) -> None:
        here = _running_loop()
        for follower in followers:
            try:
                if follower.loop is here:  # no need to wake the loop that we are in
                    follower.event.set()
                else:
                    follower.loop.call_soon_threadsafe(follower.event.set)
            except RuntimeError:  # its loop was closed under it
                self._forget(follower)

    def _forget(self, follower: _Follower) -> None:
        with self._lock:
            self._followers.discard(follower)

    async def follow(self, since: int | None) -> AsyncIterator[Changes]:
        """Everything after `since` (None: from now on), in batches, for ever."""
        follower = _Follower()
        with self._lock:
            self._followers.add(follower)
            known = self._revision if since is None else since
        try:
            while True:
                changes = await self._after(known)
                if changes is None:
                    await follower.event.wait()
                    with self._lock:
                        follower.woken = False
                        follower.event.clear()
                    continue
                known = changes.revision
                yield changes
        finally:
            self._forget(follower)

    async def _after(self, known: int) -> Changes | None:
        with self._lock:
            revision = self._revision
            if known == revision:
                return None
            if known > revision:
                return Changes(revision, reset=True)
            entries: list[LogEntry] | None = None
            if known >= self._before_tail:
                entries = []
                for entry in reversed(self._tail):
                    if entry.revision <= known:
                        break
                    entries.append(entry)
                entries.reverse()
        found = entries if entries is not None else await self._read_log(known, PAGE)
        if found is None:
            return Changes(revision, reset=True)
        return Changes(found[-1].revision if found else revision, found)
