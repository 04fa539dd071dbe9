"""What arms that run in turns give: some writes of one, then as many of the next. The rate is that of the median turn,
because they are so close together that one bad moment of the machine would decide."""

import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from bench.arm import Sample
from bench.summary import WRITE


class Turns:
    """Of one arm."""

    def __init__(self) -> None:
        self.begin_to_count()

    def begin_to_count(self) -> None:
        self.errors: list[str] = []
        self._latencies_us: Counter[int] = Counter()
        self._turns_s: list[float] = []
        self._cpu_s = 0.0

    @property
    def seconds(self) -> float:
        return sum(self._turns_s)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around the writes of a turn."""
        cpu_s, began_s = time.process_time(), time.perf_counter()
        yield
        self._turns_s.append(time.perf_counter() - began_s)
        self._cpu_s += time.process_time() - cpu_s

    def written(self, began_s: float) -> float:
        """One write has been made, of those that began then. The time."""
        now_s = time.perf_counter()
        self._latencies_us[int((now_s - began_s) * 1_000_000)] += 1
        return now_s

    def failed(self, error: Exception) -> None:
        self.errors.append(f"{type(error).__name__}: {error}")

    def sample(self, writes: int) -> Sample:
        """With so many writes in a turn."""
        rate = 0.0 if self.errors else writes / median(self._turns_s)
        load_cpu = self._cpu_s / max(self.seconds, self._cpu_s) / (os.cpu_count() or 1)
        first_error = self.errors[0] if self.errors else ""
        done = self._latencies_us.total()
        return Sample(done, rate, len(self.errors), first_error, {WRITE: self._latencies_us}, load_cpu)


Take = Callable[[Turns], Awaitable[None]]
"""A turn of an arm."""
WARM_TURNS = 2


async def in_turns(arms: Sequence[Take], writes: int, seconds: float) -> list[Sample]:
    """A sample of each, of so many seconds, with so many writes in a turn. An error ends them all."""
    turns = [(Turns(), take) for take in arms]
    for one, take in turns * WARM_TURNS:
        await take(one)
    for one, _ in turns:
        one.begin_to_count()
    while min(one.seconds for one, _ in turns) < seconds and not any(one.errors for one, _ in turns):
        for one, take in turns:
            await take(one)
    return [one.sample(writes) for one, _ in turns]
