"""Who is to be renewed when: most locks are given back long before, and those never wake the thread.

A lease joins with the moment of its first renewal and leaves when it is released. Moments are rounded down to a tenth
of a second, so that many leases share one timer, and a timer is only set when it would be the next. To join and to
leave takes one step; when the timer rings, all who are there are looked at, ten times a second at most.
"""

import threading
from collections.abc import Callable

from fencegate.client.background import Background, background
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
        self._steps: dict[Life, int] = {}
        self._next: int | None = None
        """When the timer rings that will look at all who have joined; None when none will."""

    def join(self, life: Life) -> None:
        """Have it renewed from the first third of its time on, or looked at when it ends before that."""
        self._steps[life] = step = life._first_renewal_us() // _STEP_US
        # Looked at after it has joined: while the timer rings there is no next one.
        next_ = self._next
        if next_ is None or next_ > step:
            self._see_to(step, background())

    def leave(self, life: Life) -> None:
        self._steps.pop(life, None)

    def _see_to(self, step: int, thread: Background) -> None:
        with self._mutex:
            if self._next is not None and self._next <= step:
                return
            self._next = step
        thread.loop.call_soon_threadsafe(self._set, thread, step)

    def _set(self, thread: Background, step: int) -> None:
        delay_s = (step * _STEP_US - self._clock.monotonic_us()) / 1e6
        thread.loop.call_later(max(0.0, delay_s), self._ring, thread, step)

    def _ring(self, thread: Background, step: int) -> None:
        """In the thread: begin with all who are due."""
        now = self._clock.monotonic_us() // _STEP_US
        with self._mutex:
            if self._next != step:  # an earlier one came between, and has set a timer of its own
                return
            self._next = None
            joined = list(self._steps.items())
            due = [life for life, first in joined if first <= now]
            next_ = self._next = min((first for _, first in joined if first > now), default=None)
        if next_ is not None:
            self._set(thread, next_)
        for life in due:
            if self._steps.pop(life, None) is not None:  # else it has left meanwhile
                self._begin(life)
