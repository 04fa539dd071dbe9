"""What whoever only looks at records may say of them: who holds a lock now, and when time will change it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fencegate.core.machine.judging import ends_us, excludes, is_there, keeps_out, over
from fencegate.core.machine.refusals import session_over
from fencegate.core.machine.turn import Turn
from fencegate.core.model import DEFAULT_LIMITS, Claimant, Hold, LockRecord, Record, Session, session_entry
from fencegate.core.ports import Interval

Sessions = Mapping[str, Record | None]
"""Session entries, as they were loaded."""


class Below(NamedTuple):
    """What a hierarchical lock finds below itself."""

    highest: int
    """The highest token there."""
    holder: str | None
    """Somebody who holds a lock there, '' when it is nobody but a lock-delay lasts; None when all is free."""


def sessions_of(record: LockRecord) -> set[str]:
    """The entries of the sessions that this record's holds live by."""
    return {
        session_entry(hold.who.special.session)
        for hold in record.holds
        if hold.who.special and hold.who.special.session
    }


def live_holds(record: LockRecord, now: Interval, sessions: Sessions) -> list[Hold]:
    """The holds that count now, each with the end that is known of it; `sessions` has those of `sessions_of`."""
    turn = Turn(sessions, now, DEFAULT_LIMITS)
    return [_told(turn, record, hold) for hold in record.holds if not hold.pending and over(turn, record, hold) is None]


def _told(turn: Turn, record: LockRecord, hold: Hold) -> Hold:
    session = turn.session(hold.who.terms.session) if hold.who.terms.session else None
    if session is not None:
        hold = hold.until(session.expires_us)
    return hold if record.revoked is None else hold.until(min(hold.expires_us, record.revoked.at_us))


def live_session(session_id: str, found: Record | None, now: Interval) -> Session:
    """The session as it is now; SessionExpired or SessionNotFound when it is over, noticed or not."""
    session = Turn({session_entry(session_id): found}, now, DEFAULT_LIMITS).session(session_id)
    if session is None or session.ended is not None:
        raise session_over(session)
    return session


def waiting(record: LockRecord, now: Interval) -> int:
    """How many wait for this lock, without those whose place has run out though nobody noticed."""
    gone = [waiter for waiter in record.queue if 0 < waiter.keep_until_us <= now.earliest]
    return len(record.queue) - len(gone) + (record.offer is not None)


def look_below(records: Iterable[LockRecord], who: Claimant, now: Interval, sessions: Sessions) -> Below:
    """Whether a hierarchical lock may be confirmed over these, and above which token."""
    turn = Turn(sessions, now, DEFAULT_LIMITS)
    highest, holder = 0, None
    for record in records:
        highest = max(highest, record.last_token)
        if record.closed_until_us > now.earliest:
            holder = holder or ""
        for hold in record.holds:
            if excludes(hold, who.terms) and keeps_out(turn, record, hold):
                holder = hold.who.owner_id
    return Below(highest, holder)


def wakes_at(record: LockRecord) -> int | None:
    """When time alone next changes something that others should hear of: a lease or an offer ends."""
    if record.offer is None and not record.queue and not record.closed_until_us and record.revoked is None:
        if not record.holds:
            return None
        if len(record.holds) == 1:
            return ends_us(record.holds[0])
    times = [end_us for hold in record.holds if (end_us := ends_us(hold)) is not None]
    if record.revoked is not None:
        times.append(record.revoked.at_us)
    if record.offer is not None:
        times.append(record.offer.until_us)
    if record.closed_until_us:  # those who wait may be below it
        times.append(record.closed_until_us)
    if record.queue and not record.holds and record.offer is None:  # the first waits for another lock too
        first_us = next((waiter.keep_until_us for waiter in record.queue if is_there(waiter)), 0)
        times += [first_us] if first_us else []
    return min(times, default=None)
