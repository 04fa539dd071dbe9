"""The fence of one request: its lock key, its token, and `enforce`, which puts a session's work behind them."""

import contextlib
import logging
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from fencegate.core.errors import FencegateError, ResourceUnavailable
from fencegate.core.token import Token, token_headers
from fencegate.middleware.enforced import Enforced

S = TypeVar("S")

log = logging.getLogger("fencegate.middleware")


class Fence:
    """The fence that guards what a request writes, and the token that the request showed for it."""

    def __init__(self, lock_key: str, token: Token, noted: Callable[[FencegateError | None], None]) -> None:
        self.lock_key = lock_key
        self.token = token
        self.has_passed = False
        """Whether a database has compared the token, and let it pass."""
        self.is_answered_for = False
        """Whether that is so, or the handler said that somebody else compares, or that nobody has to."""
        self.may_have_written = False
        """Whether a transaction behind it was committed, or may have been."""
        self._noted = noted
        self._blocks: list[Enforced[Any]] = []

    def __repr__(self) -> str:
        return f"<Fence {self.lock_key!r} token={self.token}>"

    def enforce(self, session: S) -> "Enforced[S]":
        """Put every transaction of `session` in this request behind the fence; StaleToken when a newer holder was here.

        >>> with Session(engine) as session, fence.enforce(session):           # commits at the end of the block
        ...     session.add(entry)

        Without a block (`fence.enforce(session)`, or `await fence.enforce(session)`) you commit yourself; connections
        of psycopg and Django don't allow that, and take the block. The session is one of those that
        `fencegate.sql.fenced` takes, and must not have begun a transaction: what was read before the fence was raised
        may be old.
        """
        self._blocks.append(block := Enforced(self, session))
        return block

    def headers(self) -> dict[str, str]:
        """The token's headers for a request to another service, which then is the one that compares."""
        self.is_answered_for = True
        return token_headers(self.token.wire, self.lock_key)

    def waive(self) -> None:
        """Say that this request changes nothing that the fence guards, so that nothing has to be compared."""
        self.is_answered_for = True

    def passed(self) -> None:
        """A database has compared the token, and let it pass."""
        self.has_passed = self.is_answered_for = True
        self._noted(None)

    def committed(self) -> None:
        """A transaction behind it was committed: what fails after that is a part of what was asked for."""
        self.may_have_written = True

    def refused(self, error: FencegateError) -> None:
        """It did not, or can't be reached."""
        if isinstance(error, ResourceUnavailable) and error.outcome == "unknown":
            self.may_have_written = True
        self._noted(error)

    @property
    def is_left_open(self) -> bool:
        """Whether there is work that only the end of a block would have committed, and no block that ended."""
        return any(block.is_left_open for block in self._blocks)

    def end(self) -> None:
        """The request is over."""
        for block in self._blocks:
            with _logged():
                block.end()

    async def end_async(self) -> None:
        """The same, in an event loop."""
        for block in self._blocks:
            with _logged():
                await block.end_async()


@contextlib.contextmanager
def _logged() -> Generator[None, None, None]:
    """The answer is on its way, so there is nobody to raise to."""
    try:
        yield
    except Exception:
        log.exception("a session could not be taken from behind its fence")
