"""Every rule of the lock, in one pure function.

How to think of it. A lock key has one record: who holds it, whom it is offered to, who waits, and the last token. A
command is judged against that record and the time, and the answer is data: what to write, what to tell the caller,
what to log. Nothing here acts. Whoever calls commits the writes on condition that the entries it showed us are
unchanged, or comes back with newer ones.

Each command goes through the same three steps:
  1. time passes: leases that ran out end, an offer that lapsed goes back, places that nobody came back for are dropped;
  2. the command itself;
  3. hand over: the first waiter who is there is offered the lock, if it fits beside those who hold it; one offer at a
     time, and taking it up brings the next.

The token is minted in one place, `_mint`: one above everything this commit has seen, and not below the clock. Order
within a key comes from `last + 1` under compare-and-set, with no clock in the argument; the clock only lifts it, so
that tokens go on rising after a record, or a whole store, was lost.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fencegate.core.errors import (
    InvalidInput,
    LockExpired,
    LockFree,
    LockHeld,
    MaxHoldReached,
    NotOwner,
    RequestIdReused,
    TooManyWaiters,
)
from fencegate.core.model import (
    DEFAULT_LIMITS,
    Acquire,
    Claimant,
    Command,
    Done,
    Ending,
    Event,
    Expire,
    Floor,
    ForceRelease,
    Forget,
    Granted,
    Hold,
    Leave,
    Limits,
    LockRecord,
    Need,
    Nothing,
    Offer,
    Outcome,
    Queued,
    Record,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Step,
    TakeUp,
    Terms,
    Waiter,
    done_entry,
    floor_entry,
    lock_entry,
    request_of,
)
from fencegate.core.ports import Interval

_FRESH = LockRecord()


def transition(
    records: Mapping[str, Record | None], command: Command, now: Interval, limits: Limits = DEFAULT_LIMITS
) -> Step | Need:
    """What `command` does to these entries at `now`; or which entries it needs to know (None stands for 'absent')."""
    missing = [entry for entry in _entries(records, command) if entry not in records]
    if missing:
        return Need(tuple(missing))
    turn = _Turn(records, command.lock_key, now, limits)
    turn.pass_time()
    outcome = _RULES[type(command)](turn, command)
    turn.hand_over()
    return turn.step(outcome)


def live_holds(record: LockRecord, now: Interval) -> list[Hold]:
    """The holds that count now, for whoever only looks: those whose lease has not run out."""
    return [hold for hold in record.holds if not _lapsed(hold, now)]


def wakes_at(record: LockRecord) -> int | None:
    """When time alone next changes something that others should hear of: a lease or an offer ends."""
    times = [hold.expires_us for hold in record.holds]
    if record.offer is not None:
        times.append(record.offer.until_us)
    elif record.closed_until_us and record.queue:
        times.append(record.closed_until_us)
    return min(times, default=None)


def _entries(records: Mapping[str, Record | None], command: Command) -> list[str]:
    """The entries that decide this command: the lock's own, and what is remembered beyond it."""
    lock_key = command.lock_key
    entry = lock_entry(lock_key)
    found = [entry]
    if entry not in records:
        return found
    record = records[entry]
    tokenless = not isinstance(record, LockRecord) or not record.last_token  # then the floor says what to mint above
    if isinstance(command, Acquire):
        if command.named:
            found.append(done_entry(lock_key, command.who.request))
        if tokenless:
            found.append(floor_entry(lock_key))
    elif isinstance(command, Renew | Release):
        # Only a lock token that is not in the record leads to the past; the common case needs one entry.
        if not (isinstance(record, LockRecord) and _hold_of(record, command.lock_token)):
            found.append(done_entry(lock_key, request_of(command.lock_token)))
    elif isinstance(command, Forget):
        found.append(floor_entry(lock_key))
    return found


def _lapsed(hold: Hold, now: Interval) -> bool:
    """The one place that judges whether a lease ran out: only when it surely did."""
    return hold.expires_us <= now.earliest


def _hold_of(record: LockRecord, lock_token: str) -> Hold | None:
    for hold in record.holds:
        if hold.who.lock_token == lock_token:
            return hold
    return None


def _hold_for(record: LockRecord, request: str) -> Hold | None:
    for hold in record.holds:
        if hold.who.request == request:
            return hold
    return None


def _is_there(waiter: Waiter) -> bool:
    """Whether somebody stands at this place who could take the lock now."""
    return bool(waiter.attempts) and not waiter.suspect_us


def _fits(record: LockRecord, who: Claimant, now: Interval) -> bool:
    """Whether `who` may hold the lock beside those who do, and the one whom it is offered to."""
    if record.closed_until_us > now.earliest:
        return False
    others = [hold.who for hold in record.holds]
    if record.offer is not None and record.offer.waiter.who.request != who.request:
        others.append(record.offer.waiter.who)
    if not others:
        return True
    terms = who.terms
    if terms.limit:
        return len(others) < terms.limit and all(other.terms.limit == terms.limit for other in others)
    return terms.shared and all(other.terms.shared for other in others)


class _Turn:
    """One command being judged: the record as it changes, and the effects gathered so far."""

    __slots__ = (
        "_lock_key",
        "_record",
        "_records",
        "events",
        "limits",
        "not_after",
        "now",
        "record",
        "writes",
    )

    def __init__(self, records: Mapping[str, Record | None], lock_key: str, now: Interval, limits: Limits) -> None:
        found = records[lock_entry(lock_key)]
        self._lock_key = lock_key
        self._records = records
        self._record = found if isinstance(found, LockRecord) else None
        self.record = self._record or _FRESH
        self.now = now
        self.limits = limits
        self.writes: dict[str, Record | None] = {}
        self.events: list[Event] = []
        self.not_after: int | None = None

    # --- time ---

    def pass_time(self) -> None:
        record = self.record
        for hold in record.holds:
            if _lapsed(hold, self.now):
                self.end(hold, Ending.EXPIRED)
        if record.offer is not None and record.offer.until_us <= self.now.earliest:
            self._lapse(record.offer)
        if self.record.queue:
            kept = [waiter for waiter in self.record.queue if not self._forgotten(waiter)]
            if len(kept) < len(self.record.queue):
                self.record = replace(self.record, queue=tuple(kept))

    def _lapse(self, offer: Offer) -> None:
        """An offer that nobody took: its replica is thought dead, and costs the others this one offer only."""
        since = self.now.earliest
        queue = (offer.waiter, *self.record.queue)
        dead = offer.waiter.replica
        marked = tuple(replace(w, suspect_us=w.suspect_us or since) if w.replica == dead else w for w in queue)
        self.record = replace(self.record, offer=None, queue=marked)

    def _forgotten(self, waiter: Waiter) -> bool:
        if waiter.suspect_us and waiter.suspect_us + self.limits.suspect_us <= self.now.earliest:
            return True
        return not waiter.attempts and waiter.keep_until_us <= self.now.earliest

    def hand_over(self) -> None:
        record = self.record
        if record.offer is not None or not record.queue or len(record.holds) >= self.limits.max_holders:
            return
        for place, waiter in enumerate(record.queue):
            if _is_there(waiter):  # the first who is there gets it, or nobody: else a writer would wait for ever
                if not _fits(record, waiter.who, self.now):
                    return
                queue = record.queue[:place] + record.queue[place + 1 :]
                offer = Offer(waiter, self.now.latest + self.limits.offer_us)
                self.record = replace(record, offer=offer, queue=queue)
                return

    # --- effects that the rules share ---

    @property
    def changed(self) -> bool:
        """Whether anything happened to the record in this turn."""
        return self.record is not (self._record or _FRESH)

    @property
    def floor(self) -> int:
        found = self._records.get(floor_entry(self._lock_key))
        return found.token if isinstance(found, Floor) else 0

    def past(self, request: str) -> Done | None:
        """What became of an earlier acquire; also when that was decided a moment ago, in this very turn."""
        entry = done_entry(self._lock_key, request)
        found = self.writes.get(entry) or self._records.get(entry)
        return found if isinstance(found, Done) and found.until_us > self.now.earliest else None

    def end(self, hold: Hold, ending: Ending, reason: str | None = None) -> int:
        """Take a hold away and remember how; gives how many its owner still has."""
        holds = tuple([other for other in self.record.holds if other is not hold])
        left = len([other for other in holds if other.who.owner_id == hold.who.owner_id])
        record = self.record
        who = hold.who
        closed_until_us = record.closed_until_us
        if who.special is not None and who.special.lock_delay_us and ending is not Ending.RELEASED:
            lost_us = hold.expires_us if ending is Ending.EXPIRED else self.now.latest
            closed_until_us = max(closed_until_us, lost_us + who.special.lock_delay_us)
        self.record = LockRecord(
            record.last_token, holds, record.offer, record.queue, record.touched_us, closed_until_us
        )
        until_us = self.now.latest + self.limits.retention_us
        self.writes[done_entry(self._lock_key, who.request)] = Done(
            ending, who.lock_token, who.owner_id, who.fingerprint, hold.token, left, until_us, reason
        )
        self.log(ending.value, hold, reason)
        return left

    def grant(self, who: Claimant, shared_with: Hold | None = None) -> Granted:
        record = self.record
        now = self.now.latest
        expires_us, slot = now + who.ttl_us, None
        if who.special is not None:
            expires_us, slot = self._special(who.special, expires_us, shared_with)
            if shared_with is None and who.special.shared and record.holds:
                shared_with = record.holds[0]  # the group is open: its token serves all who join
        token = shared_with.token if shared_with else self._mint()
        hold = Hold(who, token, now, expires_us, 0, slot)
        offer = record.offer if record.offer and record.offer.waiter.who.request != who.request else None
        queue = record.queue
        if queue:
            queue = tuple([waiter for waiter in queue if waiter.who.request != who.request])
        last = max(record.last_token, token)
        self.record = LockRecord(last, (*record.holds, hold), offer, queue)
        self.must_land_before(hold.expires_us)
        self.log("acquired", hold)
        return Granted(hold)

    def _special(self, terms: Terms, expires_us: int, own: Hold | None) -> tuple[int, int | None]:
        """When a hold on these terms ends at the latest, and which slot it has."""
        if terms.max_hold_us:
            expires_us = min(expires_us, self.now.latest + terms.max_hold_us)
        if not terms.limit:
            return expires_us, None
        if own is not None:
            return expires_us, own.slot
        taken = {hold.slot for hold in self.record.holds}
        return expires_us, next(slot for slot in range(terms.limit) if slot not in taken)

    def _mint(self) -> int:
        last = self.record.last_token or self.floor
        return max(last + 1, self.now.latest)

    def must_land_before(self, us: int) -> None:
        self.not_after = us - 1 if self.not_after is None else min(self.not_after, us - 1)

    def log(self, kind: str, hold: Hold, reason: str | None = None) -> None:
        event = Event(kind, self._lock_key, hold.who.owner_id, hold.token, self.now.earliest, reason)
        self.events.append(event)

    def find_waiter(self, request: str) -> Waiter | None:
        offer = self.record.offer
        if offer is not None and offer.waiter.who.request == request:
            return offer.waiter
        for waiter in self.record.queue:
            if waiter.who.request == request:
                return waiter
        return None

    def put_waiter(self, waiter: Waiter) -> None:
        """Write a waiter back where it stands, in the offer or in the queue."""
        record = self.record
        request = waiter.who.request
        if record.offer is not None and record.offer.waiter.who.request == request:
            self.record = replace(record, offer=replace(record.offer, waiter=waiter))
        else:
            queue = tuple(waiter if other.who.request == request else other for other in record.queue)
            self.record = replace(record, queue=queue)

    def step(self, outcome: Outcome) -> Step:
        entry = lock_entry(self._lock_key)
        if entry not in self.writes and self.changed:
            record = self.record
            closed_until_us = record.closed_until_us if record.closed_until_us > self.now.earliest else 0
            self.writes[entry] = LockRecord(
                record.last_token, record.holds, record.offer, record.queue, self.now.earliest, closed_until_us
            )
        return Step(outcome, self.writes, tuple(self.events), self.not_after)


# --- the commands ----------------------------------------------------------------------------------------------------


def _acquire(turn: _Turn, command: Acquire) -> Outcome:
    who = command.who
    repeat = _repeat(turn, who, command.named)
    if repeat is not None:
        return repeat
    record = turn.record
    if command.reentrant:
        own = next((hold for hold in record.holds if _same_terms(hold.who, who)), None)
        if own is not None:
            if len(record.holds) >= turn.limits.max_reentrancy:
                return Refused(TooManyWaiters(f"held {len(record.holds)} times over by its owner; that is the limit"))
            return turn.grant(who, shared_with=own)
    if who.special is not None and who.special.limit and (other := _other_limit(record, who.special.limit)):
        return Refused(InvalidInput("limit", f"this lock is used with a limit of {other}; agree on one"))
    if _is_next(record, who) and _fits(record, who, turn.now):
        if len(record.holds) >= turn.limits.max_holders:
            return Refused(TooManyWaiters(f"{len(record.holds)} hold this lock already; that is the limit"))
        return turn.grant(who)
    return _enqueue(turn, command) if command.wait else Refused(_held(turn.record, turn.now))


def _repeat(turn: _Turn, who: Claimant, named: bool) -> Outcome | None:
    """The answer to an acquire that was here before; None when it is new, or waits still."""
    hold = _hold_for(turn.record, who.request)
    past = turn.past(who.request) if named and hold is None else None
    waiter = turn.find_waiter(who.request)
    before = hold.who.fingerprint if hold else past.fingerprint if past else waiter.who.fingerprint if waiter else None
    if before is not None and before != who.fingerprint:
        return Refused(RequestIdReused("this requestId was used with another body; use a new one for each request"))
    if hold is not None:
        return Granted(hold)
    if past is not None:
        return Refused(_over(past))
    return None


def _is_next(record: LockRecord, who: Claimant) -> bool:
    """Whether nobody who is there to take the lock comes before `who`."""
    if record.offer is not None and record.offer.waiter.who.request == who.request:
        return True
    priority = who.terms.priority
    for waiter in record.queue:
        if waiter.who.request == who.request:
            return True
        if _is_there(waiter) and waiter.who.terms.priority >= priority:
            return False
    return True


def _same_terms(held: Claimant, who: Claimant) -> bool:
    """Whether a re-entrant acquire is of the same kind as what its owner holds: a reader can't slip in as a writer."""
    ours, theirs = who.terms, held.terms
    return held.owner_id == who.owner_id and (ours.shared, ours.limit) == (theirs.shared, theirs.limit)


def _other_limit(record: LockRecord, limit: int) -> int:
    """A limit other than this one that the lock is used with now; 0 when there is none."""
    users = [hold.who for hold in record.holds] + [waiter.who for waiter in record.queue]
    return next((user.terms.limit for user in users if user.terms.limit not in (0, limit)), 0)


def _enqueue(turn: _Turn, command: Acquire) -> Outcome:
    waiter = turn.find_waiter(command.who.request)
    if waiter is not None:
        attempts = waiter.attempts if command.attempt in waiter.attempts else (*waiter.attempts, command.attempt)
        if len(attempts) > turn.limits.max_polls:
            return Refused(TooManyWaiters(f"{len(waiter.attempts)} polls of this request are waiting already"))
        attached = Waiter(waiter.who, command.replica, attempts)
        if attached != waiter:
            turn.put_waiter(attached)
    else:
        record = turn.record
        if len(record.queue) >= turn.limits.max_waiters:
            return Refused(TooManyWaiters(f"{len(record.queue)} are waiting for this lock already"))
        waiter = Waiter(command.who, command.replica, (command.attempt,))
        turn.record = replace(record, queue=_queued(record.queue, waiter))
        turn.events.append(Event("queued", command.lock_key, command.who.owner_id, 0, turn.now.earliest))
    ahead = 0
    for other in turn.record.queue:
        if other.who.request == command.who.request:
            break
        ahead += 1
    return Queued(ahead)


def _queued(queue: tuple[Waiter, ...], waiter: Waiter) -> tuple[Waiter, ...]:
    """Behind all of the same or a higher priority."""
    place = len(queue)
    while place and queue[place - 1].who.terms.priority < waiter.who.terms.priority:
        place -= 1
    return (*queue[:place], waiter, *queue[place:])


def _take_up(turn: _Turn, command: TakeUp) -> Outcome:
    hold = _hold_for(turn.record, command.request)
    if hold is not None:
        return Granted(hold)
    offer = turn.record.offer
    if offer is None or offer.waiter.who.request != command.request:
        return Nothing()
    return turn.grant(offer.waiter.who)


def _leave(turn: _Turn, command: Leave) -> Outcome:
    hold = _hold_for(turn.record, command.request)
    if hold is not None:  # the grant was faster than the one who left
        return Granted(hold)
    waiter = turn.find_waiter(command.request)
    if waiter is None or command.attempt not in waiter.attempts:
        return Nothing()
    attempts = tuple(attempt for attempt in waiter.attempts if attempt != command.attempt)
    if attempts:
        turn.put_waiter(replace(waiter, attempts=attempts))
        return Nothing()
    record = turn.record
    kept: tuple[Waiter, ...] = ()
    if command.keep_us:
        kept = (replace(waiter, attempts=(), keep_until_us=turn.now.latest + command.keep_us),)
    if record.offer is not None and record.offer.waiter is waiter:
        turn.record = replace(record, offer=None, queue=kept + record.queue)
        return Nothing()
    place = record.queue.index(waiter)
    turn.record = replace(record, queue=record.queue[:place] + kept + record.queue[place + 1 :])
    return Nothing()


def _renew(turn: _Turn, command: Renew) -> Outcome:
    hold = _hold_of(turn.record, command.lock_token)
    if hold is None:
        return Refused(_not_held(turn, command.lock_token, command.owner_id))
    if command.owner_id is not None and command.owner_id != hold.who.owner_id:
        return Refused(NotOwner("the ownerId is not the one that acquired this lock"))
    ttl_us = command.ttl_us or hold.who.ttl_us
    turn.must_land_before(hold.expires_us)
    expires_us = max(hold.expires_us, turn.now.latest + ttl_us)
    max_hold_us = hold.who.terms.max_hold_us
    if max_hold_us:
        expires_us = min(expires_us, hold.granted_us + max_hold_us)
        if expires_us <= hold.expires_us:
            return Refused(
                MaxHoldReached(
                    f"held for maxHoldMillis ({max_hold_us // 1000}) in all; finish before the lease runs out"
                )
            )
    renewed = replace(hold, expires_us=expires_us, renewals=hold.renewals + 1)
    holds = tuple(renewed if other is hold else other for other in turn.record.holds)
    turn.record = replace(turn.record, holds=holds)
    turn.log("renewed", renewed)
    return Renewed(renewed)


def _release(turn: _Turn, command: Release) -> Outcome:
    hold = _hold_of(turn.record, command.lock_token)
    if hold is not None:
        if command.owner_id is not None and command.owner_id != hold.who.owner_id:
            return Refused(NotOwner("the ownerId is not the one that acquired this lock"))
        return Released(turn.end(hold, Ending.RELEASED))
    past = turn.past(request_of(command.lock_token))
    if past is not None and past.ending is Ending.RELEASED and _owns(past, command.lock_token, command.owner_id):
        return Released(past.left)
    return Refused(_not_held(turn, command.lock_token, command.owner_id))


def _force_release(turn: _Turn, command: ForceRelease) -> Outcome:
    if not turn.record.holds:
        return Refused(free(command.lock_key, max(turn.record.last_token, turn.floor)))
    for hold in turn.record.holds:
        turn.end(hold, Ending.FORCED, command.reason)
    return Nothing()


def _expire(_turn: _Turn, _command: Expire) -> Outcome:
    return Nothing()


def _forget(turn: _Turn, command: Forget) -> Outcome:
    """Drop an idle record and lift the floor of its shard, so that no later grant goes below its tokens."""
    record = turn.record
    busy = record.holds or record.offer is not None or record.queue or turn.changed
    if not record.last_token or busy or record.touched_us + turn.limits.idle_us > turn.now.earliest:
        return Nothing()
    turn.writes[lock_entry(command.lock_key)] = None
    if record.last_token > turn.floor:
        turn.writes[floor_entry(command.lock_key)] = Floor(record.last_token)
    return Nothing()


_RULES: Mapping[type, Callable[[_Turn, Any], Outcome]] = {
    Acquire: _acquire,
    TakeUp: _take_up,
    Leave: _leave,
    Renew: _renew,
    Release: _release,
    ForceRelease: _force_release,
    Expire: _expire,
    Forget: _forget,
}


# --- refusals --------------------------------------------------------------------------------------------------------


def free(lock_key: str, highest: int) -> LockFree:
    return LockFree(
        f"nobody holds {lock_key!r}", lockKey=lock_key, locked=False, highestToken=str(highest) if highest else None
    )


def _held(record: LockRecord, now: Interval) -> LockHeld:
    owner: str | None
    if record.holds:
        # A permit comes free with the first of them, anything else with the last.
        which = min if record.holds[0].who.terms.limit else max
        hold = which(record.holds, key=lambda hold: hold.expires_us)
        owner, until_us = hold.who.owner_id, hold.expires_us
    elif record.offer is not None:
        owner, until_us = record.offer.waiter.who.owner_id, record.offer.until_us
    elif record.closed_until_us > now.earliest:
        owner, until_us = None, record.closed_until_us
    else:  # it came free just now, and goes to the first who waits
        owner, until_us = next(w.who.owner_id for w in record.queue if _is_there(w)), now.latest
    retry_ms = max(1, -(-(until_us - now.earliest) // 1000))
    why = "the lock is held; wait for it, or come back later"
    if owner is None:
        why = "the lock was lost by its holder, who asked for a pause before it is given again"
    return LockHeld(why, currentOwner=owner, retryAfterMillis=retry_ms)


_ENDINGS = {
    Ending.RELEASED: "was released",
    Ending.EXPIRED: "ran out",
    Ending.FORCED: "was taken away by force",
}


def _over(past: Done) -> LockExpired:
    why = f" ({past.reason})" if past.reason else ""
    return LockExpired(f"this lease {_ENDINGS[past.ending]}{why}; acquire anew, with a new requestId")


def _owns(past: Done, lock_token: str, owner_id: str | None) -> bool:
    return past.lock_token == lock_token and owner_id in (None, past.owner_id)


def _not_held(turn: _Turn, lock_token: str, owner_id: str | None) -> NotOwner | LockExpired:
    past = turn.past(request_of(lock_token))
    if past is not None and _owns(past, lock_token, owner_id):
        return _over(past)
    return NotOwner("this lockToken holds nothing here; stop using the resource")
