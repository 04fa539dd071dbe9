"""The sync face of a hold: `with locks.hold(key) as lease`."""

from functools import cached_property
from types import TracebackType

from fencegate.client.background import background
from fencegate.client.blocking.handle import Handle, lost_event
from fencegate.client.claims import claim_of
from fencegate.client.connection import Connection
from fencegate.client.grant import Grant
from fencegate.client.holding import Holding
from fencegate.client.lease import LeaseCore
from fencegate.client.life import Life
from fencegate.client.release import give_back
from fencegate.client.requests import attachment_request, lock_request
from fencegate.client.telling import Reactions
from fencegate.client.terms import Terms, check_names
from fencegate.core.errors import LockHeld


class Lease(LeaseCore):
    """A time-bound hold on a lock key, renewed in the background until it is released or lost."""

    def __init__(self, connection: Connection, grant: Grant, parent: Life | None = None) -> None:
        super().__init__(grant, connection.clock, parent)
        self._connection = connection

    lost = cached_property(lost_event)
    """Set when the lease is lost: `lease.lost.wait(timeout)`."""

    def release(self) -> None:
        """Give the lock back. Raises LockLost when it was lost before that; does nothing when it was released."""
        background().run(give_back(self._connection, self))


class LeaseReactions(Reactions[Lease], total=False):
    """What happens when the lease changes. Callbacks are called in a thread of their own."""


class HoldTerms(Terms, LeaseReactions, total=False):
    """Every keyword of `hold` and `try_hold`."""


class Hold(Handle[Lease]):
    """A handle on a lock: `with` it, or `acquire` and `release` it. The rules are those of `fencegate.Hold`."""


class TryHold:
    """Like Hold, but gives None where that would raise LockHeld."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def acquire(self) -> Lease | None:
        try:
            return self._hold.acquire()
        except LockHeld:
            return None

    def release(self) -> None:
        self._hold.release()

    def __bool__(self) -> bool:
        # `if locks.try_hold(key):` would always be true, and go on without the lock.
        raise TypeError("nothing was asked yet: use it by `with`, or call acquire(); either gives a lease or None")

    def __enter__(self) -> Lease | None:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hold.__exit__(kind, error, traceback)


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
