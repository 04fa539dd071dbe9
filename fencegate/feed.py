"""The change log as its followers see it: a tail in memory, a wake-up, and the store's own log for what lies before it.

A follower that is slow never holds up a commit: nothing is queued for it, it reads on from where it was.
"""

import asyncio
import contextlib
import threading
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from operator import attrgetter

from fencegate.core.ports import Changes, LogEntry, Unavailable

TAIL = 20_000
PAGE = 250
"""How much is read at once: whoever is slow holds on to that much."""

_revision = attrgetter("revision")

ReadLog = Callable[[int, int], Awaitable[Sequence[LogEntry] | None]]
"""Entries after a revision, at most so many, whole revisions only; None when they were compacted."""


class _Follower:
    __slots__ = ("epoch", "event", "loop")

    def __init__(self, epoch: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.event = asyncio.Event()
        self.epoch = epoch


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Feed:
    """Published to by whoever commits, on any thread; followed from any event loop."""

    def __init__(self, revision: int, read_log: ReadLog) -> None:
        self._lock = threading.Lock()
        self._read_log = read_log
        self._tail: list[LogEntry] = []
        self._before_tail = revision
        self._revision = revision
        self._epoch = 0
        self._highest = revision
        self._of_the_past = -1
        """Up to here a revision may be one of an earlier epoch, and means nothing in this one."""
        self._asleep: set[_Follower] = set()
        self._closed = False

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
            if len(self._tail) > TAIL + TAIL // 4:  # in strides, since the front of a list is dear to cut
                self._before_tail = self._tail[-TAIL - 1].revision
                del self._tail[:-TAIL]
            woken, self._asleep = self._asleep, set()
        self._call(woken)

    def lost(self, revision: int, *, reset: bool = False) -> None:
        """Lines up to `revision` may have been committed without being published here: the log has them.

        With `reset` it has not, or has become another log: whoever follows already, or comes from before, is told so.
        """
        with self._lock:
            self._highest = max(self._highest, self._revision)
            if reset:
                self._epoch += 1
                self._of_the_past = max(self._highest, revision - 1)
            if reset or revision != self._revision:
                self._tail.clear()
                self._before_tail = self._revision = revision
            woken, self._asleep = self._asleep, set()
        self._call(woken)

    def close(self) -> None:
        """Nothing more will come: whoever follows is told so, by Unavailable."""
        with self._lock:
            self._closed = True
            woken, self._asleep = self._asleep, set()
        self._call(woken)

    @staticmethod
    def _call(followers: set[_Follower]) -> None:
        if not followers:
            return
        here = _running_loop()
        for follower in followers:
            if follower.loop is here:  # no need to wake the loop that we are in
                follower.event.set()
                continue
            with contextlib.suppress(RuntimeError):  # its loop was closed under it
                follower.loop.call_soon_threadsafe(follower.event.set)

    async def follow(self, since: int | None) -> AsyncGenerator[Changes, None]:
        """What `Store.changes` promises."""
        with self._lock:
            known = self._revision if since is None else since
            is_past = since is not None and since <= self._of_the_past
            follower = _Follower(self._epoch - 1 if is_past else self._epoch)
        told = False
        try:
            while True:
                changes = await self._after(known, follower)
                if changes is not None:
                    known = changes.revision
                elif told:
                    await follower.event.wait()
                    follower.event.clear()
                    continue
                told = True
                yield changes or Changes(known)
        finally:
            with self._lock:
                self._asleep.discard(follower)

    async def _after(self, known: int, follower: _Follower) -> Changes | None:
        """The next batch, whole revisions only; None when there is none, and then the follower will be woken."""
        with self._lock:
            if self._closed:
                raise Unavailable("the store is closed")
            revision = self._revision
            if follower.epoch != self._epoch:
                follower.epoch = self._epoch
                return Changes(revision, reset=True)
            if known == revision:
                self._asleep.add(follower)
                return None
            if known > revision:
                return Changes(revision, reset=True)
            entries = self._page(known) if known >= self._before_tail else None
        found = entries if entries is not None else await self._read_log(known, PAGE)
        if found is None:
            return Changes(revision, reset=True)
        return Changes(found[-1].revision if found else revision, found)

    def _page(self, known: int) -> Sequence[LogEntry]:
        first = bisect_right(self._tail, known, key=_revision)
        end = first + PAGE
        if end < len(self._tail):
            end = bisect_right(self._tail, self._tail[end - 1].revision, lo=end - 1, key=_revision)
        return self._tail[first:end]
