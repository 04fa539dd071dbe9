"""Lock records, the commands that change them, and what comes of it: small frozen values, and nothing that acts.

Times are Unix microseconds of the store's clock. A record lives in the store under the name that `lock_entry`,
`done_entry` or `floor_entry` gives.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fencegate.core.errors import FencegateError

LOCKS = "lock/"
DONE = "done/"
FLOORS = "floor/"
_SHARDS = 64


def lock_entry(lock_key: str) -> str:
    return LOCKS + lock_key


def done_entry(lock_key: str, request: str) -> str:
    return f"{DONE}{request}/{lock_key}"


def floor_entry(lock_key: str) -> str:
    return f"{FLOORS}{zlib.crc32(lock_key.encode()) % _SHARDS:02d}"


def request_of(lock_token: str) -> str:
    """A lock token is `request.secret`, so that a spent one still leads to what became of it."""
    return lock_token.partition(".")[0]


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
    renewals: int = 0
    slot: int | None = None
    """Which of the permits this is; its fence is `lockKey#slot`."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A place in the queue. It belongs to the replica that serves its polls, each of which is an attempt."""

    who: Claimant
    replica: str
    attempts: tuple[str, ...]
    keep_until_us: int = 0
    """With no attempt left: how long the place is kept for a poll that comes back."""
    suspect_us: int = 0
    """Since when its replica is thought dead, because an offer to it lapsed; 0 when it is not."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The lock, held out to one waiter. It counts as a hold until it is taken up or lapses."""

    waiter: Waiter
    until_us: int


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


Record = LockRecord | Done | Floor


# --- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acquire:
    lock_key: str
    who: Claimant
    replica: str
    attempt: str
    wait: bool = False
    named: bool = False
    """Whether the caller gave a `requestId`, so that the past has to be asked."""
    reentrant: bool = False


@dataclass(frozen=True, slots=True)
class TakeUp:
    """The waiter's replica accepts the offer."""

    lock_key: str
    request: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A poll ends without the lock. With `keep_us` the place stays that long after the last poll left."""

    lock_key: str
    request: str
    attempt: str
    keep_us: int = 0


@dataclass(frozen=True, slots=True)
class Renew:
    lock_key: str
    lock_token: str
    owner_id: str | None = None
    ttl_us: int | None = None


@dataclass(frozen=True, slots=True)
class Release:
    lock_key: str
    lock_token: str
    owner_id: str | None = None


@dataclass(frozen=True, slots=True)
class ForceRelease:
    lock_key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Expire:
    """Nothing but the passing of time."""

    lock_key: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Clean up the record, if it is idle."""

    lock_key: str


Command = Acquire | TakeUp | Leave | Renew | Release | ForceRelease | Expire | Forget


# --- what comes of a command -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    hold: Hold


@dataclass(frozen=True, slots=True)
class Queued:
    ahead: int


@dataclass(frozen=True, slots=True)
class Renewed:
    hold: Hold


@dataclass(frozen=True, slots=True)
class Released:
    left: int


@dataclass(frozen=True, slots=True)
class Nothing:
    """It was done, or there was nothing to do."""


@dataclass(frozen=True, slots=True)
class Refused:
    error: FencegateError


Outcome = Granted | Queued | Renewed | Released | Nothing | Refused


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the change log: `acquired`, `released`, `expired`, `renewed`, `forced` or `queued`."""

    kind: str
    lock_key: str
    owner_id: str
    token: int = 0
    at_us: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The effects of one command: entries to write (None: delete), what to tell the caller, what to log."""

    outcome: Outcome
    writes: Mapping[str, Record | None] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    not_after_us: int | None = None
    """The decision is void when the commit lands later than this."""


@dataclass(frozen=True, slots=True)
class Need:
    """The command can't be decided without these entries."""

    entries: tuple[str, ...]


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


DEFAULT_LIMITS = Limits()
