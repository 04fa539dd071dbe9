"""The async face of a session: `async with locks.session(ttl=30) as session`."""

from collections.abc import Iterable
from typing import Unpack

from fencegate.client.asks import LockChoice
from fencegate.client.connection import Connection
from fencegate.client.handle import AsyncReactions, Handle, LostEvent
from fencegate.client.hold import Hold, HoldTerms, TryHold, hold_of
from fencegate.client.hold_all import HoldAll, HoldAllTerms, hold_all_of
from fencegate.client.holding import Holding
from fencegate.client.release import give_back
from fencegate.client.requests import session_request
from fencegate.client.session import Opened, SessionCore
from fencegate.client.terms import check_names


class Session(SessionCore):
    """One keep-alive for any number of locks. When it ends, or runs out, all of them go."""

    def __init__(self, connection: Connection, opened: Opened) -> None:
        super().__init__(opened, connection.clock)
        self._connection = connection
        self.lost = LostEvent(self)
        """Set when the session is lost, and every lease with it: `await session.lost.wait()`."""

    def hold(self, lock_key: str, **terms: Unpack[HoldTerms]) -> Hold:
        """Like `locks.hold`, kept alive by this session."""
        return hold_of(self._connection, lock_key, {**terms, "session": self})

    def try_hold(self, lock_key: str, **terms: Unpack[HoldTerms]) -> TryHold:
        """Like `hold`, but gives None where that would raise LockHeld."""
        return TryHold(self.hold(lock_key, **terms))

    def hold_all(self, locks: Iterable[LockChoice], **terms: Unpack[HoldAllTerms]) -> HoldAll:
        """Like `locks.hold_all`, kept alive by this session."""
        return hold_all_of(self._connection, locks, {**terms, "session": self})

    async def end(self) -> None:
        """Release everything that it holds. Raises LockLost when it was lost before that."""
        await give_back(self._connection, self)


class SessionReactions(AsyncReactions[Session], total=False):
    """What happens when the session changes."""


class OpenSession(Handle[Session]):
    """A handle on a session, used like `Hold`; leaving the block ends the session."""


def session_of(connection: Connection, ttl: float, owner: str | None, reactions: SessionReactions) -> OpenSession:
    check_names(reactions, SessionReactions)
    request = session_request(connection, ttl, owner)
    holding = Holding(connection, request, lambda opened: Session(connection, opened))
    return OpenSession(connection, holding, reactions)
