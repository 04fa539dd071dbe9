"""BEGIN, the passage and the caller's first statement as one message to PostgreSQL (ADR 29).

Nothing is sent when SQLAlchemy has begun: it is planned to pass with whatever comes first. A statement takes the
passage along, and the server executes it only if it has passed. What we are not told of (a cursor of the driver, a
sequence, a savepoint, a rollback) finds the fence passed: all that psycopg does on the network goes through `wait` of
its connection, which is ours for that while. Outside of `wait` no answer is on its way.
"""

import os
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import Any

import psycopg
from psycopg.errors import InFailedSqlTransaction, error_from_result
from psycopg.generators import execute, fetch_many

from fencegate.core.errors import ResourceUnavailable
from fencegate.core.fence import admit
from fencegate_adapters.sql.along import Along
from fencegate_adapters.sql.messages import close_unread
from fencegate_adapters.sql.passing import Claims
from fencegate_adapters.sql.passing.postgresql import SHARE, WHY

# Another statement needs another name: behind a pooler an older release of ours may have prepared its own, and that is
# the one which would be executed.
_SHARE = b"fencegate_share_3"
_BEGIN = {b"BEGIN": b"fencegate_begin_1", b"BEGIN ISOLATION LEVEL READ COMMITTED": b"fencegate_begin_2"}
_NOT_PREPARED = b"26000"
_CANCELED = b"57014"
_SQLSTATE = ord("C")
_FORMATS = [1, 0]
"""Of the key and the token: binary, and text."""
_IDLE = 0
_ROWS = 2
_FAILED = 3
_ERROR = 7
_WARM_UP = 2
_PAUSE = 50
"""So many transactions go in the usual way where what was prepared is lost at once, as behind a pooler."""
_KNOWN_RELEASES = "3.3."
"""Of psycopg: to take the passage along rests on names that it keeps to itself, and were they others, that would be
noticed behind a statement, when all that is left is to fail."""

FORKED = "this transaction was begun by the process that this one was forked from: it is not ours to go on with"
REFUSED = "the fence was not passed, and nothing was written: roll back and try again"

Steps = Generator[Any, Any, Any]
"""As psycopg's own: to be carried out by `wait` of its connection, be that blocking or not."""


class Straight:
    """The straight way through the fence, on one connection of psycopg, whose attribute it is: it keeps none of it, as
    a circle of two would not be closed when it is forgotten."""

    def __init__(self, driver: Any) -> None:
        self._pgconn = driver.pgconn
        self._driver = weakref.ref(driver)
        self._is_blocking = isinstance(driver, psycopg.Connection)
        self._is_possible = psycopg.Pipeline.is_supported()
        self._is_known = psycopg.__version__.startswith(_KNOWN_RELEASES)
        self._times = 0
        self._process = 0
        """The one that has planned."""
        self._begin = b"BEGIN"
        self._claims: Claims
        self._prepared = b""
        self.is_planned = False
        self.is_sent = self.is_answered = self.passed = False
        """Of the transaction that was told of last."""

    def is_due(self) -> bool:
        """Whether to go this way. Not on a connection that is used once, nor where libpq is older than 14."""
        if self._times < _WARM_UP:
            self._times += 1
            return False
        return self._is_possible

    def has_passed(self, claims: Claims) -> bool:
        """The last time."""
        return self.passed and self._claims is claims

    def tell(self, claims: Claims, begin: bytes) -> bool:
        """Of a transaction that is to begin. Whether what it takes is prepared, as far as we know."""
        self._claims, self._begin = claims, begin
        self.is_sent = self.is_answered = self.passed = False
        return self._prepared == begin

    def prepare(self) -> Steps:
        """If it fails, so does what follows: it may be there already."""
        for name, statement in ((_BEGIN[self._begin], self._begin), (_SHARE, SHARE)):
            self._pgconn.send_prepare(name, statement)
            yield from execute(self._pgconn)
        self._prepared = self._begin

    def plan(self, driver: Any) -> bool:
        """To pass with whatever comes first. Not where somebody else has replaced the driver's `wait`, nor with a
        release of it that is not known."""
        known = driver.__dict__
        if not self.is_planned:
            if "wait" in known or not self._is_known:
                return False
            self._process = os.getpid()
            wait = self._pass_first if self._is_blocking else self._pass_first_async
            known["wait"], self.is_planned = wait, True  # no call in between, at which a signal might come
        return True

    def recover(self, driver: Any) -> None:
        """From an error or a signal: no answer is left unread; and where nothing has happened (it came before anything
        was sent, or BEGIN itself was cancelled), it is still to pass with whatever comes first."""
        close_unread(driver)
        if self._pgconn.transaction_status == _IDLE and not self.passed:
            self.is_sent = self.is_answered = False
            self.plan(driver)

    def _begin_to_pass(self, driver: Any) -> None:
        if self.is_planned:
            is_ours = self._process == os.getpid()
            self.is_planned = False
            del driver.__dict__["wait"]
            if not is_ours:
                self._let_go()

    def _let_go(self) -> None:
        """In a forked process: to pass would be in the way of its parent, even to roll back what has not begun. What is
        said here from now on, even a farewell, goes nowhere."""
        with open(os.devnull, "r+b") as nowhere:
            os.dup2(nowhere.fileno(), self._pgconn.socket)
        raise psycopg.OperationalError(FORKED)

    def alone(self, driver: Any) -> Steps:
        """Pass before anything else."""
        self._begin_to_pass(driver)
        return self._passing()

    def take_along(self, driver: Any) -> None:
        """The next statement of a cursor of the driver takes the passage along."""
        along = Along(self, driver)
        self._begin_to_pass(driver)
        driver._pipeline = along

    # --- in place of the driver's `wait`, for what we were not told of ---

    def _pass_first(self, *given: Any, **named: Any) -> Any:
        driver: Any = self._driver()
        try:
            steps = self.alone(driver)  # from here on `wait` is the driver's again
            driver.wait(steps)
        except BaseException:
            self.recover(driver)
            raise
        try:
            return driver.wait(*given, **named)
        except InFailedSqlTransaction as refused:
            if self.passed:
                raise
            raise self._reason(driver.wait(self._asking_why())) from refused

    async def _pass_first_async(self, *given: Any, **named: Any) -> Any:
        driver: Any = self._driver()
        try:
            steps = self.alone(driver)
            await driver.wait(steps)
        except BaseException:
            self.recover(driver)
            raise
        try:
            return await driver.wait(*given, **named)
        except InFailedSqlTransaction as refused:
            if self.passed:
                raise
            raise self._reason(await driver.wait(self._asking_why())) from refused

    def _asking_why(self) -> Steps:
        try:
            self._pgconn.send_query(WHY % self._claims.keys[0].hex().encode())
            return (yield from execute(self._pgconn))
        except BaseException:
            self._pgconn.finish()
            raise

    def _reason(self, answers: Any) -> ResourceUnavailable:
        """Or StaleToken, which it raises itself."""
        if self._pgconn.transaction_status != _FAILED:
            self._pgconn.finish()
            return ResourceUnavailable(REFUSED)
        admit(self._claims.lowest, int(answers[1].get_value(0, 0) or 0))
        return ResourceUnavailable(REFUSED)

    # --- the message and its answers ---

    def _passing(self) -> Steps:
        """A transaction that has not passed has failed, so that the server refuses whatever comes."""
        answer, _ = yield from self.exchange()
        if not self.passed:
            yield from self.look_again(answer, is_alone=True)

    def look_again(self, answer: Any, *, is_alone: bool) -> Steps:
        """At an answer that says no."""
        pgconn = self._pgconn
        try:
            if answer.error_field(_SQLSTATE) == _NOT_PREPARED:  # the driver drops all of them when it rolls back
                if pgconn.transaction_status != _IDLE:
                    pgconn.send_query(b"ROLLBACK")
                    yield from execute(pgconn)
                yield from self.prepare()
                answer, _ = yield from self.exchange(is_prepared=False)
                if answer.error_field(_SQLSTATE) == _NOT_PREPARED:
                    self._times = -_PAUSE
            has_failed = pgconn.transaction_status == _FAILED
            was_canceled = answer.error_field(_SQLSTATE) == _CANCELED
            if not (self.passed or has_failed or was_canceled):
                raise psycopg.OperationalError("a transaction that did not pass goes on")
        except BaseException:
            pgconn.finish()  # nobody else may meet what was not read
            raise
        if was_canceled and not (is_alone and has_failed):
            raise error_from_result(answer)  # as by the driver itself, which then waits to hear of it

    def exchange(self, sends: Sequence[Callable[[], None]] = (), *, is_prepared: bool = True) -> Steps:
        """Pass, and have these executed if that succeeds: the answer to the passage, or to BEGIN if that failed, and
        the results of what went along. If one fails, the server skips all that is behind it in the message."""
        pgconn = self._pgconn
        self.is_sent = True
        try:
            pgconn.enter_pipeline_mode()
            if is_prepared:
                pgconn.send_query_prepared(_BEGIN[self._begin], None)
            else:
                pgconn.send_query_params(self._begin, None)
            pgconn.send_query_prepared(_SHARE, self._claims.only, _FORMATS)
            number = 0
            unsent: psycopg.Error | None = None
            try:
                for send in sends:
                    send()
                    number += 1
            except psycopg.Error as error:  # too many values, for one: an error of the statement, and of nothing else
                unsent = error
            pgconn.pipeline_sync()
            began = yield from execute(pgconn)
            answers = yield from fetch_many(pgconn)
            if not began or not answers:
                raise psycopg.OperationalError("the connection was lost")
            self.is_answered = self.passed = answers[0].status == _ROWS
            results: list[Any] = [None] * number
            try:
                for at in range(number):
                    results[at] = yield from fetch_many(pgconn)
                yield from fetch_many(pgconn)  # the end of the message
                pgconn.exit_pipeline_mode()
            except psycopg.Error:
                if not any(result and result[-1].status == _ERROR for result in results):
                    raise
                pgconn.finish()  # the server has said why it ends the connection, and that is what is raised
        except BaseException:
            pgconn.finish()  # nobody else may meet what was not read
            raise
        self.is_answered = True
        if unsent is not None and self.passed:
            raise unsent
        return began[0] if began[0].status == _ERROR else answers[0], results
