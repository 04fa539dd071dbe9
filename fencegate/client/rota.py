"""Who is to be renewed when: most locks are given back long before, and those never wake the thread.

A lease joins with the moment of its first renewal and leaves when it is released. Moments are rounded down to a tenth
of a second, so that many leases share one timer, and a timer is only set when it would be the next.
"""

import threading
from collections.abc import Callable

from fencegate.client.background import Background
from fencegate.client.life import Life
from fencegate.clock import Clock

_STEP_US = 100_000

Begin = Callable[[Life], None]
"""Starts the renewals of a lease, in the thread."""


class Rota:
    """Belongs to one client. Safe to use from any thread, and from a signal handler in the middle of it."""

    def __init__(self, clock: Clock, begin: Begin) -> None:
        self._clock = clock
        self._begin = begin
        self._mutex = threading.RLock()
        self._due: dict[int, dict[Life, None]] = {}
        self._steps: dict[Life, int] = {}
        self._next: int | None = None

    def join(self, life: Life, thread: Background) -> None:
        """Have it renewed from the first third of its time on, or looked at when it ends before that."""
        step = min(life._started_us + int(life.ttl * 1e6) // 3, life._deadline_us) // _STEP_US
        with self._mutex:
            self._steps[life] = step
            lives = self._due.get(step)
            if lives is None:
                lives = self._due[step] = {}
            lives[life] = None
            if self._next is not None and self._next <= step:
                return
            self._next = step
        thread.loop.call_soon_threadsafe(self._set, thread, step)

    def leave(self, life: Life) -> None:
        with self._mutex:
            step = self._steps.pop(life, None)
            if step is None:
                return
            lives = self._due[step]
            del lives[life]
            if not lives:
                del self._due[step]

    def _set(self, thread: Background, step: int) -> None:
        delay_s = (step * _STEP_US - self._clock.monotonic_us()) / 1e6
        thread.loop.call_later(max(0.0, delay_s), self._ring, thread, step)

    def _ring(self, thread: Background, step: int) -> None:
        """In the thread: begin with all who are due."""
        now = self._clock.monotonic_us() // _STEP_US
        with self._mutex:
            if self._next != step:  # an earlier one came between, and has set a timer of its own
                return
            due = [life for due, lives in self._due.items() if due <= now for life in lives]
            for life in due:
                self.leave(life)
            self._next = min(self._due, default=None)
            next_ = self._next
        if next_ is not None:
            self._set(thread, next_)
        for life in due:
            self._begin(life)
