"""Transactions of our own: bounded waits, and an outcome that is told from one that nobody knows."""

import contextlib
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from fencegate_adapters.sql.dialect import Dialect, cause

T = TypeVar("T")

_TRANSIENT_STATES = {"40001", "40P01"}
_TRANSIENT_NUMBERS = {1213}
_REFUSAL_NUMBERS = {1264, 1265, 1267, 1292, 1364, 1366, 1406, 1644, 3140, 3819, 4025}
"""Of MySQL, whose driver takes some of them for errors of its operation."""
_REFUSAL_STATES = {"54000", "P0001"}
"""Of PostgreSQL: a value that is too large for an index, and what a trigger of the table raises."""


class CommitFailed(Exception):
    """COMMIT was sent and did not say yes: what was done may be there, or not."""


class Transactions:
    """What `body` does commits as a whole, or not at all."""

    def __init__(self, engine: Engine, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect

    def run(self, body: Callable[[Connection], T], wait_ms: int, before: Callable[[], None] | None = None) -> T:
        """Whatever it raises, but for CommitFailed, nothing was written. A constraint that is judged at COMMIT raises
        IntegrityError, as the others do."""
        with self._engine.connect() as connection:
            self._dialect.limit_wait(connection, wait_ms)
            if before is not None:
                before()
            transaction = connection.begin()
            result = body(connection)
            try:
                transaction.commit()
            except BaseException as error:
                with contextlib.suppress(SQLAlchemyError):  # else it goes back to the pool with its transaction open
                    transaction.rollback()
                # Not every error of a driver is one of its own kind; what was sent may be there all the same.
                if isinstance(error, Exception) and not isinstance(error, IntegrityError):
                    raise CommitFailed(f"the database failed while it committed: {cause(error)}") from error
                raise
            return result


def first_of(error: SQLAlchemyError) -> SQLAlchemyError:
    """A deadlock in MySQL takes the savepoints along, and to go back to one that is gone is an error that hides it."""
    first, before = error, error.__context__
    while before is not None:
        if isinstance(before, SQLAlchemyError):
            first = before
        before = before.__context__
    return first


def transient(error: SQLAlchemyError) -> bool:
    """Whether the database gave up on the transaction because of others (a deadlock): tried again, it may succeed."""
    if not isinstance(error, DBAPIError) or error.orig is None:
        return False
    number = error.orig.args[0] if error.orig.args else None
    return getattr(error.orig, "sqlstate", None) in _TRANSIENT_STATES or number in _TRANSIENT_NUMBERS


def refused(error: SQLAlchemyError) -> bool:
    """Whether the database would not have these values, whoever sends them."""
    if isinstance(error, IntegrityError | DataError):
        return True
    if not isinstance(error, DBAPIError) or error.orig is None:
        return False
    number = error.orig.args[0] if error.orig.args else None
    return getattr(error.orig, "sqlstate", None) in _REFUSAL_STATES or number in _REFUSAL_NUMBERS
