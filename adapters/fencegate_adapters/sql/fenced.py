"""`fenced`: the fence inside the caller's own transactions, on a session or connection of SQLAlchemy.

Inside the block every transaction starts by raising the fence row of the lock key: from its first statement until its
commit no newer holder can pass, and once a newer one has passed, it fails at that first statement.
"""

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Protocol, TypeVar, runtime_checkable

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, IntegrityError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate.core.names import check_lock_key
from fencegate.core.token import Token
from fencegate_adapters.sql.dialect import cause
from fencegate_adapters.sql.passage import Passage, prepare, roll_back_rest

S = TypeVar("S", Session, Connection, AsyncSession, AsyncConnection)


class Lease(Protocol):
    """What `fenced` needs to know of a lease. If it has `ensure_held()`, that is asked before the last commit."""

    @property
    def lock_key(self) -> str: ...
    @property
    def token(self) -> int: ...


@runtime_checkable
class _Held(Protocol):
    def ensure_held(self) -> object: ...


@runtime_checkable
class _OfAKind(Protocol):
    """A lease that may be shared, or one of several permits."""

    @property
    def mode(self) -> str: ...
    @property
    def fence(self) -> str: ...


def fenced(
    session: S, lease: Lease | None = None, *, lock_key: str | None = None, token: int | None = None
) -> "Fenced[S]":
    """Put every transaction of the block under the fence of the lease's lock key.

    >>> with Session(engine) as session, fenced(session, lease):     # `async with` for the async kinds
    ...     session.add(report)

    Commits at the end, rolls back on an exception. Raises StaleToken at the first statement when a newer holder has
    been there, and UnsafeConfiguration for a connection that has a transaction already or is in AUTOCOMMIT.
    """
    if lease is not None:
        if lock_key is not None or token is not None:
            raise TypeError("fenced() takes a lease, or lock_key and token; not both")
        lock_key, token = _fence_of(lease), lease.token
    if lock_key is None or token is None:
        raise TypeError("fenced() needs a lease, or both lock_key and token")
    return Fenced(session, Passage(check_lock_key(lock_key), Token(token)), lease)


def _fence_of(lease: Lease) -> str:
    """The lock key; of a permit, its own slot's. Readers share a token, which can't keep their writes apart."""
    if not isinstance(lease, _OfAKind):
        return lease.lock_key
    if lease.mode == "shared":
        raise TypeError("fenced() is for writing, and a shared lease is for reading; hold the lock alone")
    return lease.fence


class Fenced(Generic[S]):
    """The block of `fenced`: `with` for Session and Connection, `async with` for their async kinds."""

    def __init__(self, session: S, passage: Passage, lease: object) -> None:
        self._session: S = session
        self._passage = passage
        self._lease = lease

    def __enter__(self) -> S:
        if isinstance(self._session, AsyncSession | AsyncConnection):
            raise TypeError("use `async with fenced(…)` for an async session or connection")
        self._enter(self._session)
        return self._session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert isinstance(self._session, Session | Connection)
        self._exit(self._session, error)

    async def __aenter__(self) -> S:
        if not isinstance(self._session, AsyncSession | AsyncConnection):
            raise TypeError("use `with fenced(…)` for a session or connection that is not async")
        await self._session.run_sync(self._enter)
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert isinstance(self._session, AsyncSession | AsyncConnection)
        await self._session.run_sync(self._exit, error)

    def _enter(self, session: Session | Connection) -> None:
        if session.in_transaction():
            raise UnsafeConfiguration(_BEGUN)
        for bind in _binds(session):
            if isinstance(bind, Connection) and bind.in_transaction():
                raise UnsafeConfiguration(_BEGUN)
            prepare(bind)
        if isinstance(session, Session):
            event.listen(session, "after_begin", self._passage.after_begin, insert=True)  # before the caller's own
        else:
            self._passage.watch(session)

    def _exit(self, session: Session | Connection, error: BaseException | None) -> None:
        try:
            if error is None:
                self._commit(session)
            else:
                _roll_back(session, error)
        finally:
            if isinstance(session, Session):
                event.remove(session, "after_begin", self._passage.after_begin)
            self._passage.forget()

    def _commit(self, session: Session | Connection) -> None:
        try:
            if isinstance(session, Session):
                session.flush()
            self._passage.check_open()
            if isinstance(self._lease, _Held):
                self._lease.ensure_held()
            with _unknown_outcome():
                session.commit()
        except BaseException as error:
            _roll_back(session, error)
            raise


_BEGUN = (
    "this session or connection has a transaction already, and what was done in it is not under the fence: commit or "
    "roll it back first. fenced() begins and commits by itself, so it goes outside of begin()"
)


def _binds(session: Session | Connection) -> list[Engine | Connection]:
    """Where the session will find its connections, as far as it says."""
    if isinstance(session, Connection):
        return [session]
    # A session may have a bind for each class; SQLAlchemy 2.0 keeps them to itself.
    of_classes = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})
    binds: list[Engine | Connection] = list(of_classes.values())
    with contextlib.suppress(UnboundExecutionError):
        binds.append(session.get_bind())
    return binds


def _roll_back(session: Session | Connection, error: BaseException) -> None:
    """Undo, without hiding the error that is on its way."""
    try:
        session.rollback()
        if isinstance(session, Connection):
            roll_back_rest(session)
    except DBAPIError as second:
        error.add_note(f"and the rollback failed: {cause(second)}")


@contextlib.contextmanager
def _unknown_outcome() -> Iterator[None]:
    """An error of COMMIT itself leaves open whether it happened; a constraint that is judged there does not."""
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        detail = f"the database failed while it committed: {cause(error)}"
        raise ResourceUnavailable(detail, outcome="unknown") from error
