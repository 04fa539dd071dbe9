"""What came of a command, and what is in the store, in the words of the scenarios."""

from fencegate.core.commands import (
    Granted,
    GrantedAll,
    Outcome,
    Pending,
    Queued,
    Refused,
    Released,
    ReleasedAll,
    Renewed,
    RenewedAll,
    Revoking,
    SessionIs,
)
from fencegate.core.model import (
    LOCKS,
    Done,
    Event,
    Floor,
    Hold,
    LockRecord,
    Member,
    Record,
    Revocation,
    Session,
    Waiter,
)


def seconds(value_us: int) -> str:
    return f"{value_us / 1_000_000:.6f}".rstrip("0").rstrip(".") + "s"


def told(outcome: Outcome) -> str:
    match outcome:
        case Granted(hold):
            return f"granted to {lease(hold)}"
        case Pending(hold):
            return f"pending for {lease(hold)}"
        case GrantedAll(holds):
            return f"granted all: {'; '.join(lease(hold) for hold in holds)}"
        case Renewed(hold, revoked):
            return f"renewed {lease(hold)}{taken(revoked)}"
        case RenewedAll(parts):
            return f"renewed all: {'; '.join(lease(part.hold) + taken(part.revoked) for part in parts)}"
        case Released(left):
            return f"released, {left} left"
        case ReleasedAll(left):
            return f"released all, {' and '.join(str(one) for one in left)} left"
        case Revoking(at_us):
            return f"revoked, to be taken at {seconds(at_us)}"
        case SessionIs(session):
            return f"session {life(session)}"
        case Queued(ahead):
            return f"queued, {ahead} ahead"
        case Refused(error):
            members = ", ".join(f"{name} {value}" for name, value in error.members.items())
            return f"refused: {error.code}" + (f" ({members})" if members else "")
        case _:
            return "nothing"


def lease(hold: Hold) -> str:
    slot = "" if hold.slot is None else f", slot {hold.slot}"
    return f"{hold.who.request}, token {hold.token}{slot}, until {seconds(hold.expires_us)}"


def taken(revoked: Revocation | None) -> str:
    return "" if revoked is None else f", revoked ({revoked.reason}) and taken at {seconds(revoked.at_us)}"


def life(session: Session) -> str:
    ended = "" if session.ended is None else f", {session.ended.value} at {seconds(session.ended_us)}"
    revoked = "".join(f"; {lock.lock_key} {lock.token}{taken(lock.revoked)}" for lock in session.revoked)
    return f"of {session.owner_id}, until {seconds(session.expires_us)}{ended}{revoked}"


def logged(event: Event) -> str:
    where = "" if event.lock_key == "k" else f" at {event.lock_key}"
    return f"{event.kind} {event.owner_id} {event.token or ''}".strip() + where


def describe(record: Record | None) -> list[str]:
    if not isinstance(record, LockRecord):
        return ["no record"]
    lines = [f"last token {record.last_token}"]
    lines += [
        f"{'pending for' if hold.pending else 'held by'} {hold.who.request} of {hold.who.owner_id}, token {hold.token}"
        + ("" if hold.slot is None else f", slot {hold.slot}")
        + (f", under {hold.who.terms.session}" if hold.who.terms.session else f", until {seconds(hold.expires_us)}")
        + (f", {hold.renewals} renewals" if hold.renewals else "")
        for hold in record.holds
    ]
    if record.revoked is not None:
        lines.append(f"revoked ({record.revoked.reason}), to be taken at {seconds(record.revoked.at_us)}")
    if record.closed_until_us:
        below = ", and all below it" if record.closed_below else ""
        lines.append(f"closed until {seconds(record.closed_until_us)}{below}")
    if record.offer is not None:
        lines.append(f"offered to {place(record.offer.waiter)}, until {seconds(record.offer.until_us)}")
    return lines + [f"waits: {place(waiter)}" for waiter in record.queue]


def beside(entry: str, record: Record) -> list[str]:
    """What an entry says that is not a lock's."""
    if isinstance(record, Done):
        _, request, lock_key = entry.split("/", 2)
        where = "" if lock_key == "k" else f" at {lock_key}"
        ended = f"{record.ending.value}, {record.left} left, until {seconds(record.until_us)}"
        return [f"{request}{where} {ended}"]
    if isinstance(record, Floor):
        return [f"floor {record.token}"]
    if isinstance(record, Session):
        return [f"session {entry.split('/')[1]} {life(record)}"]
    if isinstance(record, Member):
        _, session_id, request, _ = entry.split("/", 3)
        return [f"member of {session_id}: {request} at {record.lock_key}"]
    assert entry.startswith(LOCKS)
    return []


def place(waiter: Waiter) -> str:
    polls = f"polls {' '.join(waiter.attempts)}" if waiter.attempts else f"kept until {seconds(waiter.keep_until_us)}"
    ends = f", gone at {seconds(waiter.keep_until_us)}" if waiter.attempts and waiter.keep_until_us else ""
    suspect = f", suspect since {seconds(waiter.suspect_us)}" if waiter.suspect_us else ""
    return f"{waiter.who.request} on {waiter.replica}, {polls}{ends}{suspect}"
