"""The async face of a hold: `async with locks.hold(key) as lease`."""

from collections.abc import Generator
from types import TracebackType
from typing import Any

from fencegate.client.claims import claim_of
from fencegate.client.connection import Connection
from fencegate.client.grant import Grant
from fencegate.client.handle import AsyncReactions, Handle, LostEvent
from fencegate.client.holding import Holding
from fencegate.client.lease import LeaseCore
from fencegate.client.life import Life
from fencegate.client.release import give_back
from fencegate.client.requests import attachment_request, lock_request
from fencegate.client.terms import Terms, check_names
from fencegate.core.errors import LockHeld

__all__ = ["Hold", "HoldTerms", "Lease", "LeaseReactions", "LostEvent", "TryHold", "attached_hold", "hold_of"]


class Lease(LeaseCore):
    """A time-bound hold on a lock key, renewed in the background until it is released or lost."""

    def __init__(self, connection: Connection, grant: Grant, parent: Life | None = None) -> None:
        LeaseCore.__init__(self, grant, connection.clock, parent)
        self._connection = connection

    @property
    def lost(self) -> LostEvent:
        """Set when the lease is lost: `await lease.lost.wait()`."""
        return LostEvent(self)

    async def release(self) -> None:
        """Give the lock back. Raises LockLost when it was lost before that; does nothing when it was released."""
        await give_back(self._connection, self)


class LeaseReactions(AsyncReactions[Lease], total=False):
    """What happens when the lease changes."""


class HoldTerms(Terms, LeaseReactions, total=False):
    """Every keyword of `hold` and `try_hold`."""


class Hold(Handle[Lease]):
    """A handle on a lock: `async with` it, or `await` it (the same as `acquire`) and `release` it.

    Leaving the block always releases. It raises LockLost when the lock was lost meanwhile, unless the body raised
    something itself; that gets a note instead.
    """


class TryHold:
    """Like Hold, but gives None where that would raise LockHeld."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    async def acquire(self) -> Lease | None:
        try:
            return await self._hold.acquire()
        except LockHeld:
            return None

    async def release(self) -> None:
        await self._hold.release()

    def __await__(self) -> Generator[Any, None, Lease | None]:
        return self.acquire().__await__()

    def __bool__(self) -> bool:
        # `if locks.try_hold(key):` would always be true, and go on without the lock.
        raise TypeError("nothing was asked yet: `async with` this, or `await` it; either gives a lease or None")

    async def __aenter__(self) -> Lease | None:
        try:
            return await self._hold.__aenter__()
        except LockHeld:
            return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._hold.__aexit__(kind, error, traceback)


def hold_of(connection: Connection, lock_key: str, terms: HoldTerms) -> Hold:
    check_names(terms, HoldTerms)
    session = terms.get("session")
    request = lock_request(connection, lock_key, terms)
    claim = claim_of(terms.get("claim"), connection.timeout_s)
    return Hold(connection, Holding(connection, request, lambda grant: Lease(connection, grant, session), claim), terms)


def attached_hold(connection: Connection, exported: str, reactions: LeaseReactions) -> Hold:
    check_names(reactions, LeaseReactions)
    request = attachment_request(connection, exported)
    return Hold(connection, Holding(connection, request, lambda grant: Lease(connection, grant)), reactions)
