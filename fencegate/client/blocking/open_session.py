"""The sync face of a session: `with locks.session(ttl=30) as session`."""

from collections.abc import Iterable
from functools import cached_property
from typing import Unpack

from fencegate.client.asks import LockChoice
from fencegate.client.background import background
from fencegate.client.blocking.handle import Handle, lost_event
from fencegate.client.blocking.hold import Hold, HoldTerms, TryHold, hold_of
from fencegate.client.blocking.hold_all import HoldAll, HoldAllTerms, hold_all_of
from fencegate.client.connection import Connection
from fencegate.client.holding import Holding
from fencegate.client.release import give_back
from fencegate.client.requests import session_request
from fencegate.client.session import Opened, SessionCore
from fencegate.client.telling import Reactions
from fencegate.client.terms import check_names


class Session(SessionCore):
    """One keep-alive for any number of locks. When it ends, or runs out, all of them go."""

    def __init__(self, connection: Connection, opened: Opened) -> None:
        super().__init__(opened, connection.clock)
        self._connection = connection

    lost = cached_property(lost_event)
    """Set when the session is lost, and every lease with it: `session.lost.wait(timeout)`."""

    def hold(self, lock_key: str, **terms: Unpack[HoldTerms]) -> Hold:
        """Like `locks.hold`, kept alive by this session."""
        return hold_of(self._connection, lock_key, {**terms, "session": self})

    def try_hold(self, lock_key: str, **terms: Unpack[HoldTerms]) -> TryHold:
        """Like `hold`, but gives None where that would raise LockHeld."""
        return TryHold(self.hold(lock_key, **terms))

    def hold_all(self, locks: Iterable[LockChoice], **terms: Unpack[HoldAllTerms]) -> HoldAll:
        """Like `locks.hold_all`, kept alive by this session."""
        return hold_all_of(self._connection, locks, {**terms, "session": self})

    def end(self) -> None:
        """Release everything that it holds. Raises LockLost when it was lost before that."""
        background().run(give_back(self._connection, self))


class SessionReactions(Reactions[Session], total=False):
    """What happens when the session changes. Callbacks are called in a thread of their own."""


class OpenSession(Handle[Session]):
    """A handle on a session, used like `Hold`; leaving the block ends the session."""


def session_of(connection: Connection, ttl: float, owner: str | None, reactions: SessionReactions) -> OpenSession:
    check_names(reactions, SessionReactions)
    request = session_request(connection, ttl, owner)
    holding = Holding(connection, request, lambda opened: Session(connection, opened))
    return OpenSession(connection, holding, reactions)
