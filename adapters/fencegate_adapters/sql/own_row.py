"""`fenced_update`: the mark in a column of the row itself, where one lock guards one row.

No fence row is needed then. The row must stay: a row that is deleted has forgotten its mark, and a stale holder could
create it anew. Give it a column that says it is gone, or use `fenced`.
"""

from collections.abc import Awaitable
from typing import Any, overload

from sqlalchemy import Connection, CursorResult, Update, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.expression import ColumnElement

from fencegate.core.errors import NotFound, ResourceUnavailable, UnsafeConfiguration
from fencegate.core.fence import admit
from fencegate_adapters.sql.leases import Lease, claims_of

TokenColumn = InstrumentedAttribute[int] | InstrumentedAttribute[int | None] | ColumnElement[int]


@overload
def fenced_update(
    session: Session | Connection, statement: Update, lease: Lease, *, column: TokenColumn
) -> CursorResult[Any]: ...
@overload
def fenced_update(
    session: AsyncSession | AsyncConnection, statement: Update, lease: Lease, *, column: TokenColumn
) -> Awaitable[CursorResult[Any]]: ...
def fenced_update(
    session: Session | Connection | AsyncSession | AsyncConnection,
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
    ((_, token),) = claims_of([lease], None, None)
    if statement.whereclause is None:
        raise TypeError("fenced_update() is for one row: the statement needs a where()")
    if isinstance(session, AsyncSession | AsyncConnection):
        return session.run_sync(_update, statement, int(token), column)
    return _update(session, statement, int(token), column)


def _update(session: Session | Connection, statement: Update, token: int, column: TokenColumn) -> CursorResult[Any]:
    mark = func.coalesce(column, 0)
    guarded = statement.where(mark <= token).values({column: token})
    if isinstance(session, Session):
        guarded = guarded.execution_options(synchronize_session="fetch")
    result = session.execute(guarded)
    assert isinstance(result, CursorResult)
    if result.rowcount == 1:
        return result
    if result.rowcount > 1:
        raise UnsafeConfiguration(
            f"the statement changed {result.rowcount} rows, and a token column guards one: roll back, and use fenced()"
        )
    assert statement.whereclause is not None
    look = select(func.max(mark)).where(statement.whereclause)
    if result.context.dialect.name in ("mysql", "mariadb"):
        look = look.with_for_update(read=True)  # any other shows the row as it was when the transaction first read
    highest = session.execute(look).scalar()
    if highest is None:
        raise NotFound("there is no such row")
    admit(token, int(highest))
    raise ResourceUnavailable("the row changed while it was looked at: nothing was written; retry")
