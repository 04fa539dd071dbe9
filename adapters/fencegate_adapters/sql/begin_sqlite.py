"""Passing in SQLite by one statement, when the mark is at the token already, as it mostly is.

The usual way takes two, one that makes this connection the only writer and one that looks; and this one has no answer
that would have to be fetched.
"""

import functools
import operator
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only

from fencegate_adapters.sql.openness import Openness
from fencegate_adapters.sql.passing import Claims
from fencegate_adapters.sql.passing.seen import Seen
from fencegate_adapters.sql.passing.sqlite import FAILED, SHARE

_in_transaction = operator.attrgetter("in_transaction")


def passes(connection: Connection, claims: Claims, _seen: Seen, _ahead: bool) -> Openness | None:
    """How to ask of the transaction, which has passed. None: it has not; pass in the usual way."""
    pooled, is_async = connection.connection, connection.dialect.is_async
    driver: Any = pooled.driver_connection if is_async else pooled.dbapi_connection
    try:
        for values in claims.to_sqlite:
            executed = driver.execute(SHARE, values)  # which begins, unless somebody else has, or says when
            if is_async:
                await_only(executed)
    except connection.dialect.loaded_dbapi.Error as error:
        if getattr(error, "sqlite_errorcode", FAILED) == FAILED:
            return None  # if it is something else, the usual way meets the same error, and tells of it
        # It has waited for the writer before it; nobody is to wait again.
        raise DBAPIError.instance(None, None, error, connection.dialect.loaded_dbapi.Error) from error
    return functools.partial(_in_transaction, driver) if driver.in_transaction else None
