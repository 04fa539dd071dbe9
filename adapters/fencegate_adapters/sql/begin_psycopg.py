"""BEGIN and the passage in one message, on a connection of psycopg that has passed before with the same tokens.

The driver would send BEGIN by itself and wait for the answer. Sent together with the statement that locks the fence,
which the server keeps prepared, both take one round trip.
"""

from typing import Any

from sqlalchemy import Connection

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.sql.messages import exchange
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
        exchange(connection, driver, PREPARE_SHARE)  # if it fails, so does what follows
    ((lock_key, token),) = claims
    message = begin + SHARE_PREPARED % (lock_key.encode().hex().encode(), int(token))
    answer = exchange(connection, driver, message)[-1]
    if driver.pgconn.transaction_status == _IN_TRANSACTION and answer.ntuples == 1:
        return True
    # Not at the mark that was expected, below a floor, or in need of another look; or no longer prepared (a pooler).
    if driver.pgconn.transaction_status != _IDLE:
        exchange(connection, driver, b"ROLLBACK")
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
    answers = exchange(connection, driver, RAISE_ALONE % (*values, *values))
    failed = [answer for answer in answers if answer.error_message]
    if driver.pgconn.transaction_status != _IDLE:
        exchange(connection, driver, b"ROLLBACK")
    if failed and failed[0].error_field(_SQLSTATE) == _LOCK_NOT_AVAILABLE:  # nobody is to wait as long again
        raise ResourceUnavailable("the fence can't be reached: an older holder's transaction takes too long; try again")
    return not failed


def _begin(driver: Any) -> bytes | None:
    """What the driver would say itself; None where that is more than we know."""
    if driver.read_only is not None or driver.deferrable is not None:
        return None
    level = driver.isolation_level
    return b"BEGIN;" if level is None else b"BEGIN ISOLATION LEVEL " + level.name.replace("_", " ").encode() + b";"
