"""A sweep over seeds with all processors: which seed is played where decides nothing, only how soon it is done."""

import logging
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import count
from typing import NamedTuple

from fencegate.children import ends_with
from fencegate.clock import SYSTEM, Clock
from fencegate.verify.sim.campaign import Tally, plan_of, play

LOT = 20
"""How many seeds are given to a process at once: half a second's work, so that an end comes soon."""
MOST_FAILURES = 3
GRACE_S = 45.0
"""How long a sweep in which nothing went wrong without the check goes on after its time: it has shown nothing yet."""


class _Lot(NamedTuple):
    first_seed: int
    runs: int


def sweep(
    first_seed: int,
    *,
    seconds: float | None = None,
    runs: int | None = None,
    jobs: int | None = None,
    on_progress: Callable[[Tally], None] = lambda _: None,
    clock: Clock = SYSTEM,
) -> Tally:
    """Play the seeds from the first on, so many, or until the time is up, or until it failed a few times.

    With `jobs` processes at once, by default one for each processor. Ctrl-C ends it after the lots that are under way:
    what was seen until then is returned, and `interrupted` says so.
    """
    until_us = None if seconds is None else clock.monotonic_us() + int(seconds * 1e6)
    jobs = jobs or os.cpu_count() or 1
    if runs is not None:
        jobs = min(jobs, max(runs, 1))
    tally = Tally()

    def goes_on() -> bool:
        grace_us = 0 if tally.unfenced.is_broken else int(GRACE_S * 1e6)
        in_time = until_us is None or clock.monotonic_us() < until_us + grace_us
        return in_time and len(tally.failures) < MOST_FAILURES

    lots = _lots(first_seed, runs, jobs)
    if jobs == 1:
        _alone(tally, lots, goes_on, on_progress)
    else:
        _together(tally, lots, jobs, goes_on, on_progress)
    return tally


def _lots(first_seed: int, runs: int | None, jobs: int) -> Iterator[_Lot]:
    size = LOT if runs is None else max(1, min(LOT, runs // jobs))
    for first in count(0, size):
        if runs is not None and first >= runs:
            return
        yield _Lot(first_seed + first, size if runs is None else min(size, runs - first))


def _alone(
    tally: Tally, lots: Iterator[_Lot], goes_on: Callable[[], bool], on_progress: Callable[[Tally], None]
) -> None:
    begun_s = _processor_s()
    try:
        for lot in lots:
            for seed in range(lot.first_seed, lot.first_seed + lot.runs):
                play(tally, plan_of(seed))
                tally.processor_s = _processor_s() - begun_s
                on_progress(tally)
                if not goes_on():
                    return
    except KeyboardInterrupt:
        tally.interrupted = True


def _together(
    tally: Tally, lots: Iterator[_Lot], jobs: int, goes_on: Callable[[], bool], on_progress: Callable[[Tally], None]
) -> None:
    # Spawned, not forked: whoever calls may have threads, and a fork would take their locks along.
    context = multiprocessing.get_context("spawn")
    with (
        ThreadPoolExecutor(1, initializer=_deaf) as starter,
        ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(os.getpid(),)) as pool,
    ):
        under_way: deque[Future[Tally]] = deque()
        try:
            for lot in lots:
                under_way.append(starter.submit(pool.submit, _play, lot).result())
                if len(under_way) > jobs:  # one waits for whoever is done first
                    tally.add(under_way.popleft().result())
                    on_progress(tally)
                    if not goes_on():
                        break
            while under_way:
                tally.add(under_way.popleft().result())
                on_progress(tally)
        except KeyboardInterrupt:
            tally.interrupted = True
            pool.shutdown(cancel_futures=True)


def _deaf() -> None:
    """Ctrl-C goes to all processes of a terminal: the first of them decides what it means. So the others are started by
    a thread that blocks the signal, and have that from it before they load anything. Nor can it break off the start of
    one half-way: only the main thread is interrupted."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def _begin(parent: int) -> None:
    ends_with(parent)
    logging.disable(logging.CRITICAL)  # what fails in a simulation is meant to


def _play(lot: _Lot) -> Tally:
    tally = Tally()
    begun_s = _processor_s()
    for seed in range(lot.first_seed, lot.first_seed + lot.runs):
        play(tally, plan_of(seed))
    tally.processor_s = _processor_s() - begun_s
    return tally


def _processor_s() -> float:
    used = os.times()
    return used.user + used.system
