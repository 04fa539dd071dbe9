"""A world of processes with one clock and one source of chance: the same seed gives the same run, to the last step.

Each process has an event loop of its own, and the world steps one of them at a time, by chance among those that have
something to do. So a process that is paused stops at whatever await it stands at, while the others and the clock go on;
one that crashed is never stepped again. Time moves when nobody has anything to do at the present moment.

All that will happen is in one heap, and those who have something to do now are in one list: a step costs what it does,
however many processes there are.
"""

import gc
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from fencegate.clock import seeded
from fencegate.verify.sim.loop import BEGINNING_US, ProcessLoop

if TYPE_CHECKING:
    import asyncio

MOST_STEPS = 400_000
LONGEST_STEP_US = 30

Act = Callable[[], None]


class World:
    """See the head of this file."""

    def __init__(self, seed: int | str) -> None:
        self.chance = seeded(seed)
        self.now_us = BEGINNING_US
        self.steps = 0
        self.is_over = False
        """Set by whoever knows that nothing more is to be seen."""
        self.processes: list[Process] = []
        self._to_come: list[tuple[int, int, Process | None, Any]] = []
        self._order = 0
        self.runnable: list[Process] = []
        """Those with something to do, who are neither paused nor dead."""

    def process(self, name: str) -> "Process":
        process = Process(self, name)
        self.processes.append(process)
        return process

    def after(self, delay_us: int, act: Act) -> None:
        """Have something happen that is no process's doing: a message that arrives, a fault."""
        self.at(self.now_us + delay_us, None, act)

    def at(self, at_us: int, process: "Process | None", what: Any) -> None:
        """`what`: an act, or the timer of a process (None: look whether it may go on)."""
        self._order += 1
        heappush(self._to_come, (at_us, self._order, process, what))

    def run(self, until_us: int) -> None:
        """Go on until it is over, or that time, or nobody will ever do anything again."""
        to_come, runnable, random = self._to_come, self.runnable, self.chance.random
        arrived: deque[Act] = deque()
        while not self.is_over and self.now_us < until_us:
            now_us = self.now_us
            while to_come and to_come[0][0] <= now_us:
                _, _, process, what = heappop(to_come)
                if process is None:
                    arrived.append(what)
                else:
                    process.rung(what)
            choices = len(runnable) + (1 if arrived else 0)
            if not choices:
                if not to_come:
                    return
                self.now_us = to_come[0][0]
                continue
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise RuntimeError("the world does not come to rest: somebody is busy without end")
            turn = int(random() * choices) if choices > 1 else 0
            self.now_us = now_us + 1 + int(random() * LONGEST_STEP_US)  # nothing is done in no time
            if turn < len(runnable):
                runnable[turn].step()
            else:
                arrived.popleft()()

    def end(self) -> None:
        """Let every process unwind, and leave nothing behind."""
        for process in self.processes:
            process.loop.unwind()


class Process:
    """One simulated process."""

    __slots__ = ("_in_line", "alive", "loop", "name", "paused_until_us", "world")

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.loop = ProcessLoop(self)
        self.alive = True
        self.paused_until_us = 0
        self._in_line = False

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return self.loop.create_task(work)

    def deliver(self, act: Act) -> None:
        """Something arrived from outside: it is looked at when this process is stepped next."""
        if self.alive:
            self.loop.call_soon(act)

    def stand_in_line(self) -> None:
        """It has something to do."""
        if not self._in_line and self.alive and self.world.now_us >= self.paused_until_us:
            self._in_line = True
            self.world.runnable.append(self)

    def _leave_the_line(self) -> None:
        if self._in_line:
            self._in_line = False
            self.world.runnable.remove(self)

    def deliver_after(self, delay_us: int, act: Act) -> None:
        """Something is on its way to it."""
        self.world.at(self.world.now_us + delay_us, self, self.loop.arriving(act))

    def rung(self, timer: "asyncio.Handle | None") -> None:
        """A timer of its loop is due, a message arrived, or a pause is over."""
        if self.alive and (self.loop.has_work if timer is None else self.loop.due(timer)):
            self.stand_in_line()

    def pause(self, for_us: int) -> None:
        self.paused_until_us = max(self.paused_until_us, self.world.now_us + for_us)
        self._leave_the_line()
        self.world.at(self.paused_until_us, self, None)

    def crash(self) -> None:
        self.alive = False
        self._leave_the_line()

    def step(self) -> None:
        self.loop.step()
        if not self.loop.has_work:
            self._leave_the_line()


@contextmanager
def without_collector() -> Iterator[None]:
    """A run makes garbage in rings by the thousand, and is short: it is collected once, when the run is over."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
