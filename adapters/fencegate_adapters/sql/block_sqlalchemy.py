"""The block of `fenced` on a session or connection of SQLAlchemy."""

import contextlib
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.sql.dialect import cause
from fencegate_adapters.sql.hearing import join_session
from fencegate_adapters.sql.homes import home_of, prepare
from fencegate_adapters.sql.leases import Leases, ensure_held
from fencegate_adapters.sql.passage import Passage, roll_back_rest
from fencegate_adapters.sql.passing import Claims

_BLOCKING = (Session, Connection)
_BINDS = "binds" if "binds" in vars(Session()) else "_Session__binds"
"""The attribute of a session that has its bind for each class; SQLAlchemy 2.0 keeps it to itself."""

S = TypeVar("S", Session, Connection, AsyncSession, AsyncConnection)
Scoped = scoped_session[Any] | async_scoped_session[Any]

BEGUN = (
    "this session or connection has a transaction already, and what was done in it is not under the fence: commit or "
    "roll it back first. fenced() begins and commits by itself, so it goes outside of begin()"
)
REMOVED = (
    "the session was removed from its scope inside of the block, and what was done with the next one is not under the "
    "fence: leave the block first"
)
REFUSED_AT_COMMIT = ("40001", "40P01")
"""Said of a transaction that is undone for sure; callers who try again look for it."""


class Fenced(Passage, Generic[S]):
    """`with` for Session and Connection, `async with` for their async kinds."""

    __slots__ = ()

    _session: S

    def __enter__(self) -> S:
        session = self._session
        if not isinstance(session, _BLOCKING):
            raise TypeError("use `async with fenced(…)` for an async session or connection")
        self._enter(session)
        return session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._exit(self._session, error)  # type: ignore[arg-type]

    async def __aenter__(self) -> S:
        session = self._session
        if isinstance(session, _BLOCKING):
            raise TypeError("use `with fenced(…)` for a session or connection that is not async")
        if isinstance(session, AsyncSession) and _is_ready(session.sync_session):
            self._enter(session.sync_session)  # which does not wait for anything
        else:
            await session.run_sync(self._enter)
        return session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert not isinstance(self._session, _BLOCKING)
        await self._session.run_sync(self._exit, error)

    def _enter(self, session: Session | Connection) -> None:
        if session.in_transaction():
            raise UnsafeConfiguration(BEGUN)
        if isinstance(session, Session):
            if not _is_ready(session):
                for bind in _binds(session):
                    if isinstance(bind, Connection) and bind.in_transaction():
                        raise UnsafeConfiguration(BEGUN)
                    prepare(bind)
            join_session(session, self)
        else:
            prepare(session)
            self.watch(session, home_of(session.engine))

    def _exit(self, session: Session | Connection, error: BaseException | None) -> None:
        try:
            if error is None:
                self._commit(session)
            else:
                _roll_back(session, error)
        finally:
            self.end(session)

    def _commit(self, session: Session | Connection) -> None:
        try:
            if isinstance(session, Session):
                session.flush()
                self._watch_rest(session)
            self.check_open()
            if self._leases:
                ensure_held(self._leases)
            if not session.in_transaction():  # one that begins by hand only, or was closed for good, would object
                return
            try:
                session.commit()
            except DBAPIError as failed:
                meant = _at_commit(failed)
                if meant is failed:
                    raise
                raise meant from failed
        except BaseException as error:
            _roll_back(session, error)
            raise

    def _watch_rest(self, session: Session) -> None:
        """Connections that we were not told of: a hook of the caller's failed before ours, and that was swallowed."""
        transaction = session.get_transaction()
        if transaction is not None:
            for begun in transaction._connections.values():
                if begun[0] not in self._passed:
                    self.watch(begun[0], home_of(begun[0].engine))


class FencedScoped(Fenced[S]):
    """On the session of a scope: each thread, or whatever a scope is, has one."""

    __slots__ = ("_began_in", "_scoped")

    def __init__(self, scoped: Scoped, claims: Claims, leases: Sequence[Leases]) -> None:
        super().__init__(scoped(), claims, leases)
        self._scoped = scoped
        self._began_in = self._here()

    def _commit(self, session: Session | Connection) -> None:
        # A block may be left by another thread, which has another session.
        if self._began_in == self._here() and self._scoped.registry.has() and self._scoped() is not self._session:
            error = ResourceUnavailable(REMOVED, outcome="unknown")
            _roll_back(session, error)
            raise error
        super()._commit(session)

    def _here(self) -> object:
        return getattr(self._scoped.registry, "scopefunc", threading.get_ident)()


def _is_ready(session: Session) -> bool:
    """Whether it has one engine, and the fence table is there: then there is nothing to look for."""
    bind = session.bind
    return type(bind) is Engine and not session.__dict__.get(_BINDS) and home_of(bind).prepared


def _binds(session: Session) -> list[Engine | Connection]:
    """Where the session will find its connections, as far as it says."""
    of_classes = session.__dict__.get(_BINDS)
    if not of_classes and session.bind is not None:
        return [session.bind]
    binds: list[Engine | Connection] = list((of_classes or {}).values())
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


def _at_commit(error: DBAPIError) -> Exception:
    """An error of COMMIT itself leaves open whether it happened; a constraint that is judged there does not."""
    refused = getattr(error.orig, "sqlstate", None) in REFUSED_AT_COMMIT and not error.connection_invalidated
    if refused or isinstance(error, IntegrityError):
        return error
    return ResourceUnavailable(f"the database failed while it committed: {cause(error)}", outcome="unknown")
