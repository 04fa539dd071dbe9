"""`fenced`: the fence inside the caller's own transactions, whichever library has the connection.

Inside the block every transaction starts by passing the fence row of the lock key: from its first statement until its
commit no newer holder can pass, and once a newer one has passed, it fails at that first statement.
"""

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from fencegate_adapters.sql.block_sqlalchemy import Fenced, FencedScoped
from fencegate_adapters.sql.leases import Lease, Leases, claims_of

if TYPE_CHECKING:
    import psycopg

    from fencegate_adapters.sql.block_django import FencedDjango
    from fencegate_adapters.sql.block_psycopg import FencedAsyncPsycopg, FencedPsycopg

__all__ = ["Fenced", "Lease", "fenced"]

S = TypeVar("S", Session, Connection, AsyncSession, AsyncConnection)

_SQLALCHEMY = (Session, Connection, AsyncSession, AsyncConnection)


class DjangoConnection(Protocol):
    """What we know a connection of Django by."""

    @property
    def alias(self) -> str: ...
    @property
    def vendor(self) -> str: ...
    @property
    def in_atomic_block(self) -> bool: ...


@overload
def fenced(session: S, *leases: Leases, lock_key: str | None = None, token: int | None = None) -> Fenced[S]: ...
@overload
def fenced(
    session: "scoped_session[Session]", *leases: Leases, lock_key: str | None = None, token: int | None = None
) -> Fenced[Session]: ...
@overload
def fenced(
    session: "async_scoped_session[AsyncSession]",
    *leases: Leases,
    lock_key: str | None = None,
    token: int | None = None,
) -> Fenced[AsyncSession]: ...
@overload
def fenced(
    session: "psycopg.Connection[Any]", *leases: Leases, lock_key: str | None = None, token: int | None = None
) -> "FencedPsycopg": ...
@overload
def fenced(
    session: "psycopg.AsyncConnection[Any]", *leases: Leases, lock_key: str | None = None, token: int | None = None
) -> "FencedAsyncPsycopg": ...
@overload
def fenced(
    session: DjangoConnection, *leases: Leases, lock_key: str | None = None, token: int | None = None
) -> "FencedDjango": ...
def fenced(session: Any, *leases: Leases, lock_key: str | None = None, token: int | None = None) -> Any:
    """Put every transaction of the block under the fences of the leases' lock keys.

    >>> with Session(engine) as session, fenced(session, lease):     # `async with` for the async kinds
    ...     session.add(report)

    Takes a session or connection of SQLAlchemy, a connection of psycopg, or one of Django (`django.db.connection`).
    Several leases, or what `hold_all` gives, are passed in the order of their lock keys.

    Commits at the end, rolls back on an exception. Raises StaleToken when a newer holder has been there: at the first
    statement with SQLAlchemy, else on entering. UnsafeConfiguration for a connection that has a transaction already or
    is in AUTOCOMMIT.
    """
    claims = claims_of(leases, lock_key, token)
    if isinstance(session, _SQLALCHEMY):
        return Fenced(session, claims, leases)
    if isinstance(session, scoped_session | async_scoped_session):
        return FencedScoped(session, claims, leases)
    made_by = {kind.__module__.partition(".")[0] for kind in type(session).__mro__}
    if "psycopg" in made_by:
        import psycopg

        from fencegate_adapters.sql.block_psycopg import FencedAsyncPsycopg, FencedPsycopg

        if isinstance(session, psycopg.AsyncConnection):
            return FencedAsyncPsycopg(session, claims, leases)
        if isinstance(session, psycopg.Connection):
            return FencedPsycopg(session, claims, leases)
    if "django" in made_by:
        from fencegate_adapters.sql.block_django import FencedDjango

        return FencedDjango(session, claims, leases)
    raise TypeError(
        f"fenced() can't be used with a {type(session).__name__}: give it a session or connection of SQLAlchemy, a "
        "connection of psycopg, or one of Django"
    )
