"""What the rules judge by: when a hold is over, who fits beside whom, who keeps whom out, where one stands in line."""

from fencegate.core.machine.turn import Turn
from fencegate.core.model import Claimant, Ending, Hold, LockRecord, Terms, Waiter
from fencegate.core.ports import Interval


def ends_us(hold: Hold) -> int | None:
    """When a hold ends by itself; None when only its session can end it."""
    terms = hold.who.special
    if terms is None or not terms.session or hold.pending:
        return hold.expires_us
    return hold.granted_us + terms.max_hold_us if terms.max_hold_us else None


Over = tuple[Ending, int, str | None]
"""How a hold ended, when, and why if somebody said so."""


def over(turn: Turn, record: LockRecord, hold: Hold) -> Over | None:
    """How a hold of this record ended; None while it lasts. The one place that judges this: only what surely ended
    did. Of several ends the first counts, whichever is noticed first."""
    now_us = turn.now.earliest
    end_us = ends_us(hold)
    ended: Over | None = None
    if end_us is not None and end_us <= now_us:
        ended = Ending.EXPIRED, end_us, None
    terms = hold.who.special
    if terms is not None and terms.session:
        session = turn.session(terms.session)
        if session is None:
            ended = ended or (Ending.EXPIRED, turn.now.latest, None)
        elif session.ended is not None and (ended is None or session.ended_us < ended[1]):
            ended = session.ended, session.ended_us, None
    revoked = record.revoked
    if revoked is not None and revoked.at_us <= now_us and (ended is None or revoked.at_us < ended[1]):
        ended = Ending.FORCED, revoked.at_us, revoked.reason
    return ended


def closed_until(hold: Hold, ending: Ending, at_us: int) -> int:
    """Until when the lock stays closed after this hold: it was lost, and not given back. Nobody had a pending one."""
    delay_us = hold.who.terms.lock_delay_us
    return at_us + delay_us if delay_us and ending is not Ending.RELEASED and not hold.pending else 0


def keeps_out(turn: Turn, record: LockRecord, hold: Hold) -> bool:
    """Whether a hold counts for those above and below it: it lasts, or its lock-delay does, noticed or not."""
    ended = over(turn, record, hold)
    return ended is None or closed_until(hold, ended[0], ended[1]) > turn.now.earliest


def is_there(waiter: Waiter) -> bool:
    """Whether somebody stands at this place who could take the lock now."""
    return bool(waiter.attempts) and not waiter.suspect_us


def fits_beside(record: LockRecord, who: Claimant, now: Interval) -> bool:
    """Whether `who` may hold the lock beside those who do, and the one whom it is offered to."""
    if record.closed_until_us > now.earliest or record.revoked is not None:
        return False
    offered = record.offer.waiter.who if record.offer is not None else None
    if offered is not None and offered.request == who.request:
        offered = None
    if not record.holds and offered is None:
        return True
    others = [hold.who for hold in record.holds] + ([offered] if offered is not None else [])
    terms = who.terms
    if terms.hierarchical or any(other.terms.hierarchical for other in others):
        return False  # whoever joined would not have looked below
    if terms.limit:
        taken = len({hold.slot for hold in record.holds}) + (offered is not None)
        return taken < terms.limit and all(other.terms.limit == terms.limit for other in others)
    return terms.shared and all(other.terms.shared for other in others)


def excludes(above: Hold, terms: Terms) -> bool:
    """Whether a hold keeps those below it out who come on these terms."""
    if above.who.terms.shared and terms.shared:
        return False
    return above.who.terms.hierarchical or terms.hierarchical


def queued(queue: tuple[Waiter, ...], waiter: Waiter, *, first: bool = False) -> tuple[Waiter, ...]:
    """Behind all of the same or a higher priority; `first`: before those of the same."""
    place = len(queue)
    priority = waiter.who.terms.priority
    while place and (
        queue[place - 1].who.terms.priority < priority or (first and queue[place - 1].who.terms.priority == priority)
    ):
        place -= 1
    return (*queue[:place], waiter, *queue[place:])
