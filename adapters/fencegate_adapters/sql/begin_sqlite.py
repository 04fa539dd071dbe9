"""BEGIN and the passage on a connection of `sqlite3`, when the mark is at the token already, as it mostly is.

`BEGIN IMMEDIATE` makes this connection the only writer, and the look at the fence after it is then the last word. The
usual way asks the same by an UPDATE that changes nothing, before which the driver says BEGIN by itself: one statement
more, of three.
"""

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fencegate.core.fence import admit
from fencegate_adapters.sql.openness import Openness
from fencegate_adapters.sql.passing import Claims
from fencegate_adapters.sql.passing.sqlite import LOOK

_OURS_TO_BEGIN = ("", "DEFERRED", "IMMEDIATE")
_LEGACY = -1  # `sqlite3.LEGACY_TRANSACTION_CONTROL`, which is newer than the oldest Python that we run on


def begins(connection: Connection, claims: Claims) -> Openness | None:
    """How to ask of the transaction, which has begun and has passed. None: it has not; pass in the usual way."""
    driver: Any = connection.connection.dbapi_connection
    if (
        len(claims.keys) != 1
        or driver.isolation_level not in _OURS_TO_BEGIN
        or getattr(driver, "autocommit", _LEGACY) != _LEGACY
        or driver.in_transaction
    ):
        return None  # somebody else says when it begins, and how, or nobody does
    errors = connection.dialect.loaded_dbapi
    try:
        driver.execute("BEGIN IMMEDIATE")
    except errors.Error as error:  # it has waited for the writer before it; nobody is to wait again
        raise DBAPIError.instance(None, None, error, errors.Error) from error
    try:
        found = driver.execute(LOOK, claims.keys).fetchone()
    except errors.Error:
        return None  # the usual way meets the same error, and tells of it
    token = claims.lowest
    if found is None or found[0] < token:
        return None  # it is raised in the transaction that has begun
    admit(token, max(found))
    return lambda: int(driver.in_transaction)
