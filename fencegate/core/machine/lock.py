"""One lock being judged: its record as it changes; how time, grants and endings change it; whom it is handed to."""

from collections.abc import Iterator
from dataclasses import replace

from fencegate.core.commands import Granted, HandOverAll, Pending
from fencegate.core.machine.judging import (
    closed_until,
    ends_us,
    excludes,
    fits_beside,
    is_there,
    keeps_out,
    over,
    queued,
)
from fencegate.core.machine.turn import Turn
from fencegate.core.model import (
    LOCKS,
    Claimant,
    Done,
    Ending,
    Event,
    Floor,
    Hold,
    LockRecord,
    Member,
    Offer,
    Terms,
    Waiter,
    ancestors,
    done_entry,
    floor_entry,
    is_request,
    lock_entry,
    member_entry,
    request_of,
    session_entry,
)

_FRESH = LockRecord()

_new = tuple.__new__  # as `Event(…)`, but for a call of Python


class LockTurn:
    """See the head of this file. It begins with the passing of time; `write` puts what came of it into the turn."""

    __slots__ = ("_before", "_entry", "_hands_over", "limits", "lock_key", "now", "record", "turn")

    def __init__(self, turn: Turn, lock_key: str) -> None:
        self._entry = entry = LOCKS + lock_key
        found = turn.read(entry)
        self.turn = turn
        self.lock_key = lock_key
        self.record = self._before = found if type(found) is LockRecord else _FRESH
        self.now = turn.now
        self.limits = turn.limits
        self._hands_over = True
        self._pass_time()

    # --- time ---

    def _pass_time(self) -> None:
        record = self.record
        if len(record.holds) > 1:
            held = [hold.who.terms.session for hold in record.holds if hold.who.terms.session]
            self.turn.require([session_entry(session_id) for session_id in held])
        for hold in record.holds:
            ended = over(self.turn, record, hold)
            if ended is not None:
                self.end(hold, *ended)
        if record.closed_until_us and self.record.closed_until_us <= self.now.earliest:
            self.record = replace(self.record, closed_until_us=0, closed_below=False)
        if record.offer is not None and record.offer.until_us <= self.now.earliest:
            self._lapse(record.offer)
        if self.record.queue:
            now, suspect_us = self.now.earliest, self.limits.suspect_us
            gone = [  # in place, and not a call for each: a queue may be long
                waiter
                for waiter in self.record.queue
                if (waiter.keep_until_us <= now and (waiter.keep_until_us or not waiter.attempts))
                or (waiter.suspect_us and waiter.suspect_us + suspect_us <= now)
            ]
            if gone:
                self.remove(*gone)
                self._see_to_groups(gone)

    def _lapse(self, offer: Offer) -> None:
        """An offer that nobody took: its replica is thought dead, and costs the others this one offer only."""
        since = self.now.earliest
        self.turn.shaken = True
        self.record = replace(self.record, offer=None, queue=queued(self.record.queue, offer.waiter, first=True))
        dead = offer.waiter.replica
        marked = tuple(
            replace(w, suspect_us=w.suspect_us or since) if w.replica == dead else w for w in self.record.queue
        )
        self.record = replace(self.record, queue=marked)
        self._see_to_groups([w for w in marked if w.replica == dead])

    def _see_to_groups(self, waiters: list[Waiter]) -> None:
        """Have it known at their other locks too: places there would keep everybody out. One of each group is enough,
        for whoever comes first there then is looked at next."""
        groups: dict[tuple[str, ...], str] = {}
        for waiter in waiters:
            if waiter.who.terms.group:
                groups.setdefault(waiter.who.terms.group, waiter.who.request)
        self.turn.next += [HandOverAll(group, request) for group, request in groups.items()]

    # --- who may have it ---

    def fits(self, who: Claimant) -> bool:
        return fits_beside(self.record, who, self.now) and self.kept_out_above(who) is None

    def kept_out_above(self, who: Claimant) -> tuple[str | None, int] | None:
        """Who holds a lock above this one that keeps `who` out, None where only a lock-delay does; and until when."""
        if "/" not in self.lock_key:
            return None
        for record in self._above():
            if record.closed_until_us > self.now.earliest and (record.closed_below or who.terms.hierarchical):
                return None, record.closed_until_us
            for hold in record.holds:
                if excludes(hold, who.terms) and keeps_out(self.turn, record, hold):
                    ended = over(self.turn, record, hold)
                    if ended is not None:
                        return None, closed_until(hold, ended[0], ended[1])
                    return hold.who.owner_id, self.told(hold, record).expires_us
        return None

    def _above(self) -> Iterator[LockRecord]:
        """The records of the locks above this one. Whoever is granted this lock compares them all."""
        if "/" not in self.lock_key or not self.limits.several:
            return
        entries = [lock_entry(lock_key) for lock_key in ancestors(self.lock_key)]
        self.turn.require(entries)
        for entry in entries:
            found = self.turn.read(entry)
            if isinstance(found, LockRecord):
                yield found

    def is_next(self, who: Claimant) -> bool:
        """Whether nobody who is there to take the lock comes before `who`."""
        record = self.record
        if record.offer is not None and record.offer.waiter.who.request == who.request:
            return True
        if record.queue:
            priority = who.terms.priority
            for waiter in record.queue:
                if waiter.who.request == who.request:
                    return True
                if is_there(waiter) and waiter.who.terms.priority >= priority:
                    return False
        return True

    @property
    def is_full(self) -> bool:
        return len(self.record.holds) >= self.limits.max_holders

    def hand_over(self, tried: str = "") -> None:
        """Offer the lock to the first who is there, or to nobody: else a writer would wait for ever.

        One who waits for other locks too can't be offered this one alone; whether all can be had is asked next,
        unless that was `tried` just now.
        """
        record = self.record
        if record.offer is not None or not record.queue or self.is_full or not self._hands_over:
            return
        for waiter in record.queue:
            if is_there(waiter):
                if self.fits(waiter.who):
                    if not waiter.who.terms.group:
                        self.offer(waiter)
                    elif waiter.who.request != tried:
                        self.turn.next.append(HandOverAll(waiter.who.terms.group, waiter.who.request))
                return

    def lets_nobody_past(self) -> None:
        """Hand over to nobody in this turn: between two polls nobody stands at a place for a moment, and if the end of
        a poll let those past who stand behind it, a writer would be passed by readers with each of its polls. Whatever
        changes the lock next lets them past, if nobody came back: a hold that ends by itself will, within its lease."""
        if not all(waiter.attempts for waiter in self.record.queue):
            self._hands_over = all(ends_us(hold) is None for hold in self.record.holds)

    def offer(self, waiter: Waiter) -> None:
        record = self.record
        queue = tuple([other for other in record.queue if other is not waiter])
        self.record = LockRecord(
            record.last_token, record.holds, Offer(waiter, self.now.latest + self.limits.offer_us), queue,
            record.touched_us, record.closed_until_us, record.closed_below, record.revoked,
        )  # fmt: skip

    # --- holds ---

    @property
    def floor(self) -> int:
        if not self.limits.forgets:
            return 0
        found = self.turn.read(floor_entry(self.lock_key))
        return found.token if isinstance(found, Floor) else 0

    def lowest_token(self) -> int:
        """The token that a grant would get now: above everything that this commit has seen, and not below the clock.

        A record without a token may be one that was forgotten, and then the floor of its shard stands for it. Locks
        above and below this one are of the same shard.
        """
        last = self.record.last_token or self.floor
        if "/" in self.lock_key:
            last = max(last, self.floor, *[record.last_token for record in self._above()])
        return max(last + 1, self.now.latest)

    def grant(self, who: Claimant, shared_with: Hold | None = None, token: int = 0) -> Granted | Pending:
        """Give the lock to `who`: with the token of `shared_with`, with `token`, or with one minted now."""
        record = self.record
        now = self.now.latest
        expires_us, slot, pending = now + who.ttl_us, None, False
        waited = self.find_waiter(who.request)
        if who.special is not None:
            if shared_with is None and who.special.shared and record.holds:
                shared_with = record.holds[0]  # the group is open: its token serves all who join
            pending = who.special.hierarchical and shared_with is None
            expires_us, slot = self._special(who.special, expires_us, pending, shared_with)
            if who.special.session and waited is None:
                self.turn.writes[member_entry(who.special.session, who.request, self.lock_key)] = Member(self.lock_key)
        if shared_with is not None:
            token = shared_with.token
        hold = Hold(who, token or self.lowest_token(), now, expires_us, 0, slot, pending)
        offer, queue = record.offer, record.queue
        if waited is not None:
            offer = offer if offer is not None and offer.waiter is not waited else None
            queue = tuple([waiter for waiter in queue if waiter is not waited])
        self.record = LockRecord(
            max(record.last_token, hold.token), (*record.holds, hold), offer, queue, self.now.earliest,
            record.closed_until_us, record.closed_below, record.revoked,
        )  # fmt: skip
        self.turn.must_land_before(hold.expires_us)
        if pending:
            return Pending(hold)
        self.log("acquired", hold)
        return Granted(hold)

    def _special(self, terms: Terms, expires_us: int, pending: bool, own: Hold | None) -> tuple[int, int | None]:
        """When a hold on these terms ends at the latest, and which slot it has."""
        if pending:
            expires_us = self.now.latest + self.limits.offer_us
        if terms.session:
            session = self.turn.session(terms.session)
            if session is not None:
                expires_us = min(expires_us, session.expires_us) if pending else session.expires_us
        if terms.max_hold_us:
            expires_us = min(expires_us, self.now.latest + terms.max_hold_us)
        if not terms.limit:
            return expires_us, None
        if own is not None and own.slot is not None:
            return expires_us, own.slot
        taken = {hold.slot for hold in self.record.holds}
        return expires_us, next(slot for slot in range(terms.limit) if slot not in taken)

    def tell_again(self, hold: Hold) -> Hold:
        """A hold whose owner asks for it once more.

        Where leases end by being watched, we may have seen it later than others, who would end it before the time that
        we tell. So it is written anew, and whoever watches begins to count again.
        """
        if self.limits.watched:
            before, hold = hold, replace(hold, renewals=hold.renewals + 1)
            self.put_hold(before, hold)
            session_id = hold.who.terms.session
            session = self.turn.session(session_id) if session_id else None
            if session is None:
                self.turn.must_land_before(hold.expires_us)
            else:
                self.turn.writes[session_entry(session_id)] = replace(session, renewals=session.renewals + 1)
        return self.told(hold)

    def told(self, hold: Hold, record: LockRecord | None = None) -> Hold:
        """A hold, of this lock or of another record, as its owner may know it: under a session it lasts as long as
        that; and no longer than until it is taken away, if somebody asked for that."""
        terms = hold.who.special
        session = self.turn.session(terms.session) if terms is not None and terms.session else None
        if session is not None:
            hold = hold.until(session.expires_us)
        revoked = (record or self.record).revoked
        return hold if revoked is None or revoked.at_us >= hold.expires_us else hold.until(revoked.at_us)

    def end(self, hold: Hold, ending: Ending, at_us: int, reason: str | None = None) -> int:
        """Take a hold away and remember how; gives how many its owner still has. Nobody was told of a pending one."""
        record = self.record
        who = hold.who
        holds = tuple([other for other in record.holds if other is not hold])
        left = len([other for other in holds if other.who.owner_id == who.owner_id]) if holds else 0
        closed_until_us, closed_below = record.closed_until_us, record.closed_below
        if who.special is not None:
            if until_us := closed_until(hold, ending, at_us):
                closed_until_us = max(closed_until_us, until_us)
                closed_below = closed_below or who.special.hierarchical
            if who.special.session:
                self.turn.writes[member_entry(who.special.session, who.request, self.lock_key)] = None
        self.record = LockRecord(
            record.last_token, holds, record.offer, record.queue, self.now.earliest, closed_until_us, closed_below,
            record.revoked if holds else None,
        )  # fmt: skip
        if hold.pending:
            return left
        until_us = self.now.latest + self.limits.retention_us
        self.turn.writes[done_entry(self.lock_key, who.request)] = Done(
            ending, who.lock_token, who.owner_id, who.fingerprint, hold.token, left, until_us, reason
        )
        self.log(str(ending), hold, reason, at_us)
        return left

    def put_hold(self, hold: Hold, changed: Hold) -> None:
        holds = tuple([changed if other is hold else other for other in self.record.holds])
        self.record = replace(self.record, last_token=max(self.record.last_token, changed.token), holds=holds)

    def past(self, request: str) -> Done | None:
        """What became of an earlier acquire; also when that was decided a moment ago, in this very turn."""
        found = self.turn.read(done_entry(self.lock_key, request))
        return found if isinstance(found, Done) and found.until_us > self.now.earliest else None

    def past_of(self, lock_token: str) -> Done | None:
        """The same by a lock token, which comes from outside."""
        request = request_of(lock_token)
        return self.past(request) if is_request(request) else None

    def log(self, kind: str, hold: Hold, reason: str | None = None, at_us: int = 0) -> None:
        """Tell that something happened to a hold: now, or (noticed now) at an earlier time."""
        who = hold.who
        shared = who.special is not None and who.special.shared
        now_us = self.now.earliest
        if not at_us or at_us > now_us:
            at_us = now_us
        told = kind, self.lock_key, who.owner_id, hold.token, at_us, reason, shared, hold.slot, hold.granted_us
        self.turn.events.append(_new(Event, told))

    # --- places ---

    def find_waiter(self, request: str) -> Waiter | None:
        offer = self.record.offer
        if offer is not None and offer.waiter.who.request == request:
            return offer.waiter
        for waiter in self.record.queue:
            if waiter.who.request == request:
                return waiter
        return None

    def put(self, waiter: Waiter, changed: Waiter) -> None:
        """Write a waiter back where it stands, in the offer or in the queue."""
        record = self.record
        if record.offer is not None and record.offer.waiter is waiter:
            self.record = replace(record, offer=replace(record.offer, waiter=changed))
        else:
            queue = tuple([changed if other is waiter else other for other in record.queue])
            self.record = replace(record, queue=queue)

    def enqueue(self, waiter: Waiter, *, first: bool = False) -> None:
        who = waiter.who
        self.record = replace(self.record, queue=queued(self.record.queue, waiter, first=first))
        if who.special is not None and who.special.session:
            self.turn.writes[member_entry(who.special.session, who.request, self.lock_key)] = Member(self.lock_key)
        self.turn.events.append(Event("queued", self.lock_key, who.owner_id, 0, self.now.earliest))

    def remove(self, *waiters: Waiter) -> None:
        """Take places away, and an offer with its waiter."""
        self.turn.shaken = True
        record = self.record
        gone = {waiter.who.request for waiter in waiters}
        offer = record.offer
        if offer is not None and offer.waiter.who.request in gone:
            offer = None
        queue = tuple([waiter for waiter in record.queue if waiter.who.request not in gone])
        self.record = replace(record, offer=offer, queue=queue)
        for who in [waiter.who for waiter in waiters if waiter.who.terms.session]:
            self.turn.writes[member_entry(who.terms.session, who.request, self.lock_key)] = None

    def give_back(self, changed: Waiter | None = None) -> None:
        """Take an offer back; its waiter stands in front again, though behind those of a higher priority."""
        offer = self.record.offer
        if offer is not None:
            queue = queued(self.record.queue, changed or offer.waiter, first=True)
            self.record = replace(self.record, offer=None, queue=queue)

    # --- the end ---

    @property
    def changed(self) -> bool:
        """Whether anything happened to the record in this turn."""
        return self.record is not self._before

    def write(self) -> None:
        record, now_us = self.record, self.now.earliest
        if record is self._before or self._entry in self.turn.writes:
            return
        if record.touched_us != now_us or record.closed_until_us:
            closed = record.closed_until_us > now_us
            record = LockRecord(
                record.last_token, record.holds, record.offer, record.queue, now_us,
                record.closed_until_us if closed else 0, record.closed_below and closed, record.revoked,
            )  # fmt: skip
        self.turn.writes[self._entry] = record
