"""Passing on a connection of psycopg, with messages that hold several statements: each would be a round trip.

A new token raises the mark by one (`raises`). After that, and mostly, BEGIN, the passage and the caller's first
statement are one (`passes`).
"""

from typing import Any

from sqlalchemy import Connection, RootTransaction

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.sql.dialect import cause
from fencegate_adapters.sql.messages import awaited, close_unread, exchange, lost
from fencegate_adapters.sql.openness import NotPassed, Openness
from fencegate_adapters.sql.passing import Claims
from fencegate_adapters.sql.passing.postgresql import RAISE_ALONE
from fencegate_adapters.sql.passing.seen import Seen
from fencegate_adapters.sql.runner import driver_of
from fencegate_adapters.sql.strings import check_strings

DRIVERS = ("psycopg", "psycopg_async")
_STRAIGHT = "fencegate_straight"
_IDLE = 0
_READ_COMMITTED = 2
_SQLSTATE = ord("C")
_LOCK_NOT_AVAILABLE = b"55P03"
WENT_ALONE = "a statement went to the database without the fence, and was undone: this release of psycopg is not known"


def passes(connection: Connection, _root: RootTransaction, claims: Claims, seen: Seen, ahead: bool) -> Openness | None:
    """How to ask of the transaction, which has begun and has passed. None: nothing has happened; pass in the usual way.

    With `ahead` it passes with what comes first: a statement may take it along, and whoever asks passes.
    """
    driver = driver_of(connection)
    check_strings(driver)
    straight = driver.__dict__.get(_STRAIGHT) or _straight(driver)
    if not straight.has_passed(claims) and not seen.all_of(claims):
        if not raises(connection, claims):
            return None
        seen.add(claims)
    level = driver.isolation_level
    if level is None:
        begin, fresh = b"BEGIN", not seen.careful  # as far as we know, it is READ COMMITTED when nothing is said
    else:
        begin, fresh = b"BEGIN ISOLATION LEVEL READ COMMITTED", level == _READ_COMMITTED
    if not fresh or claims.only is None or driver.prepare_threshold is None or not _is_ours_to_begin(driver):
        return None
    if not straight.is_due():
        return None
    status = Straightly(connection, driver, straight)
    if not straight.tell(claims, begin):
        status.carry_out(straight.prepare())
    if ahead and straight.plan(driver):
        return status
    if status() is None:  # not at the mark that was expected, below a floor, or in need of another look
        status.roll_back()
        return None
    return status


def _straight(driver: Any) -> Any:
    from fencegate_adapters.sql.straight import Straight  # not before: not everybody has this driver

    return vars(driver).setdefault(_STRAIGHT, Straight(driver))


class Straightly:
    """The openness of a transaction that passes straight; and, around a statement, what takes the passage along."""

    __slots__ = ("_connection", "_driver", "_straight")

    def __init__(self, connection: Connection, driver: Any, straight: Any) -> None:
        self._connection = connection
        self._driver = driver
        self._straight = straight

    def __call__(self) -> int | None:
        """None when it turns out that it has not passed: it has failed, and is to be rolled back."""
        straight, driver = self._straight, self._driver
        if not straight.is_answered:
            try:
                self.carry_out(straight.alone(driver))
            except BaseException:
                straight.recover(driver)
                raise
        status: int = driver.pgconn.transaction_status
        return status if straight.passed else None

    def roll_back(self) -> None:
        """One that has not passed: from here on the server takes what is written."""
        if self._driver.pgconn.transaction_status != _IDLE:
            exchange(self._connection, self._driver, b"ROLLBACK")

    def carry_out(self, steps: Any) -> None:
        try:
            awaited(self._connection, self._driver.wait(steps))
        except self._connection.dialect.loaded_dbapi.Error as error:
            raise lost(self._connection, error) from error
        except BaseException:
            close_unread(self._driver)  # a signal may come at any time
            raise

    def takes_along(self, cursor: Any) -> bool:
        """Whether a statement with parameters may do so that this cursor executes. (One of the server has a name.)"""
        return self._straight.is_planned and not hasattr(cursor, "name")

    def __enter__(self) -> None:
        try:
            self._straight.take_along(self._driver)
        except BaseException:
            self._straight.recover(self._driver)
            raise

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        straight, driver = self._straight, self._driver
        driver._pipeline = None
        is_sent, is_answered = straight.is_sent, straight.is_answered
        if error is None:
            if not is_sent:  # a release of the driver that goes another way
                driver.pgconn.finish()
                raise ResourceUnavailable(WENT_ALONE)
            return False
        straight.recover(driver)
        if is_sent:
            if not isinstance(error, self._connection.dialect.loaded_dbapi.Error):
                if driver.closed:
                    self._connection.invalidate(error)
            elif not is_answered:
                failed = lost(self._connection, error)
                raise ResourceUnavailable(f"the fence can't be reached: {cause(failed)}") from failed
        return isinstance(error, NotPassed)


def raises(connection: Connection, claims: Claims) -> bool:
    """Raise the mark to a token that is new here, in a transaction of its own that is one message. False: the mark may
    not be there; pass in the usual way.

    So the row is not locked for oneself until the caller's commit, and those who hold the same token write in parallel
    from the beginning. The caller's commit flushes this one too, so it does not wait for the disk.
    """
    driver = driver_of(connection)
    if len(claims.keys) != 1 or not _is_ours_to_begin(driver):
        return False
    ((lock_key, token),) = claims
    values = (lock_key.encode().hex().encode(), int(token))
    answers = exchange(connection, driver, RAISE_ALONE % (*values, *values))
    failed = [answer for answer in answers if answer.error_message]
    if driver.pgconn.transaction_status != _IDLE:
        exchange(connection, driver, b"ROLLBACK")
    if failed and failed[0].error_field(_SQLSTATE) == _LOCK_NOT_AVAILABLE:  # nobody is to wait as long again
        raise ResourceUnavailable("the fence can't be reached: an older holder's transaction takes too long; try again")
    return not failed


def _is_ours_to_begin(driver: Any) -> bool:
    """Whether nothing has begun, and what the driver would say is no more than we know."""
    if driver.pgconn.transaction_status != _IDLE or driver.autocommit:
        return False
    return driver.read_only is None and driver.deferrable is None
