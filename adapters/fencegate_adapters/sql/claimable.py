"""A database as what a lock claims on acquire: `locks.hold(key, claim=[claimable(engine)])`."""

import contextlib
from collections.abc import Iterator
from typing import overload

from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.sql.dialect import cause
from fencegate_adapters.sql.fenced import fenced


class EngineClaim:
    """The fences in a database, raised in transactions of their own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<claimable {self._engine.url!r}>"  # SQLAlchemy hides the password

    def claim(self, lock_key: str, token: int) -> None:
        """Raise the fence of the lock key to `token`; StaleToken when it has seen a higher one."""
        with (
            _reached(),
            self._engine.connect() as connection,
            fenced(connection, lock_key=lock_key, token=token),
        ):
            connection.execute(select(1)).close()


class AsyncEngineClaim:
    """The same for an async engine, in the event loop that it belongs to."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<claimable {self._engine.url!r}>"

    async def claim(self, lock_key: str, token: int) -> None:
        """Raise the fence of the lock key to `token`; StaleToken when it has seen a higher one."""
        with _reached():
            async with (
                self._engine.connect() as connection,
                fenced(connection, lock_key=lock_key, token=token),
            ):
                (await connection.execute(select(1))).close()


@overload
def claimable(engine: Engine) -> EngineClaim: ...
@overload
def claimable(engine: AsyncEngine) -> AsyncEngineClaim: ...
def claimable(engine: Engine | AsyncEngine) -> EngineClaim | AsyncEngineClaim:
    """The database behind `engine`, for `claim=`: its fence is raised before the lock is handed out.

    >>> with locks.hold("rebuild:eu", claim=[claimable(engine)]) as lease:
    ...     report = session.get(Report, "eu")     # no older holder can change it any more
    """
    if isinstance(engine, AsyncEngine):
        return AsyncEngineClaim(engine)
    if isinstance(engine, Engine):
        return EngineClaim(engine)
    raise TypeError(f"claimable() takes an Engine or AsyncEngine of SQLAlchemy, not {type(engine).__name__}")


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise ResourceUnavailable(f"the database can't be claimed: {cause(error)}", outcome="unknown") from error
