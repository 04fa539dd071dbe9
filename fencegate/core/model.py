"""Lock records and what stands beside them in the store: small frozen values, and nothing that acts.

Times are Unix microseconds of the store's clock. A record lives in the store under the name that its `…_entry`
function gives.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from fencegate.core.values import dataclass

LOCKS = "lock/"
DONE = "done/"
FLOORS = "floor/"
SESSIONS = "session/"
MEMBERS = "member/"
_SHARDS = 64
MAX_DEPTH = 16
"""How deep a hierarchical lock may lie: whoever is below compares that many locks at most."""


def lock_entry(lock_key: str) -> str:
    return LOCKS + lock_key


def done_entry(lock_key: str, request: str) -> str:
    return f"{DONE}{request}/{lock_key}"


def floor_entry(lock_key: str) -> str:
    """By the top of its path: locks above and below each other compare their tokens, also when they were forgotten."""
    return f"{FLOORS}{zlib.crc32(lock_key.partition('/')[0].encode()) % _SHARDS:02d}"


def session_entry(session_id: str) -> str:
    return SESSIONS + session_id


def members_of(session_id: str) -> str:
    """What the index entries of a session begin with."""
    return f"{MEMBERS}{session_id}/"


def member_entry(session_id: str, request: str, lock_key: str) -> str:
    return f"{MEMBERS}{session_id}/{request}/{lock_key}"


def request_of(lock_token: str) -> str:
    """A lock token is `request.secret`, so that a spent one still leads to what became of it."""
    return lock_token.partition(".")[0]


is_request = re.compile(r"[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,128}").fullmatch
"""Whether a request may be called that. A lock token comes from outside: under what else it names nothing is ever kept,
and some stores can't even be asked for it."""


def ancestors(lock_key: str) -> tuple[str, ...]:
    """The lock keys above this one, from the top down, as deep as a hierarchical lock may lie."""
    if "/" not in lock_key:
        return ()
    parts = lock_key.split("/")
    return tuple("/".join(parts[:depth]) for depth in range(1, min(len(parts), MAX_DEPTH + 1)) if parts[:depth] != [""])


# --- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """How a lock is asked for, where that is more than 'alone, and after those who came before'."""

    shared: bool = False
    """Together with others who ask for it shared."""
    limit: int = 0
    """One of so many permits, each with a slot and a token of its own."""
    priority: int = 0
    """Before those of a lower one; in the order of coming within one."""
    lock_delay_us: int = 0
    """How long nobody gets the lock after this hold was lost by expiry or by force."""
    max_hold_us: int = 0
    """How long it may be held in all, however often it is renewed."""
    group: tuple[str, ...] = ()
    """All the locks that are asked for together, this one among them: all or none."""
    session: str = ""
    """The session that this lives and dies with."""
    hierarchical: bool = False
    """With everything below it."""


PLAIN = Terms()


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who asks for a lock, and for what: the part that a waiter hands on to its hold."""

    request: str
    """Names this acquire: derived from the caller's `requestId`, or random."""
    lock_token: str
    owner_id: str
    ttl_us: int
    fingerprint: str = ""
    """Digest of the request's body, to tell a repeat from a reused `requestId`."""
    metadata: Mapping[str, Any] | None = None
    special: Terms | None = None

    @property
    def terms(self) -> Terms:
        return self.special or PLAIN


@dataclass(frozen=True, slots=True)
class Hold:
    """A lease: one acquire that was granted. Re-entrant ones share the fencing token, and so do shared ones."""

    who: Claimant
    token: int
    granted_us: int
    expires_us: int
    """For a lock under a session: when that ended as the grant was made. The session's record tells what is so now."""
    renewals: int = 0
    slot: int | None = None
    """Which of the permits this is; its fence is `lockKey#slot`."""
    pending: bool = False
    """A hierarchical lock that has yet to look below. It keeps others out, and nobody was told of it."""

    def until(self, session_us: int) -> "Hold":
        """The same hold, as it is told of while its session lasts until then."""
        terms = self.who.terms
        end_us = min(session_us, self.granted_us + terms.max_hold_us) if terms.max_hold_us else session_us
        return replace(self, expires_us=end_us)


@dataclass(frozen=True, slots=True)
class Waiter:
    """A place in the queue. It belongs to the replica that serves its polls, each of which is an attempt."""

    who: Claimant
    replica: str
    attempts: tuple[str, ...]
    keep_until_us: int = 0
    """When the place goes: for a poll that may come back, or when the polls that stand there must have ended."""
    suspect_us: int = 0
    """Since when its replica is thought dead, because an offer to it lapsed; 0 when it is not."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The lock, held out to one waiter. It counts as a hold until it is taken up or lapses."""

    waiter: Waiter
    until_us: int


@dataclass(frozen=True, slots=True)
class Revocation:
    """The holders were asked to let go, and will be made to."""

    at_us: int
    reason: str


@dataclass(frozen=True, slots=True)
class LockRecord:
    """All that is known of one lock key. `last_token` stays when the holds go."""

    last_token: int = 0
    holds: tuple[Hold, ...] = ()
    offer: Offer | None = None
    queue: tuple[Waiter, ...] = ()
    touched_us: int = 0
    closed_until_us: int = 0
    """Lock-delay: nobody gets the lock before this."""
    closed_below: bool = False
    """Lock-delay of a hierarchical lock: nobody gets one below it either."""
    revoked: Revocation | None = None


class Ending(StrEnum):
    RELEASED = "released"
    EXPIRED = "expired"
    FORCED = "forced"


@dataclass(frozen=True, slots=True)
class Done:
    """What became of an acquire that was granted and is over; kept for a while, so that a repeat gets its answer."""

    ending: Ending
    lock_token: str
    owner_id: str
    fingerprint: str
    token: int
    left: int
    until_us: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Floor:
    """The highest token of the records that were cleaned up in one shard."""

    token: int


@dataclass(frozen=True, slots=True)
class RevokedLock:
    """A lock of a session whose holder was asked to let go."""

    lock_key: str
    token: int
    revoked: Revocation


@dataclass(frozen=True, slots=True)
class Session:
    """One keep-alive for many locks. When it has ended, or is missing, they are free."""

    owner_id: str
    ttl_us: int
    opened_us: int
    expires_us: int
    renewals: int = 0
    ended: Ending | None = None
    """Once set, for good."""
    ended_us: int = 0
    revoked: tuple[RevokedLock, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """The index of what a session holds or waits for, so that it can be found when the session ends."""

    lock_key: str


Record = LockRecord | Done | Floor | Session | Member


class Event(NamedTuple):
    """A line of the change log: `acquired`, `released`, `expired`, `renewed`, `forced`, `revoked` or `queued`."""

    kind: str
    lock_key: str
    owner_id: str
    token: int = 0
    at_us: int = 0
    reason: str | None = None
    shared: bool = False
    slot: int | None = None
    since_us: int = 0
    """When the hold was granted: so the line that ends it tells the history all that there is to tell."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a record and the memory of the past."""

    max_waiters: int = 1000
    max_polls: int = 32
    """How many polls of one request may stand side by side."""
    max_reentrancy: int = 100
    max_holders: int = 1000
    offer_us: int = 3_000_000
    retention_us: int = 600_000_000
    suspect_us: int = 60_000_000
    idle_us: int = 3_600_000_000
    forgets: bool = True
    """Whether idle records are removed. Where they stay for good, no floor stands for those that are gone."""
    several: bool = True
    """Whether a commit may be about several locks: groups, sessions, locks above and below each other."""
    watched: bool = False
    """Whether leases end by being watched, each replica counting from when it saw them: the store has no clock."""


DEFAULT_LIMITS = Limits()
