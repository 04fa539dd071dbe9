"""When leases and offers end: one heap and one timer for all locks, never a poll."""

import asyncio
import heapq
from collections.abc import Callable


class Alarms:
    """Calls `ring(lock_key)` at the time that was set for it, by `now_us`, or a little later.

    A lock has at most one place in the heap. One that is set to a later time keeps its place, and whoever is rung too
    early sets it again: so a lock that is taken and freed a thousand times in a lease costs one place, not a thousand.
    """

    def __init__(self, now_us: Callable[[], int], ring: Callable[[str], None]) -> None:
        self._now_us = now_us
        self._ring = ring
        self._heap: list[tuple[int, str]] = []
        self._set: dict[str, int] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._next_us = 0
        self._closed = False

    def set(self, lock_key: str, at_us: int) -> None:
        before = self._set.get(lock_key)
        if self._closed or (before is not None and before <= at_us):
            return
        self._set[lock_key] = at_us
        heapq.heappush(self._heap, (at_us, lock_key))
        if self._handle is None or at_us < self._next_us:
            self._arm()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap:
            self._next_us = self._heap[0][0]
            delay_s = max(0.0, (self._next_us - self._now_us()) / 1_000_000)
            self._handle = asyncio.get_running_loop().call_later(delay_s + 0.001, self._due)

    def _due(self) -> None:
        self._handle = None
        now_us = self._now_us()
        while self._heap and self._heap[0][0] <= now_us:
            at_us, lock_key = heapq.heappop(self._heap)
            if self._set.get(lock_key) == at_us:
                del self._set[lock_key]
                self._ring(lock_key)
        self._arm()

    def close(self) -> None:
        """Ring no more, whatever is still set by what was under way."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._heap.clear()
        self._set.clear()
