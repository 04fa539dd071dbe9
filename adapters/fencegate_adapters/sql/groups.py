"""Which calls share a transaction: what arrives while one is under way goes out together in the next.

A row occurs once in a group, and a fence with one token only. A call that can't be done in company waits for its turn
in a lane of its own, and later calls about the same fence wait behind it, so that one fence which somebody keeps locked
does not hold up the others.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.sql.work import Work

MAX_WAITING = 1024
MAX_GROUP = 64
MAX_LOOKED_AT = 4 * MAX_GROUP
"""So many of those who wait are looked at for a group: a crowd on one row must not cost more the larger it is."""


class Groups:
    """`together` runs a group and returns those that have to be done alone; `alone` runs one. Both answer what they
    finish, and never raise. `threads` runs groups, one at a time, and `others` what is done alone."""

    def __init__(
        self,
        together: Callable[[list[Work]], list[Work]],
        alone: Callable[[Work], None],
        threads: Executor,
        others: Executor,
    ) -> None:
        self._together = together
        self._run_alone = alone
        self._threads = threads
        self._others = others
        self._mutex = threading.Lock()
        self._waiting: deque[Work] = deque()
        self._alone: dict[str, deque[Work]] = {}
        """By fence: who waits to be done alone. The first of them is under way."""
        self._count = 0
        """How many wait or are under way."""
        self._running = False
        self._closed = False
        self._idle = threading.Condition(self._mutex)

    def add(self, work: Work) -> None:
        with self._mutex:
            if self._closed:
                raise ResourceUnavailable("the resource is closed: nothing was written")
            if self._count >= MAX_WAITING:
                raise ResourceUnavailable(f"{MAX_WAITING} calls wait for the database already: nothing was written")
            self._count += 1
            self._waiting.append(work)
            self._start()

    def close(self) -> None:
        """Take nothing more, and return when all that was taken is answered."""
        with self._mutex:
            self._closed = True
            while self._count:
                self._idle.wait()

    # --- together ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._running and self._waiting:
            self._running = True
            self._threads.submit(self._serve)

    def _serve(self) -> None:
        while True:
            with self._mutex:
                if not self._waiting:
                    self._running = False
                    return
                group = self._take()
            left = self._together(group) if group else []
            with self._mutex:
                for work in left:
                    work.lonely = True
                    self._put_aside(work)
                self._finish(len(group) - len(left))
                if self._alone and self._others is self._threads:  # they wait for this very thread: first they, then we
                    self._threads.submit(self._serve)
                    return

    def _take(self) -> list[Work]:
        group: list[Work] = []
        tokens: dict[str, int] = {}
        names: set[str] = set()
        passed_over: list[Work] = []
        late: set[str] = set()
        """Fences of those who were passed over: nobody overtakes them."""
        for _ in range(min(len(self._waiting), MAX_LOOKED_AT)):
            work = self._waiting.popleft()
            if work.given_up:
                self._finish(1)
            elif (
                work.fence in late
                or tokens.get(work.fence, work.token) != work.token
                or not names.isdisjoint(work.names)
                or (work.lonely and work.fence in tokens)
            ):
                late.add(work.fence)
                passed_over.append(work)
            elif work.lonely or work.fence in self._alone:
                self._put_aside(work)
            else:
                group.append(work)
                tokens[work.fence] = work.token
                names |= work.names
                if len(group) == MAX_GROUP:
                    break
        self._waiting.extendleft(reversed(passed_over))
        return group

    # --- alone -------------------------------------------------------------------------------------------------------

    def _put_aside(self, work: Work) -> None:
        queue = self._alone.get(work.fence)
        if queue is None:
            self._alone[work.fence] = deque([work])
            self._others.submit(self._serve_alone, work.fence)
        else:
            queue.append(work)

    def _serve_alone(self, fence: str) -> None:
        work = self._alone[fence][0]
        if not work.given_up:
            self._run_alone(work)
        with self._mutex:
            queue = self._alone.pop(fence)
            queue.popleft()
            self._waiting.extendleft(reversed(queue))  # perhaps they can be done together again
            self._finish(1)
            self._start()

    def _finish(self, number: int) -> None:
        self._count -= number
        if not self._count:
            self._idle.notify_all()
