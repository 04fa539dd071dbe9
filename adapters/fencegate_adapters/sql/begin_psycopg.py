"""BEGIN and the passage in one message, on a connection of psycopg that has passed before with the same tokens.

The driver would send BEGIN by itself and wait for the answer. Sent together with the statement that locks the fence,
which the server keeps prepared, both take one round trip.
"""

import functools
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.sql.passing import Claims
from fencegate_adapters.sql.passing.postgresql import PREPARE_SHARE, RAISE_ALONE, SHARE_PREPARED

_STATE = "fencegate_prepared"
_WARM_UP = 2
_IDLE, _IN_TRANSACTION = 0, 2
_SQLSTATE = ord("C")
_LOCK_NOT_AVAILABLE = b"55P03"


def begins(connection: Connection, driver: Any, claims: Claims) -> bool:
    """Whether the transaction has begun and has passed. False: nothing has happened, pass in the usual way."""
    if connection.dialect.driver not in ("psycopg", "psycopg_async") or len(claims) != 1:
        return False
    if driver.autocommit or driver.prepare_threshold is None or driver.pgconn.transaction_status != _IDLE:
        return False
    begin = _begin(driver)
    state: dict[Any, Any] = connection.info
    times = state.get(_STATE, 0)
    if times < _WARM_UP or begin is None:
        state[_STATE] = times + 1
        return False
    if times == _WARM_UP:
        state[_STATE] += 1
        _exchange(connection, driver, PREPARE_SHARE)  # if it fails, so does what follows
    ((lock_key, token),) = claims
    message = begin + SHARE_PREPARED % (lock_key.encode().hex().encode(), int(token))
    answer = _exchange(connection, driver, message)[-1]
    if driver.pgconn.transaction_status == _IN_TRANSACTION and answer.ntuples == 1:
        return True
    # Not at the mark that was expected, below a floor, or in need of another look; or no longer prepared (a pooler).
    if driver.pgconn.transaction_status != _IDLE:
        _exchange(connection, driver, b"ROLLBACK")
    if answer.error_message:
        state[_STATE] = 0
    return False


def raises(connection: Connection, driver: Any, claims: Claims) -> bool:
    """Raise the mark to a token that is new here, in a transaction of its own that is one message. False: the mark may
    not be there; pass in the usual way.

    So the row is not locked for oneself until the caller's commit, and those who hold the same token write in parallel
    from the beginning. The caller's commit flushes this one too, so it does not wait for the disk.
    """
    if connection.dialect.driver not in ("psycopg", "psycopg_async") or len(claims) != 1:
        return False
    if driver.autocommit or driver.pgconn.transaction_status != _IDLE or _begin(driver) is None:
        return False
    ((lock_key, token),) = claims
    values = (lock_key.encode().hex().encode(), int(token))
    answers = _exchange(connection, driver, RAISE_ALONE % (*values, *values))
    failed = [answer for answer in answers if answer.error_message]
    if driver.pgconn.transaction_status != _IDLE:
        _exchange(connection, driver, b"ROLLBACK")
    if failed and failed[0].error_field(_SQLSTATE) == _LOCK_NOT_AVAILABLE:  # nobody is to wait as long again
        raise ResourceUnavailable("the fence can't be reached: an older holder's transaction takes too long; try again")
    return not failed


def rows_of(connection: Connection, message: bytes) -> list[list[str | None]]:
    """The rows, as text, that the last statement of a message gives, on a connection that is not async."""
    driver: Any = connection.connection.driver_connection
    answer = _exchange(connection, driver, message)[-1]
    if answer.error_message:
        psycopg: Any = connection.dialect.loaded_dbapi
        raise DBAPIError.instance(None, None, psycopg.errors.error_from_result(answer), psycopg.Error)
    encoding, columns = driver.info.encoding, range(answer.nfields)
    rows = [[answer.get_value(row, column) for column in columns] for row in range(answer.ntuples)]
    return [[None if value is None else value.decode(encoding) for value in row] for row in rows]


def _begin(driver: Any) -> bytes | None:
    """What the driver would say itself; None where that is more than we know."""
    if driver.read_only is not None or driver.deferrable is not None:
        return None
    level = driver.isolation_level
    return b"BEGIN;" if level is None else b"BEGIN ISOLATION LEVEL " + level.name.replace("_", " ").encode() + b";"


def _exchange(connection: Connection, driver: Any, message: bytes) -> Any:
    """Send it, and wait as the driver itself waits."""
    try:
        driver.pgconn.send_query(message)
        waiting = driver.wait(_execute()(driver.pgconn))
        return await_only(waiting) if connection.dialect.is_async else waiting
    except connection.dialect.loaded_dbapi.Error as error:  # not of the server, which answers: the connection is gone
        connection.invalidate(error)
        raise DBAPIError.instance(None, None, error, connection.dialect.loaded_dbapi.Error) from error


@functools.cache
def _execute() -> Any:
    """Not imported before there is such a connection: not everybody has this driver."""
    from psycopg.generators import execute

    return execute
