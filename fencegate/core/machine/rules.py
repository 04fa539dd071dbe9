"""The commands about one lock."""

from dataclasses import replace

from fencegate.core.commands import (
    Acquire,
    Confirm,
    Drop,
    Expire,
    ForceRelease,
    Forget,
    Granted,
    Leave,
    Nothing,
    Outcome,
    Pending,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Revoking,
    TakeUp,
)
from fencegate.core.errors import NotOwner
from fencegate.core.machine import refusals
from fencegate.core.machine.lock import LockTurn
from fencegate.core.model import (
    Claimant,
    Ending,
    Floor,
    Hold,
    LockRecord,
    Revocation,
    RevokedLock,
    Waiter,
    floor_entry,
    lock_entry,
    member_entry,
    session_entry,
)

LINGER_US = 10_000_000
"""How long after its last poll must have ended a place is kept: nobody stands there any more."""
MAX_REVOKED = 1000


def hold_of(record: LockRecord, lock_token: str) -> Hold | None:
    for hold in record.holds:
        if hold.who.lock_token == lock_token:
            return hold
    return None


def hold_for(record: LockRecord, request: str) -> Hold | None:
    for hold in record.holds:
        if hold.who.request == request:
            return hold
    return None


# --- acquire ---------------------------------------------------------------------------------------------------------


def acquire(lock: LockTurn, command: Acquire) -> Outcome:
    record = lock.record
    if record.holds or record.queue or record.offer is not None or not command.fresh:  # else it can't have been here
        repeat = repeated(lock, command)
        if repeat is not None:
            return repeat
    who = under_session(lock, command.who)
    if isinstance(who, Refused):
        return who
    if command.reentrant:
        own = [hold for hold in record.holds if _same_terms(hold.who, who) and not hold.pending]
        if own:
            if max(len(own), len(record.holds) - lock.limits.max_holders + 1) >= lock.limits.max_reentrancy:
                return refusals.too_many_waiters(f"held {len(own)} times over by its owner; that is the limit")
            return lock.grant(who, shared_with=own[0])
    refusal = cannot_hold(lock, who)
    if refusal is not None:
        return refusal
    if lock.is_next(who) and lock.fits(who):
        return lock.grant(who)
    if command.wait:
        return enqueue(lock, command, who)
    if lock.find_waiter(who.request) is not None:  # the last look of a poll that has just left
        lock.lets_nobody_past()
    return Refused(refusals.held(lock, who))


def repeated(lock: LockTurn, command: Acquire) -> Outcome | None:
    """The answer to an acquire that was here before; None when it is new, or waits still."""
    who = command.who
    hold = hold_for(lock.record, who.request)
    past = lock.past(who.request) if command.named and not command.fresh and hold is None else None
    waiter = lock.find_waiter(who.request)
    before = hold.who.fingerprint if hold else past.fingerprint if past else waiter.who.fingerprint if waiter else None
    if before is not None and before != who.fingerprint:
        return refusals.reused()
    if hold is not None:
        return Pending(hold) if hold.pending else Granted(lock.tell_again(hold))
    if past is not None:
        return Refused(refusals.over(past))
    return None


def under_session(lock: LockTurn, who: Claimant) -> Claimant | Refused:
    """Who asks, once it is certain that the session lives: with the session's owner, and its length."""
    if who.special is None or not who.special.session:
        return who
    session = lock.turn.session(who.special.session)
    if session is None or session.ended is not None:
        return Refused(refusals.session_over(session))
    if who.owner_id and who.owner_id != session.owner_id:
        return Refused(NotOwner("the ownerId is not the one that opened this session"))
    return replace(who, owner_id=session.owner_id, ttl_us=session.ttl_us)


def cannot_hold(lock: LockTurn, who: Claimant) -> Refused | None:
    """Why the lock can't be had on these terms, however long one waits."""
    record = lock.record
    if who.special is not None and who.special.limit:
        users = [hold.who for hold in record.holds] + [waiter.who for waiter in record.queue]
        other = next((user.terms.limit for user in users if user.terms.limit not in (0, who.special.limit)), 0)
        if other:
            return refusals.other_limit(other)
    if len(record.holds) >= lock.limits.max_holders and lock.is_next(who) and lock.fits(who):
        return refusals.too_many_waiters(f"{len(record.holds)} hold this lock already; that is the limit")
    return None


def _same_terms(held: Claimant, who: Claimant) -> bool:
    """Whether a re-entrant acquire is of the same kind as what its owner holds: a reader can't slip in as a writer."""
    if held.owner_id != who.owner_id:
        return False
    if held.special is who.special:  # both are plain
        return True
    ours, theirs = who.terms, held.terms
    return (ours.shared, ours.limit, ours.hierarchical, ours.session) == (
        theirs.shared, theirs.limit, theirs.hierarchical, theirs.session,
    )  # fmt: skip


def enqueue(lock: LockTurn, command: Acquire, who: Claimant) -> Queued | Refused:
    """Stand in the queue, or come back to the place that is there."""
    waiter = lock.find_waiter(who.request)
    until_us = lock.now.latest + command.wait_us + LINGER_US if command.wait_us else 0
    if waiter is not None:
        attempts = waiter.attempts if command.attempt in waiter.attempts else (*waiter.attempts, command.attempt)
        if len(attempts) > lock.limits.max_polls:
            return refusals.too_many_waiters(f"{len(waiter.attempts)} polls of this request are waiting already")
        kept_us = max(until_us, waiter.keep_until_us) if until_us and waiter.keep_until_us else 0
        attached = Waiter(waiter.who, command.replica, attempts, kept_us if waiter.attempts else until_us)
        if attached != waiter:
            lock.put(waiter, attached)
    else:
        if len(lock.record.queue) >= lock.limits.max_waiters:
            return refusals.too_many_waiters(f"{len(lock.record.queue)} are waiting for this lock already")
        lock.enqueue(Waiter(who, command.replica, (command.attempt,), until_us))
    ahead = 0
    for other in lock.record.queue:
        if other.who.request == who.request:
            break
        ahead += 1
    return Queued(ahead)


# --- what follows an acquire -----------------------------------------------------------------------------------------


def take_up(lock: LockTurn, command: TakeUp) -> Outcome:
    hold = hold_for(lock.record, command.request)
    if hold is not None:
        return Pending(hold) if hold.pending else Granted(lock.tell_again(hold))
    offer = lock.record.offer
    if offer is None or offer.waiter.who.request != command.request or offer.waiter.who.terms.group:
        return Nothing()
    who = under_session(lock, offer.waiter.who)
    if isinstance(who, Refused):
        lock.remove(offer.waiter)
        return who
    if not lock.fits(who):  # a lock above it was taken since the offer was made
        lock.give_back()
        return Nothing()
    return lock.grant(who)


def confirm(lock: LockTurn, command: Confirm) -> Outcome:
    hold = hold_for(lock.record, command.request)
    if hold is None:
        return Nothing()
    if not hold.pending:  # by a commit whose answer was lost
        return Granted(lock.tell_again(hold))
    if hold.token != command.token:
        return Pending(hold)
    lock.turn.must_land_before(hold.expires_us)
    now_us = lock.now.latest
    if command.blocked:
        longer = replace(hold, expires_us=now_us + lock.limits.offer_us, renewals=hold.renewals + 1)
        lock.put_hold(hold, longer)
        return Pending(longer)
    expires_us = now_us + hold.who.ttl_us
    if hold.who.terms.max_hold_us:
        expires_us = min(expires_us, now_us + hold.who.terms.max_hold_us)
    token = max(lock.lowest_token(), command.highest + 1, lock.floor + 1)
    confirmed = lock.told(replace(hold, token=token, granted_us=now_us, expires_us=expires_us, pending=False))
    lock.put_hold(hold, confirmed)
    lock.turn.must_land_before(confirmed.expires_us)
    lock.log("acquired", confirmed)
    return Granted(confirmed)


def leave(lock: LockTurn, command: Leave) -> Outcome:
    hold = hold_for(lock.record, command.request)
    if hold is not None and not hold.pending:  # the grant was faster than the one who left
        return Granted(lock.tell_again(hold))
    kept_us = lock.now.latest + command.keep_us
    if hold is not None:
        lock.end(hold, Ending.RELEASED, lock.now.latest)
        if command.keep_us:  # it was first, and is so again when it comes back
            lock.enqueue(Waiter(hold.who, "", (), kept_us), first=True)
        return Nothing()
    waiter = lock.find_waiter(command.request)
    if waiter is None or command.attempt not in waiter.attempts:
        return Nothing()
    attempts = tuple(attempt for attempt in waiter.attempts if attempt != command.attempt)
    if attempts:
        lock.put(waiter, replace(waiter, attempts=attempts))
    elif not command.keep_us:
        lock.remove(waiter)
    else:
        kept = replace(waiter, attempts=(), keep_until_us=kept_us)
        if lock.record.offer is not None and lock.record.offer.waiter is waiter:
            lock.give_back(kept)
        else:
            lock.put(waiter, kept)
            lock.lets_nobody_past()
    return Nothing()


def renew(lock: LockTurn, command: Renew) -> Renewed | Refused:
    hold = hold_of(lock.record, command.lock_token)
    if hold is None or hold.pending:
        return Refused(refusals.not_held(lock, command.lock_token, command.owner_id))
    who = hold.who
    if command.owner_id is not None and command.owner_id != who.owner_id:
        return Refused(NotOwner(refusals.WRONG_OWNER))
    if who.terms.session:
        return refusals.lives_by_its_session()
    lock.turn.must_land_before(hold.expires_us)
    expires_us = max(hold.expires_us, lock.now.latest + (command.ttl_us or who.ttl_us))
    max_hold_us = who.terms.max_hold_us
    if max_hold_us:
        last_us = hold.granted_us + max_hold_us
        if hold.expires_us >= last_us:
            return refusals.max_hold_reached(max_hold_us)
        expires_us = min(expires_us, last_us)
    revoked = lock.record.revoked
    if revoked is not None:
        lock.turn.must_land_before(revoked.at_us)
        expires_us = max(hold.expires_us, min(expires_us, revoked.at_us))
    renewed = replace(hold, expires_us=expires_us, renewals=hold.renewals + 1)
    lock.put_hold(hold, renewed)
    lock.log("renewed", renewed)
    return Renewed(lock.told(renewed), revoked)


def release(lock: LockTurn, command: Release) -> Released | Refused:
    hold = hold_of(lock.record, command.lock_token)
    if hold is not None and not hold.pending:
        if command.owner_id is not None and command.owner_id != hold.who.owner_id:
            return Refused(NotOwner(refusals.WRONG_OWNER))
        revoked = lock.record.revoked
        return Released(lock.end(hold, Ending.RELEASED, lock.now.latest, revoked.reason if revoked else None))
    past = lock.past_of(command.lock_token)
    repeat = past is not None and refusals.owns(past, command.lock_token, command.owner_id)
    if past is not None and repeat and past.ending is Ending.RELEASED:
        return Released(past.left)
    return Refused(refusals.not_held(lock, command.lock_token, command.owner_id))


# --- what others do to a lock ----------------------------------------------------------------------------------------


def force_release(lock: LockTurn, command: ForceRelease) -> Outcome:
    record = lock.record
    if not record.holds:
        return Refused(refusals.free(command.lock_key, max(record.last_token, lock.floor)))
    for hold in record.holds:
        if not command.grace_us:
            _tell_session(lock, hold, Revocation(lock.now.latest, command.reason))
        if hold.pending or not command.grace_us:  # nobody was told of a pending one, who could let go of it
            lock.end(hold, Ending.FORCED, lock.now.latest, command.reason)
    if not command.grace_us:
        return Nothing()
    record = lock.record
    at_us = lock.now.latest + command.grace_us if record.holds else lock.now.latest
    if record.revoked is not None and record.revoked.at_us <= at_us:
        return Revoking(record.revoked.at_us)
    if record.holds:
        revoked = Revocation(at_us, command.reason)
        lock.record = replace(record, revoked=revoked)
        for hold in record.holds:
            lock.log("revoked", hold, command.reason)
            _tell_session(lock, hold, revoked)
    return Revoking(at_us)


def _tell_session(lock: LockTurn, hold: Hold, revoked: Revocation) -> None:
    """A lock under a session has no renewals of its own to be told by."""
    session_id = hold.who.terms.session
    session = lock.turn.session(session_id) if session_id else None
    if session is not None and not hold.pending:
        others = [told for told in session.revoked if (told.lock_key, told.token) != (lock.lock_key, hold.token)]
        told = (*others, RevokedLock(lock.lock_key, hold.token, revoked))[-MAX_REVOKED:]
        lock.turn.writes[session_entry(session_id)] = replace(session, revoked=told)


def drop(lock: LockTurn, command: Drop) -> Outcome:
    """What the session held was freed as time passed; here its place goes, and what the index says of it."""
    session = lock.turn.session(command.session_id)
    if session is None or session.ended is not None:
        waiter = lock.find_waiter(command.request)
        if waiter is not None and waiter.who.terms.session == command.session_id:
            lock.remove(waiter)
        entry = member_entry(command.session_id, command.request, command.lock_key)
        if lock.turn.read(entry) is not None:
            lock.turn.writes[entry] = None
    return Nothing()


def expire(lock: LockTurn, _command: Expire) -> Outcome:
    if not lock.changed:  # somebody heard of a change, and looks: whoever made it has handed over as well
        lock.lets_nobody_past()
    return Nothing()


def forget(lock: LockTurn, command: Forget) -> Outcome:
    """Drop an idle record and lift the floor of its shard, so that no later grant goes below its tokens."""
    record = lock.record
    busy = record.holds or record.offer is not None or record.queue or lock.changed
    closed = record.closed_until_us > lock.now.earliest
    idle = record.touched_us + lock.limits.idle_us <= lock.now.earliest
    if not lock.limits.forgets or not record.last_token or busy or closed or not idle:
        return Nothing()
    floor = lock.floor
    lock.turn.writes[lock_entry(command.lock_key)] = None
    if record.last_token > floor:
        lock.turn.writes[floor_entry(command.lock_key)] = Floor(record.last_token)
    return Nothing()
