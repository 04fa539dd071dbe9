"""What can be asked of the state machine, and what comes of it. `at` names the entries that a command works on."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from fencegate.core.errors import FencegateError
from fencegate.core.model import Claimant, Event, Hold, Record, Revocation, Session, lock_entry, session_entry

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from fencegate.core.values import dataclass

# --- commands about one lock -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OfOneLock:
    lock_key: str

    @property
    def at(self) -> tuple[str, ...]:
        return (lock_entry(self.lock_key),)


@dataclass(frozen=True, slots=True)
class Acquire(_OfOneLock):
    who: Claimant
    replica: str
    attempt: str
    wait: bool = False
    named: bool = False
    """Whether the caller gave a `requestId`, so that the past has to be asked."""
    reentrant: bool = False
    wait_us: int = 0
    """How long this poll will stand there at most; 0 when that is not known."""
    fresh: bool = False
    """Whether the request was named for this very command, which is asked for the first time: it has no past. Whoever
    brings it a second time, or late, says so no more."""


@dataclass(frozen=True, slots=True)
class TakeUp(_OfOneLock):
    """The waiter's replica accepts the offer."""

    request: str


@dataclass(frozen=True, slots=True)
class Confirm(_OfOneLock):
    """A hierarchical lock that is pending was looked below: it is free there, or `blocked`, and goes on waiting."""

    request: str
    token: int
    """Of the pending hold under which the look was made: a later one of the same request has yet to look."""
    highest: int = 0
    """The highest token that was seen below."""
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class Leave(_OfOneLock):
    """A poll ends without the lock. With `keep_us` the place stays that long after the last poll left."""

    request: str
    attempt: str
    keep_us: int = 0


@dataclass(frozen=True, slots=True)
class Renew(_OfOneLock):
    lock_token: str
    owner_id: str | None = None
    ttl_us: int | None = None


@dataclass(frozen=True, slots=True)
class Release(_OfOneLock):
    lock_token: str
    owner_id: str | None = None


@dataclass(frozen=True, slots=True)
class ForceRelease(_OfOneLock):
    """Take the lock from its holders: at once, or when they were asked and the grace is over."""

    reason: str
    grace_us: int = 0


@dataclass(frozen=True, slots=True)
class Drop(_OfOneLock):
    """A session ended: what it holds here by this request goes, or its place."""

    session_id: str
    request: str


@dataclass(frozen=True, slots=True)
class Expire(_OfOneLock):
    """Nothing but the passing of time."""


@dataclass(frozen=True, slots=True)
class Forget(_OfOneLock):
    """Clean up the record, if it is idle."""


# --- commands about several locks, in one commit ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OfSeveral:
    parts: tuple[_OfOneLock, ...]

    @property
    def at(self) -> tuple[str, ...]:
        return tuple(lock_entry(part.lock_key) for part in self.parts)


@dataclass(frozen=True, slots=True)
class AcquireAll(_OfSeveral):
    """All of these locks, or none. The parts have one request and one lock token, in the order of their keys."""

    parts: tuple[Acquire, ...]

    @property
    def request(self) -> str:
        return self.parts[0].who.request


@dataclass(frozen=True, slots=True)
class RenewAll(_OfSeveral):
    parts: tuple[Renew, ...]


@dataclass(frozen=True, slots=True)
class ReleaseAll(_OfSeveral):
    parts: tuple[Release, ...]


@dataclass(frozen=True, slots=True)
class LeaveAll(_OfSeveral):
    parts: tuple[Leave, ...]


@dataclass(frozen=True, slots=True)
class _OfGroup:
    lock_keys: tuple[str, ...]
    request: str

    @property
    def at(self) -> tuple[str, ...]:
        return tuple(lock_entry(lock_key) for lock_key in self.lock_keys)


@dataclass(frozen=True, slots=True)
class HandOverAll(_OfGroup):
    """See whether the waiter who wants all of these can have them now; offer all, or none."""


@dataclass(frozen=True, slots=True)
class TakeUpAll(_OfGroup):
    """The waiter's replica accepts the offer of all of these."""


# --- commands about a session ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OfSession:
    session_id: str

    @property
    def at(self) -> tuple[str, ...]:
        return (session_entry(self.session_id),)


@dataclass(frozen=True, slots=True)
class OpenSession(_OfSession):
    owner_id: str
    ttl_us: int


@dataclass(frozen=True, slots=True)
class RenewSession(_OfSession):
    owner_id: str | None = None
    ttl_us: int | None = None


@dataclass(frozen=True, slots=True)
class EndSession(_OfSession):
    """Let go of everything that the session holds."""


@dataclass(frozen=True, slots=True)
class ExpireSession(_OfSession):
    """Nothing but the passing of time."""


@dataclass(frozen=True, slots=True)
class ForgetSession(_OfSession):
    """Clean up the record, if the session ended long ago and nothing of it is left."""


OfOneLock = Acquire | TakeUp | Confirm | Leave | Renew | Release | ForceRelease | Drop | Expire | Forget
OfSeveral = AcquireAll | RenewAll | ReleaseAll | LeaveAll | HandOverAll | TakeUpAll
OfSession = OpenSession | RenewSession | EndSession | ExpireSession | ForgetSession
Command = OfOneLock | OfSeveral | OfSession


# --- what comes of a command -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    hold: Hold


@dataclass(frozen=True, slots=True)
class Pending:
    """A hierarchical lock that has yet to look below."""

    hold: Hold


@dataclass(frozen=True, slots=True)
class GrantedAll:
    holds: tuple[Hold, ...]
    """In the order of the lock keys."""


@dataclass(frozen=True, slots=True)
class Queued:
    ahead: int


@dataclass(frozen=True, slots=True)
class Renewed:
    hold: Hold
    revoked: Revocation | None = None


@dataclass(frozen=True, slots=True)
class RenewedAll:
    parts: tuple[Renewed, ...]


@dataclass(frozen=True, slots=True)
class Released:
    left: int


@dataclass(frozen=True, slots=True)
class ReleasedAll:
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Revoking:
    """The holders were asked to let go, and will be made to at this time."""

    at_us: int


@dataclass(frozen=True, slots=True)
class SessionIs:
    session: Session


@dataclass(frozen=True, slots=True)
class Nothing:
    """It was done, or there was nothing to do."""


@dataclass(frozen=True, slots=True)
class Refused:
    error: FencegateError


Outcome = (
    Granted
    | Pending
    | GrantedAll
    | Queued
    | Renewed
    | RenewedAll
    | Released
    | ReleasedAll
    | Revoking
    | SessionIs
    | Nothing
    | Refused
)


class Step(NamedTuple):
    """The effects of one command: entries to write (None: delete), what to tell the caller, what to log."""

    outcome: Outcome
    writes: Mapping[str, Record | None] = MappingProxyType({})
    events: tuple[Event, ...] = ()
    not_after_us: int | None = None
    """The decision is void when the commit lands later than this."""
    next: tuple[HandOverAll, ...] = ()
    """What should be asked now: somebody who waits for several locks may be able to have them."""
    shaken: bool = False
    """Places were taken away, or are doubted: whoever stands there should ask again."""


@dataclass(frozen=True, slots=True)
class Need:
    """The command can't be decided without these entries."""

    entries: tuple[str, ...]
