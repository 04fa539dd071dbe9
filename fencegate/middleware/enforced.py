"""A session behind the fence of a request: `with fence.enforce(session)`, or without a block, until the request ends.

The block is that of `fencegate.sql.fenced`. What is added here: the check comes at once and not with a write that may
never come, forgetting to await is no way round it, and the request learns what became of it.
"""

import contextlib
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Connection, event, select
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from fencegate.core.errors import FencegateError, UnsafeConfiguration

S = TypeVar("S")

_COMMITS = ("commit", "commit_twophase")
_DONE_BY = ("_commit_impl", "_commit_twophase_impl")
"""The methods of a connection that do that."""
_TOLD = "fencegate_told"
"""Among the attributes of a connection: who is told of commits that succeeded."""

_COMMITTED_BY_CALLER = (Session, Connection, AsyncSession, AsyncConnection)
_FORGOTTEN = "fence.enforce(…) of an async session or connection is awaited, or entered by `async with`; it was neither"


class Fence(Protocol):
    """What an enforcement needs of the fence of its request."""

    @property
    def lock_key(self) -> str: ...
    @property
    def token(self) -> int: ...

    def passed(self) -> None:
        """A database has compared the token, and let it pass."""

    def committing(self) -> None:
        """A transaction behind it is about to be committed."""

    def committed(self) -> None:
        """It was."""

    def not_committed(self) -> None:
        """It was not, for sure."""

    def refused(self, error: FencegateError) -> None:
        """It did not."""


class Enforced(Generic[S]):
    """A session behind a fence: `with` or `async with` it to commit at the end, or commit yourself."""

    def __init__(self, fence: Fence, session: S) -> None:
        from fencegate_adapters.sql.fenced import fenced

        self._fence = fence
        self._session: S = session() if isinstance(session, scoped_session | async_scoped_session) else session
        self._block: Any = fenced(session, fence)
        if isinstance(self._session, _COMMITTED_BY_CALLER):
            self._block.refused = self._noting  # also later, at any statement of the handler's, which may swallow it
        self._is_async = hasattr(self._session, "__aenter__")
        self._entered = False
        self._left = False
        self._heard: list[Connection] = []
        """Those whose commits are told: the connection itself, or those of a session that passed."""
        self._is_committing = False
        self._begin()

    # --- without await: it holds from the call of `enforce` on ---

    def __enter__(self) -> S:
        if self._is_async:
            raise TypeError("use `async with fence.enforce(…)` for an async session or connection")
        self._check_not_left()
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._entered, self._left = False, True
        self._noting(error)
        try:
            with self._noted(), self._judged(error):
                is_rollback: bool | None = self._block.__exit__(kind, error, traceback)
        finally:
            self._unwatch()  # what the session does from here on is behind no fence, and passes none
        return is_rollback  # psycopg.Rollback is no error

    # --- with await ---

    async def __aenter__(self) -> S:
        if not self._is_async:
            raise TypeError("use `with fence.enforce(…)` for a session or connection that is not async")
        self._check_not_left()
        if self._entered:
            return self._session
        self._disarm()
        with self._noted():
            await self._block.__aenter__()
            self._entered = True
            self._watch()
            try:
                await self._touch_async()
            except BaseException as error:
                self._entered = False
                self._unwatch()
                await self._block.__aexit__(type(error), error, error.__traceback__)
                raise
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._entered, self._left = False, True
        self._noting(error)
        try:
            with self._noted(), self._judged(error):
                is_rollback: bool | None = await self._block.__aexit__(kind, error, traceback)
        finally:
            self._unwatch()
        return is_rollback

    def __await__(self) -> Generator[Any, None, S]:
        return self.__aenter__().__await__()

    # --- for the fence ---

    def _check_not_left(self) -> None:
        if self._left:
            raise UnsafeConfiguration("this block was left, and the fence with it: call fence.enforce(…) again")

    def _begin(self) -> None:
        if self._is_async:
            self._arm()
            return
        with self._noted():
            self._block.__enter__()
            self._entered = True
            self._watch()
            try:
                self._touch()
            except BaseException as error:
                self._entered = False
                self._unwatch()
                self._block.__exit__(type(error), error, error.__traceback__)
                raise

    @property
    def is_left_open(self) -> bool:
        """Whether nothing of it can be committed any more: with psycopg and Django, the block is what commits."""
        return self._entered and not isinstance(self._session, _COMMITTED_BY_CALLER)

    def end(self) -> None:
        """The request is over: a session that outlives it is behind this fence no more."""
        self._disarm()
        self._unwatch()
        if self._entered:  # no block was left: what was not committed by now is not wanted
            self._entered = False
            over = FencegateError("the request is over")
            self._block.__exit__(type(over), over, None)

    async def end_async(self) -> None:
        """The same, for the kinds that are awaited."""
        self._disarm()
        self._unwatch()
        if self._entered:
            self._entered = False
            over = FencegateError("the request is over")
            if self._is_async:
                await self._block.__aexit__(type(over), over, None)
            else:
                self._block.__exit__(type(over), over, None)

    # --- the check comes at once, and not with a write that may never come; connections of others check on entering ---

    def _touch(self) -> None:
        session: Any = self._session
        if isinstance(session, Session):
            # One without a bind of its own passes with its first statement.
            with contextlib.suppress(UnboundExecutionError):
                session.connection()
            return
        if isinstance(session, Connection):
            session.execute(select(1)).close()
        self._fence.passed()

    async def _touch_async(self) -> None:
        session: Any = self._session
        if isinstance(session, AsyncSession):
            with contextlib.suppress(UnboundExecutionError):
                await session.connection()
            return
        if isinstance(session, AsyncConnection):
            (await session.execute(select(1))).close()
        self._fence.passed()

    # --- events of SQLAlchemy: it passed the fence, it committed; it began although nobody awaited us ---

    def _sync(self) -> Session | Connection | None:
        """What has the events; psycopg and Django have none, and commit by their blocks alone."""
        session = self._session
        if isinstance(session, AsyncSession):
            return session.sync_session
        if isinstance(session, AsyncConnection):
            return session.sync_connection
        return session if isinstance(session, Session | Connection) else None

    def _watch(self) -> None:
        target = self._sync()
        if isinstance(target, Session):
            event.listen(target, "after_begin", self._passed)  # after the fence's own, which raises when stale
        elif target is not None:
            self._hear(target)

    def _unwatch(self) -> None:
        target = self._sync()
        if isinstance(target, Session) and event.contains(target, "after_begin", self._passed):
            event.remove(target, "after_begin", self._passed)
        for connection in self._heard:
            for name in _COMMITS:
                event.remove(connection, name, self._committing)
            _tell_no_more(connection, self._committed)
        self._heard = []

    def _passed(self, _session: Session, _transaction: object, connection: Connection) -> None:
        self._block.check_open()  # in PostgreSQL it may be planned only, to go along with a first statement
        self._fence.passed()
        self._is_committing = False
        self._hear(connection)

    def _hear(self, connection: Connection) -> None:
        if connection not in self._heard:
            for name in _COMMITS:
                event.listen(connection, name, self._committing)
            _tell(connection, self._committed)
            self._heard = [*(each for each in self._heard if not each.closed), connection]

    def _committing(self, *_: object) -> None:
        self._is_committing = True
        self._fence.committing()

    def _committed(self) -> None:
        self._is_committing = False
        self._fence.committed()

    @contextlib.contextmanager
    def _judged(self, error: BaseException | None) -> Generator[None, None, None]:
        """Around the end of the block, which knows of an error of COMMIT whether it leaves anything open."""
        try:
            yield
        except FencegateError:
            raise
        except Exception:
            if self._is_committing:
                self._is_committing = False
                self._fence.not_committed()
            raise
        if error is None and self._sync() is None:
            self._fence.committed()

    def _arm(self) -> None:
        """An await that was forgotten must not leave the session's work without the fence."""
        if (target := self._sync()) is not None:
            for name in _beginnings(target):
                event.listen(target, name, self._forgotten)

    def _disarm(self) -> None:
        if (target := self._sync()) is not None:
            for name in _beginnings(target):
                if event.contains(target, name, self._forgotten):
                    event.remove(target, name, self._forgotten)

    def _forgotten(self, *_: object) -> None:
        raise UnsafeConfiguration(_FORGOTTEN)

    # --- refusals are noted, since some frameworks turn every exception into a 500 before we see it ---

    @contextlib.contextmanager
    def _noted(self) -> Generator[None, None, None]:
        try:
            yield
        except BaseException as error:
            self._noting(error)
            raise

    def _noting(self, error: BaseException | None) -> None:
        if isinstance(error, FencegateError):
            self._fence.refused(error)


def _beginnings(target: Session | Connection) -> tuple[str, ...]:
    """A session has begun nevertheless, and if that was swallowed, it is not told again before the commit."""
    return ("after_begin", "before_commit") if isinstance(target, Session) else ("begin",)


def _tell(connection: Connection, told: Callable[[], None]) -> None:
    """Of commits that succeeded: the events of a connection come before the COMMIT, and none comes after it."""
    known = vars(connection)
    if _TOLD not in known:
        known |= {name: _telling(connection, getattr(connection, name)) for name in _DONE_BY}
    known[_TOLD] = (*known.get(_TOLD, ()), told)


def _tell_no_more(connection: Connection, told: Callable[[], None]) -> None:
    known = vars(connection)
    known[_TOLD] = tuple(another for another in known.get(_TOLD, ()) if another != told)
    if not known[_TOLD]:
        for name in (_TOLD, *_DONE_BY):
            known.pop(name, None)


def _telling(connection: Connection, commit: Callable[..., None]) -> Callable[..., None]:
    def commit_and_tell(*given: Any) -> None:
        commit(*given)
        for told in vars(connection)[_TOLD]:
            told()

    return commit_and_tell
