"""How a cursor of psycopg comes to send its statement behind the fence: by a pipeline that is ours (ADR 29)."""

import sys
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.errors import QueryCanceled

from fencegate_adapters.sql.openness import NotPassed

if TYPE_CHECKING:
    from fencegate_adapters.sql.straight import Straight

Steps = Generator[Any, Any, None]

_DONE = 1


class Along(psycopg.Pipeline):
    """What a cursor takes for a pipeline of the driver, while it executes the one statement that takes the passage
    along: it puts its commands into the queues, and has them sent."""

    def __init__(self, straight: "Straight", driver: Any) -> None:
        self._straight = straight
        self._conn = driver
        self.pgconn = driver.pgconn
        self.command_queue = deque()
        self.result_queue = deque()

    def _sync_gen(self) -> Steps:
        """The driver has put in a BEGIN of its own, which is to be done by itself."""
        self.command_queue.clear()
        self.result_queue.clear()
        return
        yield

    def _communicate_gen(self) -> Steps:
        driver, straight, queued = self._conn, self._straight, self.result_queue
        driver._pipeline = None  # what comes after this statement has nothing to do with it
        command: Any = self.command_queue[-1]
        if len(queued) == 1 and not command.args[1]:  # without values it may be several, which are refused behind ours
            self._forget_counted()
            raise NotPassed
        handled = sys.exception()
        results: Any = ()
        try:
            answer, results = yield from straight.exchange(self.command_queue)
            if straight.passed:
                for expected, result in zip(queued, results, strict=True):
                    self._process_results(expected, result)
                return
            yield from straight.look_again(answer, is_alone=False)
        except BaseException:
            self._forget_prepared(results)
            raise
        self._forget_prepared(results)
        if sys.exception() is not handled:  # the driver was interrupted, and goes on with that when it hears of this
            raise QueryCanceled
        raise NotPassed

    def _forget_prepared(self, results: Any) -> None:
        """The statement was to be prepared as well, and the driver believes that it is. (To forget all would have the
        driver drop all behind the next statement, and the one that it has just prepared with them.)"""
        if len(self.result_queue) == 1 or (results and results[0] and results[0][0].status == _DONE):
            return
        preparing: Any = self.command_queue[0]
        names = self._conn._prepared._names
        for key in [key for key, name in names.items() if name == preparing.args[0]]:
            del names[key]

    def _forget_counted(self) -> None:
        """The statement was not executed, but the driver has counted it, and prepares what it meets often."""
        for expected in self.result_queue:
            if expected is not None and expected[1] is not None:
                key, prep, name = expected[1]
                self._conn._prepared.validate(key, prep, name, [])
