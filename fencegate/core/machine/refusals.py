"""How the lock rules say no: which error, and what it tells the caller to do."""

from dataclasses import replace

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
from fencegate.core.model import Done, Ending, LockRecord, Session, request_of
from fencegate.core.ports import Interval

_ENDINGS = {
    Ending.RELEASED: "was released",
    Ending.EXPIRED: "ran out",
    Ending.FORCED: "was taken away by force",
}

WRONG_OWNER = "the ownerId is not the one that acquired this lock"


def free(lock_key: str, highest: int) -> LockFree:
    return LockFree(
        f"nobody holds {lock_key!r}", lockKey=lock_key, locked=False, highestToken=str(highest) if highest else None
    )


def held(lock: LockTurn) -> LockHeld:
    holds = tuple([lock.told(hold) for hold in lock.record.holds])
    return held_by(replace(lock.record, holds=holds), lock.now, lock.lock_key)


def held_by(record: LockRecord, now: Interval, lock_key: str) -> LockHeld:
    """Somebody else has the lock, or comes first, or holds one above it."""
    owner: str | None
    why = "the lock is held; wait for it, or come back later"
    if record.holds:
        # A permit comes free with the first of them, anything else with the last.
        which = min if record.holds[0].who.terms.limit else max
        hold = which(record.holds, key=lambda hold: hold.expires_us)
        owner, until_us = hold.who.owner_id, hold.expires_us
        if record.revoked is not None:
            until_us = min(until_us, record.revoked.at_us)
    elif record.offer is not None:
        owner, until_us = record.offer.waiter.who.owner_id, record.offer.until_us
    elif record.closed_until_us > now.earliest:
        owner, until_us = None, record.closed_until_us
        why = "the lock was lost by its holder, who asked for a pause before it is given again"
    elif (first := next((w.who.owner_id for w in record.queue if is_there(w)), None)) is not None:
        owner, until_us = first, now.earliest + 1_000_000  # it goes to the first who waits, now or with another lock
    else:
        owner, until_us = None, now.earliest + 1_000_000
        why = "a lock above this one keeps it closed; wait for it, or come back later"
    retry_ms = max(1, -(-(until_us - now.earliest) // 1000))
    return LockHeld(why, lockKey=lock_key, currentOwner=owner, retryAfterMillis=retry_ms)


def held_below(lock_key: str, owner_id: str) -> LockHeld:
    """A hierarchical lock can't be had, for one below it is held."""
    why = "a lock below this one is held, or was lost just now; wait for it, or come back later"
    return LockHeld(why, lockKey=lock_key, currentOwner=owner_id or None, retryAfterMillis=1000)


def over(past: Done) -> LockExpired:
    why = f" ({past.reason})" if past.reason else ""
    return LockExpired(f"this lease {_ENDINGS[past.ending]}{why}; acquire anew, with a new requestId")


def owns(past: Done, lock_token: str, owner_id: str | None) -> bool:
    return past.lock_token == lock_token and owner_id in (None, past.owner_id)


def not_held(lock: LockTurn, lock_token: str, owner_id: str | None) -> NotOwner | LockExpired:
    past = lock.past(request_of(lock_token))
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
