"""Staying awake for an answer that is about to come.

To put the event loop to sleep and to wake it takes as long as a Redis nearby needs for its answer. So the loop goes on
turning for a moment, and does whatever else there is to do: for who asks again and again. Where the answers come later
than that, from a server far away or on a busy machine, or more is asked for meanwhile, it is seldom tried; with one
processor never, since then the server might wait for us.
"""

import os
from collections.abc import Callable, Sized

from fencegate.clock import Clock

AWAKE_US = 300
BRISK_US = 1000
"""Whoever has not asked for so long was asleep already, and so was the server."""
SELDOM = 127
"""It is tried again behind so many at the latest."""

_PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Awake:
    """While one answer is awaited, and no other behind it, but not for long; `call_soon` is that of the loop."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], clock: Clock, awaited: Sized) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._awaited = awaited
        self._turning = False
        self._asked_us = 0
        self._until_us = 0
        self._pause = 0
        """So many are not stayed awake for after one that was not worth it: about twice as many each time."""
        self._passed_over = 0
        self._go_on = self._turn  # bound once, for all of them

    def stay(self, asked_us: int) -> None:
        """One was asked for then, which is just now."""
        last_us, self._asked_us = self._asked_us, asked_us
        if asked_us - last_us > BRISK_US:
            return
        if self._passed_over < self._pause:
            self._passed_over += 1
            return
        self._until_us = asked_us + AWAKE_US
        if self._turning:
            self._pause = 0  # the one before it has come
        elif _PROCESSORS > 1:
            self._turning = True
            self._call_soon(self._go_on)

    def _turn(self) -> None:
        awaited = len(self._awaited)
        if awaited == 1 and self._clock.monotonic_us() < self._until_us:
            self._call_soon(self._go_on)
            return
        self._turning = False
        self._passed_over = 0
        self._pause = min(2 * self._pause + 1, SELDOM) if awaited else 0
