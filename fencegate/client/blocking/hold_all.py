"""The sync face of several locks at once: `with locks.hold_all(["a", ("b", "shared")]) as leases`."""

from collections.abc import Iterable
from functools import cached_property, partial

from fencegate.client.asks import LockChoice
from fencegate.client.background import background
from fencegate.client.blocking.handle import Handle, lost_event
from fencegate.client.blocking.hold import Lease
from fencegate.client.claims import GroupClaim, group_claim_of
from fencegate.client.connection import Connection
from fencegate.client.group import Grants, GroupCore
from fencegate.client.holding import Holding
from fencegate.client.life import Life
from fencegate.client.release import give_back
from fencegate.client.requests import locks_request
from fencegate.client.telling import Reactions
from fencegate.client.terms import GroupTerms, check_names


class Leases(GroupCore[Lease]):
    """Leases that are held as one, by lock key: `leases["a"].token`."""

    def __init__(self, connection: Connection, grants: Grants, session: Life | None = None) -> None:
        super().__init__(grants, connection.clock, lambda grant, group: Lease(connection, grant, group), session)
        self._connection = connection

    lost = cached_property(lost_event)
    """Set when one of them is lost, and so all."""

    def release(self) -> None:
        """Give all of them back. Raises LockLost when they were lost before that; does nothing when released."""
        background().run(give_back(self._connection, self))


class HoldAllTerms(GroupTerms, Reactions[Leases], total=False):
    """Every keyword of `hold_all`."""

    claim: GroupClaim | None
    """What to claim with which of the locks before they are handed out: `{"a": [account]}`. As for `hold`."""


class HoldAll(Handle[Leases]):
    """A handle on several locks, used like `Hold`."""


def hold_all_of(connection: Connection, locks: Iterable[LockChoice], terms: HoldAllTerms) -> HoldAll:
    check_names(terms, HoldAllTerms)
    session = terms.get("session")
    locks = tuple(locks)
    request = locks_request(connection, locks, terms)
    claim = group_claim_of(terms.get("claim"), locks, connection.timeout_s)
    make = partial(Leases, connection, session=session)
    return HoldAll(connection, Holding(connection, request, make, claim), terms)
