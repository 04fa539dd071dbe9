"""Passing in SQLite by one statement, when the mark is at the token already, as it mostly is.

The usual way takes two, one that makes this connection the only writer and one that looks; and this one has no answer
that would have to be fetched.
"""

import functools
import operator
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import Connection, RootTransaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only

from fencegate_adapters.sql.openness import Openness
from fencegate_adapters.sql.passing import Claims
from fencegate_adapters.sql.passing.seen import Seen
from fencegate_adapters.sql.passing.sqlite import FAILED, SHARE
from fencegate_adapters.sql.protect.naming import Held, held_of
from fencegate_adapters.sql.runner import driver_of

_WAY = "fencegate.way"

_in_transaction = operator.attrgetter("in_transaction")


class _Way(NamedTuple):
    """On one connection of the driver, for as long as there is one."""

    execute: Callable[..., Any]
    is_open: Openness
    held: Held


def passes(connection: Connection, root: RootTransaction, claims: Claims, _seen: Seen, _ahead: bool) -> Openness | None:
    """How to ask of the transaction, which has passed. None: it has not; pass in the usual way."""
    pooled: Any = connection.connection
    record = pooled._connection_record  # whose `info` is that of `pooled`, in fewer steps; None: it is detached
    way = record.info.get(_WAY) if record is not None else None
    execute, is_open, held = way or _way(connection)
    try:
        for values in claims.to_sqlite:
            execute(SHARE, values)  # which begins, unless somebody else has, or says when
    except connection.dialect.loaded_dbapi.Error as error:
        # A cursor keeps a statement that failed, which keeps SQLite from closing the connection: one that is given up
        # would go on with its transaction, and nobody else could write.
        pooled.info.pop(_WAY, None)
        if getattr(error, "sqlite_errorcode", FAILED) == FAILED:
            return None  # if it is something else, the usual way meets the same error, and tells of it
        # It has waited for the writer before it; nobody is to wait again.
        raise DBAPIError.instance(None, None, error, connection.dialect.loaded_dbapi.Error) from error
    if not is_open():
        return None
    held.tokens, held.transaction = claims.tokens_by_key, weakref.ref(root)
    return is_open


def _way(connection: Connection) -> _Way:
    pooled, driver = connection.connection, driver_of(connection)
    # A cursor is kept, for to make one takes as long as the statement.
    execute = functools.partial(_await, driver.execute) if connection.dialect.is_async else driver.cursor().execute
    way = _Way(execute, functools.partial(_in_transaction, driver), held_of(pooled.info, pooled.create_function))
    pooled.info[_WAY] = way
    return way


def _await(execute: Callable[..., Any], *given: Any) -> None:
    await_only(execute(*given))
