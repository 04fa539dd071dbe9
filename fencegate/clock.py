"""Time and chance: the only module that may look at a clock or roll dice.

Everything else is given a `Clock`, so that tests can move time by hand and a run can be repeated.
"""

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What the rest of the code may ask of the world about time and chance."""

    def now_us(self) -> int:
        """Unix microseconds, which don't jump while this process lives."""

    def wall_us(self) -> int:
        """Unix microseconds as the machine tells them now, which may jump: to compare with another machine's."""

    def monotonic_us(self) -> int:
        """Microseconds on a clock that never goes back and runs on in suspend."""

    def random_id(self, bytes_: int = 12) -> str:
        """An unguessable identifier of letters and digits."""

    def jitter(self) -> float:
        """A number in [0, 1) to spread retries with."""


class SystemClock:
    """The machine's clocks.

    Unix time is read once and then advanced by the monotonic clock: a step of the wall clock under a running
    process would otherwise lengthen or cut every lease at once.
    """

    def __init__(self, offset_us: int | None = None) -> None:
        """`offset_us` to the monotonic clock: another process of this machine may be given the same."""
        true_us = time.time_ns() // 1000 - self.monotonic_us()
        self._offset_us = true_us if offset_us is None else offset_us
        self._off_us = self._offset_us - true_us

    def wall_us(self) -> int:
        return time.time_ns() // 1000 + self._off_us

    def now_us(self) -> int:
        return time.clock_gettime_ns(_BOOTTIME) // 1000 + self._offset_us

    def monotonic_us(self) -> int:
        return time.clock_gettime_ns(_BOOTTIME) // 1000

    def random_id(self, bytes_: int = 12) -> str:
        page = _here.page
        start = page.next
        end = start + 2 * bytes_
        if end > _PAGE:
            page.digits, start, end = os.urandom(_PAGE // 2).hex(), 0, 2 * bytes_
        page.next = end
        return page.digits[start:end]

    def jitter(self) -> float:
        return random.random()  # noqa: S311 - spreads retries; nothing rests on it


_PAGE = 8192


class _Page:
    """The kernel's randomness, fetched by the page: a system call for each id costs more than the rest of it."""

    __slots__ = ("digits", "next")

    def __init__(self) -> None:
        self.digits = ""
        self.next = _PAGE


class _Here(threading.local):
    """What belongs to one thread."""

    def __init__(self) -> None:
        self.page = _Page()


_here = _Here()


def _forget() -> None:
    """A child that went on with its parent's page would give out its parent's ids."""
    global _here
    _here = _Here()


os.register_at_fork(after_in_child=_forget)


class ManualClock:
    """A clock that moves only when told to, for tests and simulation."""

    def __init__(self, now_us: int = 1_700_000_000_000_000, seed: int = 0) -> None:
        self._now_us = now_us
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose

    def advance(self, seconds: float) -> None:
        self._now_us += int(seconds * 1_000_000)

    def now_us(self) -> int:
        return self._now_us

    def wall_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return self._now_us

    def random_id(self, bytes_: int = 12) -> str:
        return f"{self._random.getrandbits(bytes_ * 8):0{bytes_ * 2}x}"

    def jitter(self) -> float:
        return self._random.random()


SYSTEM = SystemClock()


def seeded(seed: int | str) -> random.Random:
    """Chance that can be repeated, for simulations."""
    return random.Random(seed)  # noqa: S311 - repeatable on purpose


@contextmanager
def repeatable(seed: int | str) -> Iterator[None]:
    """While a simulation runs, libraries that roll dice of their own (to spread retries) roll the same each time."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def sleep_s(seconds: float) -> None:
    """Block this thread; for threads of our own, never for an event loop."""
    time.sleep(seconds)
