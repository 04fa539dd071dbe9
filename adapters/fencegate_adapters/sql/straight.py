"""BEGIN and the passage as one message to PostgreSQL, whose answer need not be waited for (ADR 26).

It is sent when SQLAlchemy has begun, and read just before the caller's first statement goes out: SQLAlchemy has work to
do until then, and the server does its own meanwhile. Nothing is written before the answer is known, whatever the caller
does: the statement that locks the fence *fails* unless it passes, and the server refuses all that follows in such a
transaction. And no answer stays unread: all that psycopg does on the network goes through `wait` of its connection,
which is ours for that while.
"""

import functools
import os
from collections.abc import Generator
from typing import Any

import psycopg
from psycopg.generators import execute, fetch_many

from fencegate.core.errors import ResourceUnavailable
from fencegate.core.fence import admit
from fencegate_adapters.sql.passing import Claims
from fencegate_adapters.sql.passing.postgresql import SHARE, WHY

# Another statement needs another name: behind a pooler an older release of ours may have prepared its own, and that is
# the one which would be executed.
_SHARE = b"fencegate_share_3"
_NOT_PREPARED = b"26000"
_SQLSTATE = ord("C")
_FORMATS = [1, 0]
"""Of the key and the token: binary, and text."""
_ROWS = 2
_FAILED = 3
_WARM_UP = 2
_PAUSE = 50
"""So many transactions go in the usual way where what was prepared is lost at once, as behind a pooler."""

FORKED = "this transaction was begun by the process that this one was forked from: it is not ours to go on with"
REFUSED = "the fence was not passed, and nothing was written: roll back and try again"

Steps = Generator[Any, Any, None]
"""As psycopg's own: to be carried out by `wait` of its connection, be that blocking or not."""


class Straight:
    """The straight way through the fence, on one connection of psycopg, whose attribute it is: it keeps none of it, as
    a circle of two would not be closed when it is forgotten."""

    def __init__(self, driver: Any) -> None:
        self._pgconn = driver.pgconn
        self._process = 0
        """The one that has sent."""
        self._is_blocking = isinstance(driver, psycopg.Connection)
        self._is_possible = psycopg.Pipeline.is_supported()
        self._times = 0
        self.is_prepared = False
        self.is_read = True
        self._begin = b""
        self._claims: Claims
        self.passed = False

    def is_due(self) -> bool:
        """Whether to go this way. Not on a connection that is used once, nor where libpq is older than 14."""
        if self._times < _WARM_UP:
            self._times += 1
            return False
        return self._is_possible

    def prepare(self) -> Steps:
        """If it fails, so does what follows."""
        self._pgconn.send_prepare(_SHARE, SHARE)
        yield from execute(self._pgconn)
        self.is_prepared = True

    def send(self, driver: Any, claims: Claims, begin: bytes, ahead: bool) -> bool:
        """Whether the answer is read later, as it may be when this is `ahead` of what the caller does."""
        self._claims = claims
        self._begin = begin
        known = driver.__dict__
        later = ahead and self._is_blocking and "wait" not in known
        if later:
            self._process = os.getpid()
            self.is_read = False
            known["wait"] = functools.partial(self._read_first, driver)
        self._send()
        return later

    def _send(self) -> None:
        pgconn = self._pgconn
        self.passed = False
        try:
            pgconn.enter_pipeline_mode()
            pgconn.send_query_params(self._begin, None)
            pgconn.send_query_prepared(_SHARE, self._claims.only, _FORMATS)
            pgconn.pipeline_sync()
        except BaseException:
            pgconn.finish()
            raise

    def read(self, driver: Any) -> Any:
        """To be awaited where the driver's `wait` is."""
        try:
            if not self.is_read:
                del driver.__dict__["wait"]
                self.is_read = True
                if self._process != os.getpid():
                    self._let_go()
            return driver.wait(self._answer())
        except BaseException:
            # A signal may come before the answer is waited for, or raise what the driver does not know: then the steps
            # stand where they are for as long as somebody keeps the error.
            self._pgconn.finish()
            raise

    def _let_go(self) -> None:
        """In a forked process: the answer is its parent's, which would wait for it for ever. What is said here from now
        on, even a farewell, goes nowhere."""
        with open(os.devnull, "r+b") as nowhere:
            os.dup2(nowhere.fileno(), self._pgconn.socket)
        raise psycopg.OperationalError(FORKED)

    def _read_first(self, driver: Any, *given: Any, **named: Any) -> Any:
        """In place of the driver's `wait`, for something that we were not told of: a cursor of the driver, a sequence,
        a rollback."""
        self.read(driver)
        try:
            return driver.wait(*given, **named)
        except psycopg.errors.InFailedSqlTransaction as refused:
            if self.passed:
                raise
            raise self._reason(driver) from refused

    def _reason(self, driver: Any) -> ResourceUnavailable:
        """Or StaleToken, which it raises itself."""
        pgconn = self._pgconn
        try:
            pgconn.send_query(WHY % self._claims.keys[0].hex().encode())
            answers = driver.wait(execute(pgconn))
        except BaseException:
            pgconn.finish()
            raise
        if pgconn.transaction_status != _FAILED:
            pgconn.finish()
            return ResourceUnavailable(REFUSED)
        admit(self._claims.lowest, int(answers[1].get_value(0, 0) or 0))
        return ResourceUnavailable(REFUSED)

    def _answer(self) -> Steps:
        pgconn = self._pgconn
        try:
            answer = yield from self._received()
            if answer.status == _ROWS:
                self.passed = True
                return
            if answer.error_field(_SQLSTATE) == _NOT_PREPARED:  # the driver drops all of them when it rolls back
                pgconn.send_query(b"ROLLBACK")
                yield from execute(pgconn)
                yield from self.prepare()
                self._send()
                answer = yield from self._received()
                if answer.error_field(_SQLSTATE) == _NOT_PREPARED:
                    self._times = -_PAUSE
            self.passed = answer.status == _ROWS
            if not self.passed and pgconn.transaction_status != _FAILED:
                raise psycopg.OperationalError("a transaction that did not pass goes on")
        except BaseException:
            pgconn.finish()  # nobody else may meet what was not read
            raise

    def _received(self) -> Generator[Any, Any, Any]:
        pgconn = self._pgconn
        yield from execute(pgconn)  # BEGIN
        answers = yield from fetch_many(pgconn)
        yield from fetch_many(pgconn)  # the end of the message
        if not answers:
            raise psycopg.OperationalError("the connection was lost")
        pgconn.exit_pipeline_mode()
        return answers[0]
