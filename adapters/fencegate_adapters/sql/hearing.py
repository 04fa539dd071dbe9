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

from sqlalchemy import Connection, Engine, ExceptionContext, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.sql import begin_psycopg
from fencegate_adapters.sql.dialect import cause
from fencegate_adapters.sql.dialect_mysql import TELLING
from fencegate_adapters.sql.endings import PLAIN, check_allowed, ends, is_second_phase
from fencegate_adapters.sql.homes import Home, home_of
from fencegate_adapters.sql.passing.rules import REMEMBERING
from fencegate_adapters.sql.runner import driver_of

_PASSAGES = "fencegate_passages"
_HEARD = "fencegate_heard"
_UNDONE = "fencegate_undone"
"""The transaction that is being rolled back. Of two phases, that is done by statements, which need not pass."""
_TELLS = "fencegate_tells"
"""Among the attributes of engines and dialects that do. (SQLAlchemy's own `event.contains` goes by their addresses, and
says yes of a new engine that stands where one stood that is gone: its statements would have passed unseen.)"""


class Hears(Protocol):
    """A passage."""

    def begun(self, connection: Connection, alone: bool) -> None:
        """A session took this connection and began a transaction; `alone`: nobody else is told of that."""

    def watch(self, connection: Connection, home: Home) -> None:
        """Be told of each statement from now on; `home` is that of the engine."""

    def pass_(self, connection: Connection) -> None:
        """A statement is about to be executed."""

    def ended(self, connection: Connection) -> None:
        """A statement has ended the transaction, as its text says."""

    def along(self, connection: Connection, cursor: Any) -> contextlib.AbstractContextManager[None, bool] | None:
        """A statement with parameters is about to be executed, and is to be put into this, if into anything. It was
        executed, unless one comes out behind it."""

    def committing(self, connection: Connection) -> None:
        """A connection on which it was refused is about to commit."""

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


def hear_commit(connection: Connection) -> None:
    """Tell of its commits too, since a passage was refused on it."""
    if _HEARD not in connection.__dict__:
        connection.__dict__[_HEARD] = True
        event.listen(connection, "commit", _before_commit_by_hand)
        event.listen(connection, "prepare_twophase", _before_commit_by_hand)
        event.listen(connection, "commit_twophase", _before_commit_by_hand)


def _before_commit_by_hand(connection: Connection, *_: Any) -> None:
    for passage in connection.__dict__.get(_PASSAGES, ()):
        passage.committing(connection)


@functools.cache
def _listen_to_sessions() -> None:
    event.listen(Session, "after_begin", _after_begin, insert=True)  # before the caller's own


def _listen(engine: Engine, home: Home) -> None:
    dialect: Any = engine.dialect
    if _TELLS not in vars(dialect):
        for name, tells in (_TAKING_ALONG if dialect.driver in begin_psycopg.DRIVERS else _EXECUTING).items():
            setattr(dialect, name, tells(getattr(dialect, name)))
        vars(dialect)[_TELLS] = True
    if _TELLS not in vars(engine) and any(getattr(dialect.dispatch, name) for name in _EXECUTING):
        event.listen(engine, "before_cursor_execute", _before_cursor_execute)
        event.listen(engine, "after_cursor_execute", _after_cursor_execute)
        vars(engine)[_TELLS] = True
    if dialect.name in REMEMBERING and not home.tells:
        event.listen(engine, "commit", _before_commit)
        event.listen(engine, "rollback", _before_rollback)
        event.listen(engine, "prepare_twophase", _before_commit)
        event.listen(engine, "commit_twophase", _before_commit)
        event.listen(engine, "rollback_twophase", _before_rollback)
        event.listen(engine, "handle_error", _after_error)
    home.tells = True


def _telling(execute: Callable[..., Any]) -> Callable[..., Any]:
    def tell_and_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> Any:
        if context is not None and _before_cursor_execute(context.root_connection, cursor, statement):
            try:
                return execute(cursor, statement, parameters, context)
            finally:
                _after_cursor_execute(context.root_connection, cursor, statement)
        return execute(cursor, statement, parameters, context)

    return tell_and_execute


def _telling_along(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Of a driver whose statements may take the passage along."""
    tell_and_execute = _telling(execute)

    def execute_along(cursor: Any, statement: str, parameters: Any, context: Any = None) -> Any:
        if context is not None and parameters:
            connection = context.root_connection
            passages = connection.__dict__.get(_PASSAGES, ())
            along = passages[0].along(connection, cursor) if len(passages) == 1 else None
            if along is not None:
                with along:
                    return execute(cursor, statement, parameters, context)
        return tell_and_execute(cursor, statement, parameters, context)

    return execute_along


def _telling_without(execute: Callable[..., Any]) -> Callable[..., Any]:
    """The same for statements without parameters."""
    tell_and_execute = _telling(lambda cursor, statement, _none, context: execute(cursor, statement, context))
    return lambda cursor, statement, context=None: tell_and_execute(cursor, statement, None, context)


_EXECUTING = {"do_execute": _telling, "do_executemany": _telling, "do_execute_no_params": _telling_without}
_TAKING_ALONG = _EXECUTING | {"do_execute": _telling_along}


def _after_error(context: ExceptionContext) -> None:
    """A deadlock rolls everything back, and drivers that tell of transactions don't learn that from an error. Where the
    server can't be asked what is left, nothing is. (It is asked before every statement where the driver tells nothing.)
    """
    connection = context.connection
    passages: tuple[Hears, ...] = () if connection is None else vars(connection).get(_PASSAGES, ())
    if connection is None or not passages or connection.dialect.driver not in TELLING:
        return
    try:
        pinging = driver_of(connection).ping(reconnect=False)  # not by SQLAlchemy, which lets aiomysql connect anew
        if connection.dialect.is_async:
            await_only(pinging)
    except Exception:
        for passage in passages:
            passage.ended(connection)


def _before_cursor_execute(connection: Connection, _cursor: object, statement: str, *_: Any) -> bool:
    """Whether it has to be looked at behind it what has become of the transaction."""
    known = connection.__dict__
    if _PASSAGES not in known or (_UNDONE in known and known[_UNDONE] is connection.get_transaction()):
        return False
    is_plain = statement[:6] in PLAIN
    if not is_plain:
        check_allowed(connection.dialect.name, statement)
        if is_second_phase(connection.dialect.name, statement):
            return False
    for passage in known[_PASSAGES]:
        passage.pass_(connection)
    return not is_plain


def _after_cursor_execute(connection: Connection, _cursor: object, statement: str, *_: Any) -> None:
    """What a statement has done to the transaction that passed, where the driver can't tell."""
    if ends(connection.dialect.name, statement):
        for passage in vars(connection).get(_PASSAGES, ()):
            passage.ended(connection)


def _after_begin(session: Session, _transaction: object, connection: Connection) -> None:
    passages = session.__dict__.get(_PASSAGES, ())
    if not passages:
        return
    known = connection.__dict__.get(_PASSAGES, ())
    try:
        # Of a block around the connection, or around another session that shares it. It may be planned to pass with
        # what comes first, and only one can be.
        for passage in known:
            passage.pass_(connection)
        for passage in passages:
            passage.begun(connection, len(passages) == 1 and not known)
    except BaseException:  # which the caller may swallow: those behind the one that was refused look on as well
        hear_commit(connection)
        for passage in passages:
            if passage not in connection.__dict__.get(_PASSAGES, ()):
                passage.watch(connection, home_of(connection.engine))
        raise


def _before_commit(connection: Connection, _xid: object = None, is_prepared: bool = False) -> None:
    if is_prepared:
        return
    try:
        for passage in vars(connection).get(_PASSAGES, ()):
            passage.forget_settings(connection)
    except SQLAlchemyError as error:
        detail = f"the database failed before it was told to commit: {cause(error)}"
        raise ResourceUnavailable(detail) from error


def _before_rollback(connection: Connection, _xid: object = None, is_prepared: bool = False) -> None:
    vars(connection)[_UNDONE] = connection.get_transaction()
    if is_prepared:  # settings were forgotten when it was
        return
    with contextlib.suppress(SQLAlchemyError):  # the connection is gone, and what it remembered too
        for passage in vars(connection).get(_PASSAGES, ()):
            passage.forget_settings(connection)
