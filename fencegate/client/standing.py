"""Standing for election: what candidates of both faces say, and what a term is."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypedDict, TypeVar

from fencegate.client.attempt import WORTH_REPEATING
from fencegate.client.claims import Claimable
from fencegate.client.grant import Revocation
from fencegate.client.lease import LeaseCore
from fencegate.client.session import SessionCore
from fencegate.core.errors import FencegateError, LockLost
from fencegate.core.token import Token

DEFAULT_TERM_S = 15.0
"""How long a dead leader is waited for: less than for other locks, since a leader is missed."""

BEFORE_STANDING_AGAIN_S = 1.0

WORTH_STANDING_AGAIN: Final[tuple[type[FencegateError], ...]] = (LockLost, *WORTH_REPEATING)
"""What ends one attempt to be elected, not the wish: a grant that came too late, a lock service that is away."""

L = TypeVar("L", bound=LeaseCore)


class Standing(TypedDict, total=False):
    """How one stands, in the words of `hold`. Durations are seconds."""

    ttl: float
    """How long a leader that died is waited for: 15 unless said otherwise; 1 to 3600."""
    metadata: Mapping[str, Any] | None
    """What observers see of a leader beside its owner: its address, say."""
    owner: str | None
    """Another owner than the client's own, for observers to see. It must not outlive a process."""
    priority: int
    """The higher is elected first among those who wait: -1000 to 1000, 0 by default."""
    lock_delay: float | None
    """How long nobody is elected after a leader was lost (not after it stopped), for what can't check tokens."""
    max_hold: float | None
    """How long a term may last in all."""
    session: SessionCore | None
    """The session that keeps the term alive; it has the TTL, and the owner."""
    claim: Sequence[Claimable | str] | None
    """What to claim before a term begins, as for `hold`."""


class TermCore(Generic[L]):
    """What both faces of a term share."""

    def __init__(self, lease: L) -> None:
        self.lease = lease
        """The lease behind the term, for `fenced(session, term.lease)`."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} token={self.token} {self.lease.state.value}>"

    @property
    def name(self) -> str:
        """What is led: the lock key."""
        return self.lease.lock_key

    @property
    def token(self) -> Token:
        """The fencing token of this term: above that of every earlier leader."""
        return self.lease.token

    @property
    def owner_id(self) -> str:
        return self.lease.owner_id

    @property
    def led(self) -> bool:
        """Whether we lead at this moment, by our own clock."""
        return self.lease.held

    @property
    def revoked(self) -> Revocation | None:
        """Why and when we will be deposed, once somebody asked for that and gave us time; else None."""
        return self.lease.revoked

    def ensure_led(self) -> None:
        """Raise LockLost unless we lead at this moment."""
        self.lease.ensure_held()

    def headers(self) -> dict[str, str]:
        """The headers that a leader's write carries to a protected resource; LockLost when it would come too late."""
        return self.lease.headers()


def hold_terms(standing: Mapping[str, Any], wait: float | None) -> dict[str, Any]:
    """The same in the words of a hold: without `wait` one waits for as long as it takes."""
    terms = {name: standing[name] for name in Standing.__optional_keys__ if name in standing}
    if terms.get("session") is None:
        terms.setdefault("ttl", DEFAULT_TERM_S)
    terms["wait"] = math.inf if wait is None else wait
    return terms
