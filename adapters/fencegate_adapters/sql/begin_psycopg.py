"""Passing on a connection of psycopg, with messages that hold several statements: each would be a round trip.

A new token raises the mark by one (`raises`). After that, and mostly, BEGIN and the passage are one (`passes`).
"""

import functools
from typing import Any

from sqlalchemy import Connection, RootTransaction

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.sql.messages import awaited, close_unread, exchange, lost
from fencegate_adapters.sql.openness import Openness, driver_of
from fencegate_adapters.sql.passing import Claims
from fencegate_adapters.sql.passing.postgresql import RAISE_ALONE
from fencegate_adapters.sql.passing.seen import Seen

_STRAIGHT = "fencegate_straight"
_IDLE = 0
_READ_COMMITTED = 2
_SQLSTATE = ord("C")
_LOCK_NOT_AVAILABLE = b"55P03"


def passes(connection: Connection, _root: RootTransaction, claims: Claims, seen: Seen, ahead: bool) -> Openness | None:
    """How to ask of the transaction, which has begun and has passed. None: nothing has happened; pass in the usual way.

    With `ahead` the answer may still be on its way, and whoever asks waits for it.
    """
    if not seen.all_of(claims):
        if not raises(connection, claims):
            return None
        seen.add(claims)
    pooled = connection.connection
    driver: Any = pooled.driver_connection if connection.dialect.is_async else pooled.dbapi_connection
    level = driver.isolation_level
    if level is None:
        begin, fresh = b"BEGIN", not seen.careful  # as far as we know, it is READ COMMITTED when nothing is said
    else:
        begin, fresh = b"BEGIN ISOLATION LEVEL READ COMMITTED", level == _READ_COMMITTED
    if not fresh or claims.only is None or driver.prepare_threshold is None or not _is_ours_to_begin(driver):
        return None
    straight = driver.__dict__.get(_STRAIGHT) or _straight(driver)
    if not straight.is_due():
        return None
    status = functools.partial(_status, connection, driver, straight)
    try:
        if not straight.is_prepared:
            awaited(connection, driver.wait(straight.prepare()))
        if straight.send(driver, claims, begin, ahead):
            return status
        awaited(connection, straight.read(driver))
    except connection.dialect.loaded_dbapi.Error as error:
        raise lost(connection, error) from error
    except BaseException:
        close_unread(driver)  # a signal may come between the two
        raise
    # If not: not at the mark that was expected, below a floor, or in need of another look.
    return None if status() is None else status


def _straight(driver: Any) -> Any:
    from fencegate_adapters.sql.straight import Straight  # not before: not everybody has this driver

    return vars(driver).setdefault(_STRAIGHT, Straight(driver))


def _status(connection: Connection, driver: Any, straight: Any) -> int | None:
    """Of the transaction; None when it turns out that it has not passed: it is rolled back then."""
    if not straight.is_read:
        try:
            straight.read(driver)
        except connection.dialect.loaded_dbapi.Error as error:
            raise lost(connection, error) from error
    status: int = driver.pgconn.transaction_status
    if straight.passed:
        return status
    if status != _IDLE:
        exchange(connection, driver, b"ROLLBACK")
    return None


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
