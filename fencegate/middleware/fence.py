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
        self.has_committed = False
        """Whether a transaction behind it was committed, and the raised mark with it."""
        self.is_answered_for = False
        """Whether a database has compared the token, or the handler said that somebody else does, or nobody has to."""
        self.is_in_doubt = False
        """Whether one is being committed, or nobody knows what became of that."""
        self._was_in_doubt = False
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

    @property
    def may_have_written(self) -> bool:
        """Whether a transaction behind it was committed, or may have been."""
        return self.has_committed or self.is_in_doubt or self._was_in_doubt

    def passed(self) -> None:
        """A database has compared the token, and let it pass."""
        self._was_in_doubt |= self.is_in_doubt
        self.is_in_doubt = False
        self.is_answered_for = True
        self._noted(None)

    def committing(self) -> None:
        """A transaction behind it is about to be committed; without more news, nobody knows whether it was."""
        self._was_in_doubt |= self.is_in_doubt
        self.is_in_doubt = True

    def committed(self) -> None:
        """It was: what fails after that is a part of what was asked for."""
        self.is_in_doubt = False
        self.has_committed = True

    def not_committed(self) -> None:
        """It was not, for sure."""
        self.is_in_doubt = False

    def refused(self, error: FencegateError) -> None:
        """It did not, or can't be reached."""
        if isinstance(error, ResourceUnavailable) and error.outcome == "unknown":
            self._was_in_doubt = True
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
