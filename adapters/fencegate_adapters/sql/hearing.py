"""What SQLAlchemy tells us, and which passages are told of it.

Engines are listened to once, and sessions all together: to listen to a single session or connection takes longer than
most transactions. Whom it concerns stands among the attributes of the session and of the connection. (The `info` of a
connection is the driver's, and outlives it.)

Of statements we are told by the dialect, which executes them by three methods: one of ours stands in front of each.
(An engine with listeners has each of its connections join seven of them, in every transaction: some 100 calls in
Python.) But who listens to the dialect may say that he has executed a statement himself, and then it is not asked:
where somebody does, the engine tells us too.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.sql.dialect import cause
from fencegate_adapters.sql.homes import Home
from fencegate_adapters.sql.passing.rules import REMEMBERING

_PASSAGES = "fencegate_passages"
_EXECUTING = ("do_execute", "do_executemany", "do_execute_no_params")
_TELLS = "fencegate_tells"
"""Among the attributes of engines and dialects that do. (SQLAlchemy's own `event.contains` goes by their addresses, and
says yes of a new engine that stands where one stood that is gone: its statements would have passed unseen.)"""


class Hears(Protocol):
    """A passage."""

    def begun(self, connection: Connection, alone: bool) -> None:
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


def join(connection: Connection, home: Home, passage: Hears) -> None:
    """Tell the passage of each statement; `home` is that of the engine."""
    if not home.tells or connection.dialect._has_events:  # somebody else may have come to listen since
        _listen(connection.engine, home)
    known = connection.__dict__
    known[_PASSAGES] = (*known[_PASSAGES], passage) if _PASSAGES in known else (passage,)


def leave(joined: Session | Connection, passage: Hears) -> None:
    known = joined.__dict__
    passages = known.pop(_PASSAGES, ())
    if len(passages) > 1:
        known[_PASSAGES] = tuple(another for another in passages if another is not passage)


@functools.cache
def _listen_to_sessions() -> None:
    event.listen(Session, "after_begin", _after_begin, insert=True)  # before the caller's own


def _listen(engine: Engine, home: Home) -> None:
    dialect: Any = engine.dialect
    if _TELLS not in vars(dialect):
        for name in _EXECUTING:
            tells = _telling if name != "do_execute_no_params" else _telling_without
            setattr(dialect, name, tells(getattr(dialect, name)))
        vars(dialect)[_TELLS] = True
    if _TELLS not in vars(engine) and any(getattr(dialect.dispatch, name) for name in _EXECUTING):
        event.listen(engine, "before_cursor_execute", _before_cursor_execute)
        vars(engine)[_TELLS] = True
    if dialect.name in REMEMBERING and not home.tells:
        event.listen(engine, "commit", _before_commit)
        event.listen(engine, "rollback", _before_rollback)
    home.tells = True


def _telling(execute: Callable[..., Any]) -> Callable[..., Any]:
    def tell_and_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> Any:
        if context is not None:  # else it is none of a connection's
            connection = context.root_connection
            for passage in connection.__dict__.get(_PASSAGES, ()):
                passage.pass_(connection)
        return execute(cursor, statement, parameters, context)

    return tell_and_execute


def _telling_without(execute: Callable[..., Any]) -> Callable[..., Any]:
    def tell_and_execute(cursor: Any, statement: str, context: Any = None) -> Any:
        if context is not None:
            _before_cursor_execute(context.root_connection)
        return execute(cursor, statement, context)

    return tell_and_execute


def _before_cursor_execute(connection: Connection, *_: Any) -> None:
    for passage in connection.__dict__.get(_PASSAGES, ()):
        passage.pass_(connection)


def _after_begin(session: Session, _transaction: object, connection: Connection) -> None:
    passages = session.__dict__.get(_PASSAGES, ())
    for passage in passages:
        passage.begun(connection, len(passages) == 1)


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
