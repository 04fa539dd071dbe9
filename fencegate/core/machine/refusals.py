"""How the lock rules say no: which error, and what it tells the caller to do."""

from fencegate.core.commands import Refused
from fencegate.core.errors import (
    InvalidInput,
    LockExpired,
    LockFree,
    LockHeld,
    MaxHoldReached,
    NotOwner,
    RequestIdReused,
    SessionExpired,
    SessionNotFound,
    TooManyWaiters,
)
from fencegate.core.machine.judging import is_there
from fencegate.core.machine.lock import LockTurn
from fencegate.core.model import Claimant, Done, Ending, Session

_ENDINGS = {
    Ending.RELEASED: "was released",
    Ending.EXPIRED: "ran out",
    Ending.FORCED: "was taken away by force",
}

_WAIT = "wait for it, or come back later"
_PAUSE = "was lost by its holder, who asked for a pause before it is given again"

WRONG_OWNER = "the ownerId is not the one that acquired this lock"


def free(lock_key: str, highest: int) -> LockFree:
    return LockFree(
        f"nobody holds {lock_key!r}", lockKey=lock_key, locked=False, highestToken=str(highest) if highest else None
    )


def held(lock: LockTurn, who: Claimant) -> LockHeld:
    """Somebody else has the lock, or comes first, or holds one above it."""
    record, now, name = lock.record, lock.now, repr(lock.lock_key)
    owner: str | None
    if record.holds:
        holds = [lock.told(hold) for hold in record.holds]
        # A permit comes free with the first of them, anything else with the last.
        hold = (min if holds[0].who.terms.limit else max)(holds, key=lambda hold: hold.expires_us)
        owner, until_us = hold.who.owner_id, hold.expires_us
        why = f"{name} is held by {owner!r}; {_WAIT}"
    elif record.offer is not None:
        owner, until_us = record.offer.waiter.who.owner_id, record.offer.until_us
        why = f"{name} is being handed to {owner!r}; {_WAIT}"
    elif record.closed_until_us > now.earliest:
        owner, until_us = None, record.closed_until_us
        why = f"{name} {_PAUSE}"
    elif (first := next((w.who.owner_id for w in record.queue if is_there(w)), None)) is not None:
        owner, until_us = first, now.earliest + 1_000_000  # it goes to the first who waits, now or with another lock
        why = f"{owner!r} waits for {name}, and comes first; {_WAIT}"
    else:
        owner, until_us = lock.kept_out_above(who) or (None, now.earliest + 1_000_000)
        why = f"a lock above {name} " + (_PAUSE if owner is None else f"is held by {owner!r}; {_WAIT}")
    retry_ms = max(1, -(-(until_us - now.earliest) // 1000))
    return LockHeld(why, lockKey=lock.lock_key, currentOwner=owner, retryAfterMillis=retry_ms)


def held_below(lock_key: str, owner_id: str) -> LockHeld:
    """A hierarchical lock can't be had, for one below it is held."""
    below = f"is held by {owner_id!r}; {_WAIT}" if owner_id else _PAUSE
    why = f"a lock below {lock_key!r} {below}"
    return LockHeld(why, lockKey=lock_key, currentOwner=owner_id or None, retryAfterMillis=1000)


def over(past: Done) -> LockExpired:
    why = f" ({past.reason})" if past.reason else ""
    return LockExpired(f"this lease {_ENDINGS[past.ending]}{why}; acquire anew, with a new requestId")


def owns(past: Done, lock_token: str, owner_id: str | None) -> bool:
    return past.lock_token == lock_token and owner_id in (None, past.owner_id)


def not_held(lock: LockTurn, lock_token: str, owner_id: str | None) -> NotOwner | LockExpired:
    past = lock.past_of(lock_token)
    if past is not None and owns(past, lock_token, owner_id):
        return over(past)
    return NotOwner("this lockToken holds nothing here; stop using the resource")


def reused() -> Refused:
    return Refused(RequestIdReused("this requestId was used with another body; use a new one for each request"))


def max_hold_reached(max_hold_us: int) -> Refused:
    ms = max_hold_us // 1000
    return Refused(MaxHoldReached(f"held for maxHoldMillis ({ms}) in all; finish before the lease runs out"))


def lives_by_its_session() -> Refused:
    return Refused(InvalidInput("lockToken", "this lock lives as long as its session; renew that"))


def other_limit(limit: int) -> Refused:
    return Refused(InvalidInput("limit", f"this lock is used with a limit of {limit}; agree on one"))


def too_many_waiters(why: str) -> Refused:
    return Refused(TooManyWaiters(why))


def session_over(session: Session | None) -> SessionExpired | SessionNotFound:
    if session is None or session.ended is None:
        return SessionNotFound("there is no such session; it may have ended long ago: open a new one")
    how = "ran out" if session.ended is Ending.EXPIRED else "was ended"
    return SessionExpired(f"this session {how}, and its locks are gone; open a new one")
