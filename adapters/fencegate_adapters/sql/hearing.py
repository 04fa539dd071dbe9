"""What SQLAlchemy tells us by its events, and which passages are told of it.

Events are listened to once for each engine, and for all sessions: to listen to a single session or connection takes
longer than most transactions. Whom they concern stands among the attributes of the session and of the connection. (The
`info` of a connection is the driver's, and outlives it.)
"""

import contextlib
import functools
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.sql.before_statements import BeforeStatements
from fencegate_adapters.sql.dialect import cause
from fencegate_adapters.sql.passing.rules import REMEMBERING

_PASSAGES = "fencegate_passages"
_heard: "weakref.WeakSet[Engine]" = weakref.WeakSet()


class Hears(Protocol):
    """A passage."""

    def begun(self, connection: Connection, *, alone: bool) -> None:
        """A session took this connection and began a transaction; `alone`: nobody else is told of that."""

    def pass_(self, connection: Connection) -> None:
        """A statement is about to be executed."""

    def forget_settings(self, connection: Connection) -> None:
        """The transaction is about to end, and the connection may go to somebody else."""


def join_session(session: Session, passage: Hears) -> None:
    """Tell the passage of whatever the session begins."""
    _listen_to_sessions()
    known = session.__dict__
    known[_PASSAGES] = (*known[_PASSAGES], passage) if _PASSAGES in known else (passage,)


def join(connection: Connection, passage: Hears) -> None:
    """Tell the passage of each statement."""
    dialect = connection.dialect
    if not _before_statements.is_first(dialect):
        _before_statements.listen(connection.engine)
    if dialect.name in REMEMBERING:
        _listen_to_ends(connection.engine)
    known = connection.__dict__
    known[_PASSAGES] = (*known[_PASSAGES], passage) if _PASSAGES in known else (passage,)


def leave(joined: Iterable[Session | Connection], passage: Hears) -> None:
    for one in joined:
        known = one.__dict__
        left = known.pop(_PASSAGES, ())
        if len(left) > 1:
            known[_PASSAGES] = tuple(another for another in left if another is not passage)


@functools.cache
def _listen_to_sessions() -> None:
    event.listen(Session, "after_begin", _after_begin, insert=True)  # before the caller's own


def _listen_to_ends(engine: Engine) -> None:
    if engine not in _heard:
        event.listen(engine, "commit", _before_commit)
        event.listen(engine, "rollback", _before_rollback)
        _heard.add(engine)


def _after_begin(session: Session, _transaction: object, connection: Connection) -> None:
    passages = session.__dict__.get(_PASSAGES, ())
    for passage in passages:
        passage.begun(connection, alone=len(passages) == 1)


def _of_dialect(*given: Any) -> None:
    connection = given[-1].root_connection
    for passage in connection.__dict__.get(_PASSAGES, ()):
        passage.pass_(connection)


def _of_engine(connection: Connection, *_: Any) -> None:
    for passage in connection.__dict__.get(_PASSAGES, ()):
        passage.pass_(connection)


_before_statements = BeforeStatements(_of_dialect, _of_engine)


def _before_commit(connection: Connection) -> None:
    try:
        for passage in vars(connection).get(_PASSAGES, ()):
            passage.forget_settings(connection)
    except SQLAlchemyError as error:
        detail = f"the database failed before it was told to commit: {cause(error)}"
        raise ResourceUnavailable(detail) from error


def _before_rollback(connection: Connection) -> None:
    with contextlib.suppress(SQLAlchemyError):  # the connection is gone, and what it remembered too
        for passage in vars(connection).get(_PASSAGES, ()):
            passage.forget_settings(connection)
