"""`fenced_update`: the mark in a column of the row itself, where one lock guards one row.

No fence row is needed then. The row must stay: a row that is deleted has forgotten its mark, and a stale holder could
create it anew. Give it a column that says it is gone, or use `fenced`.
"""

from collections.abc import Awaitable
from functools import lru_cache
from typing import Any, NamedTuple, overload
from weakref import WeakKeyDictionary

from sqlalchemy import BindParameter, Connection, CursorResult, Update, bindparam, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import InstrumentedAttribute, Session, scoped_session
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.expression import ColumnElement
from sqlalchemy.util import immutabledict

from fencegate.core.errors import NotFound, ResourceUnavailable, UnsafeConfiguration
from fencegate.core.fence import admit
from fencegate_adapters.sql.leases import Lease, claim_of

PARAMETER = "fencegate_token"
OF_OBJECTS: immutabledict[str, str | bool] = immutabledict(synchronize_session="fetch")
OF_NO_OBJECTS: immutabledict[str, str | bool] = immutabledict(synchronize_session=False)

Direct = Session | Connection
Awaited = AsyncSession | AsyncConnection
TokenColumn = InstrumentedAttribute[int] | InstrumentedAttribute[int | None] | ColumnElement[int]


@overload
def fenced_update(
    session: Direct | scoped_session[Session], statement: Update, lease: Lease, *, column: TokenColumn
) -> CursorResult[Any]: ...
@overload
def fenced_update(
    session: Awaited | async_scoped_session[AsyncSession], statement: Update, lease: Lease, *, column: TokenColumn
) -> Awaitable[CursorResult[Any]]: ...
def fenced_update(
    session: Direct | Awaited | scoped_session[Session] | async_scoped_session[AsyncSession],
    statement: Update,
    lease: Lease,
    *,
    column: TokenColumn,
) -> CursorResult[Any] | Awaitable[CursorResult[Any]]:
    """Update one row, unless its token column has seen a newer holder; the column is set to the lease's token.

    >>> change = update(Account).where(Account.id == 7).values(balance=0)
    >>> fenced_update(session, change, lease, column=Account.token)     # await it, with an async session

    Comparison and write are one statement, in whatever transaction the session is in. Raises StaleToken, or NotFound
    when there is no such row. A table has its marks in a column or in the fence table: never both.
    """
    token = int(claim_of(lease).lowest)
    within = session() if isinstance(session, scoped_session | async_scoped_session) else session
    if not isinstance(within, Session) and isinstance(within, AsyncSession | AsyncConnection):
        return within.run_sync(_update, statement, token, column)
    return _update(within, statement, token, column)


def _update(session: Direct, statement: Update, token: int, column: TokenColumn) -> CursorResult[Any]:
    if isinstance(session, Session) and (session.new or len(session.identity_map)):
        # One of these objects may be the row. It is told of values only, not of parameters.
        guarded, parameters, how = _guarded(statement, column, token), None, OF_OBJECTS
    else:
        guarded, parameters = _ready(statement, column, token)
        how = OF_NO_OBJECTS
    result = session.execute(guarded, parameters, execution_options=how)
    assert isinstance(result, CursorResult)
    if result.rowcount == 1:
        return result
    if result.rowcount > 1:
        raise UnsafeConfiguration(
            f"the statement changed {result.rowcount} rows, and a token column guards one: roll back, and use fenced()"
        )
    if isinstance(session, Session) and not result.context.dialect.update_returning:
        _forget_what_was_not_written(session)
    assert statement.whereclause is not None
    look = select(func.max(_guard(column).mark)).where(statement.whereclause)
    if result.context.dialect.name in ("mysql", "mariadb"):
        look = look.with_for_update(read=True)  # any other shows the row as it was when the transaction first read
    highest = session.execute(look).scalar()
    if highest is None:
        raise NotFound("there is no such row")
    admit(token, int(highest))
    raise ResourceUnavailable("the row changed while it was looked at: nothing was written; retry")


def _forget_what_was_not_written(session: Session) -> None:
    """Without RETURNING, SQLAlchemy looks before the statement which objects it will tell."""
    changed = session.dirty
    for each in session.identity_map.values():
        if each not in changed:
            session.expire(each)


class _Ready(NamedTuple):
    """What became of a caller's statement."""

    column: TokenColumn
    for_any: Update
    """With the token as a parameter."""
    token: int
    """The last one."""
    for_token: Update | None
    """With that one in it, once it came again."""


_ready_made: WeakKeyDictionary[Update, _Ready] = WeakKeyDictionary()


def _ready(statement: Update, column: TokenColumn, token: int) -> tuple[Update, dict[str, int] | None]:
    """The statement to execute, and its parameters; the same object for one that is used again, since that is what
    SQLAlchemy is quick with, and quicker without parameters. To build one costs more than a single update gains by it.
    """
    made = _ready_made.get(statement)
    if made is None or made.column is not column:
        made = _ready_made[statement] = _Ready(column, _guarded(statement, column, None), token, None)
    elif made.token != token:
        made = _ready_made[statement] = made._replace(token=token, for_token=None)
    elif made.for_token is None:
        made = _ready_made[statement] = made._replace(for_token=_guarded(statement, column, token))
    if made.for_token is not None:
        return made.for_token, None
    return made.for_any, {PARAMETER: token}


def _guarded(statement: Update, column: TokenColumn, token: int | None) -> Update:
    """For this token; for that which comes as a parameter where there is none."""
    if statement.whereclause is None:
        raise TypeError("fenced_update() is for one row: the statement needs a where()")
    if statement.returning_column_descriptions:  # the rows would have to be read before their number is known
        raise TypeError("fenced_update() counts what was changed, and can't with returning(): read the row afterwards")
    guard = _guard(column)
    if token is None:
        guarded = statement.where(guard.is_passed).values({column: guard.token})
    else:
        own = bindparam(PARAMETER, token, type_=column.type)
        guarded = statement.where(guard.mark <= own).values({column: own})
    # SQLAlchemy puts a text as it is beside the others: `id = 1 OR id = 2 AND …` would let a stale token pass.
    *given, ours = guarded._where_criteria
    guarded._where_criteria = (*map(Grouping, given), ours)
    return guarded


class _Guard(NamedTuple):
    """What a column adds to statements. To build it takes SQLAlchemy a third of the time that SQLite takes for all of
    an update, so it is done once."""

    token: BindParameter[int]
    mark: ColumnElement[int]
    is_passed: ColumnElement[bool]


@lru_cache(1024)
def _guard(column: TokenColumn) -> _Guard:
    token, mark = bindparam(PARAMETER, type_=column.type), func.coalesce(column, literal_column("0"))
    return _Guard(token, mark, mark <= token)
