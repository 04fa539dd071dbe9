"""A store that judges each commit of lock records: what must always hold, whoever decided it, on whatever view.

It keeps the truth beside the records: which grants there were, and what their owners were told. A decision is made on
a view of the store, which may be old, and committed some time later, on condition that what it saw is unchanged.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fencegate.core.commands import (
    Command,
    EndSession,
    ForceRelease,
    Granted,
    GrantedAll,
    Leave,
    LeaveAll,
    Need,
    Release,
    ReleaseAll,
    Renewed,
    RenewedAll,
    SessionIs,
    Step,
)
from fencegate.core.machine import transition
from fencegate.core.model import (
    LOCKS,
    SESSIONS,
    Done,
    Hold,
    Limits,
    LockRecord,
    Record,
    Session,
    ancestors,
    done_entry,
    lock_entry,
    member_entry,
    session_entry,
)
from fencegate.core.ports import Interval

SECOND = 1_000_000
FRESH = LockRecord()


@dataclass
class Decision:
    """What the state machine made of a command, and what it saw; not yet committed."""

    command: Command
    step: Step
    seen: dict[str, int | None]
    now: Interval


@dataclass(frozen=True)
class Grant:
    """A hold that its owner was told of, or will be."""

    key: str
    hold: Hold

    def bars(self, other: "Grant") -> bool:
        """Whether `other` may not be granted while this one is held."""
        ours, theirs = self.hold.who.terms, other.hold.who.terms
        if self.key == other.key:
            return not together(self.hold, other.hold)
        if ours.shared and theirs.shared:
            return False
        if self.key in ancestors(other.key):
            return ours.hierarchical or (theirs.hierarchical and other.hold.pending)  # a plain one does not look below
        return other.key in ancestors(self.key) and theirs.hierarchical and not other.hold.pending


def together(one: Hold, other: Hold) -> bool:
    """Whether these two may hold a lock at the same time."""
    ours, theirs = one.who.terms, other.who.terms
    if one.pending or other.pending:
        return False
    if one.who.owner_id == other.who.owner_id and one.token == other.token:
        return one.slot == other.slot
    if ours.limit and theirs.limit:
        return one.slot != other.slot and one.token != other.token
    return ours.shared and theirs.shared and one.token == other.token


@dataclass
class Truth:
    """What really happened to one lock key, as the commits tell."""

    grants: list[Grant] = field(default_factory=list)
    """All that there ever were."""
    live: dict[str, Hold] = field(default_factory=dict)
    """Holds by lock token, as of the last commit; pending ones too."""
    ended: set[str] = field(default_factory=set)
    settled: dict[str, int] = field(default_factory=dict)
    """Until when a named request may not take the lock again."""
    closed: list[tuple[Grant, int]] = field(default_factory=list)
    """What was lost, and until when nobody may have the lock whom it bars."""
    believed: dict[str, Grant] = field(default_factory=dict)
    """What owners were told that they hold, by lock token, until they let go or were made to."""


class JudgingStore:
    """See the head of this file."""

    def __init__(self, keys: tuple[str, ...], limits: Limits) -> None:
        self.keys = keys
        self.limits = limits
        self.entries: dict[str, tuple[int, Record]] = {}
        self.versions = 0
        self.clock_us = 1000 * SECOND
        self.width_us = 0
        self.steady = True
        """Whether the clock has never gone back."""
        self.truth = {key: Truth() for key in keys}
        self.session_told: dict[str, int] = {}
        """Until when the owner of a session believes that it lives."""

    # --- what is there ---

    def now(self) -> Interval:
        return Interval(self.clock_us - self.width_us // 2, self.clock_us + self.width_us // 2)

    def get(self, entry: str) -> Record | None:
        return self.entries.get(entry, (0, None))[1]

    def record(self, key: str) -> LockRecord:
        found = self.get(lock_entry(key))
        return found if isinstance(found, LockRecord) else FRESH

    def session(self, session_id: str) -> Session | None:
        found = self.get(session_entry(session_id))
        return found if isinstance(found, Session) else None

    def records(self) -> Mapping[str, LockRecord]:
        return {key: self.record(key) for key in self.keys if lock_entry(key) in self.entries}

    def below(self, key: str) -> list[LockRecord]:
        return [record for other, record in self.records().items() if key in ancestors(other)]

    def end_of(self, hold: Hold) -> int:
        """When a hold ends, as things are."""
        if not hold.who.terms.session or hold.pending:
            return hold.expires_us
        session = self.session(hold.who.terms.session)
        return 0 if session is None or session.ended else hold.until(session.expires_us).expires_us

    # --- decide, commit ---

    def decide(self, command: Command) -> Decision:
        view: dict[str, Record | None] = {}
        seen: dict[str, int | None] = {}
        now = self.now()
        while True:
            step = transition(view, command, now, self.limits)
            missing = step.entries if isinstance(step, Need) else tuple(e for e in step.writes if e not in view)
            if not missing:
                assert isinstance(step, Step)
                return Decision(command, step, seen, now)
            for entry in missing:
                version, record = self.entries.get(entry, (None, None))
                view[entry], seen[entry] = record, version

    def commit(self, decision: Decision) -> bool:
        """Compare and set. Gives whether it landed; what was decided on an old view never does."""
        step = decision.step
        if any(self.entries.get(entry, (None,))[0] != version for entry, version in decision.seen.items()):
            return False
        if step.not_after_us is not None and self.clock_us > step.not_after_us:
            return False
        before = {entry: self.get(entry) for entry in step.writes}
        for entry, record in step.writes.items():
            self.versions += 1
            if record is None:
                self.entries.pop(entry, None)
            else:
                self.entries[entry] = (self.versions, record)
        for entry, was in before.items():
            if entry.startswith(SESSIONS):
                self._judge_session(was, self.get(entry))
        for entry, was in before.items():
            if entry.startswith(LOCKS):
                key = entry.removeprefix(LOCKS)
                self._judge(decision, key, was if isinstance(was, LockRecord) else FRESH, self.record(key))
        self._believe(decision)
        return True

    def lose(self, entry: str) -> None:
        """A failover that lost writes. What was told of it is void, but for the tokens."""
        self.entries.pop(entry, None)
        for key, truth in self.truth.items():
            if entry == lock_entry(key):
                self.truth[key] = Truth(truth.grants)
                for name in [name for name in self.entries if name.startswith("done/") and name.endswith(f"/{key}")]:
                    del self.entries[name]
            else:
                truth.believed = {
                    token: grant
                    for token, grant in truth.believed.items()
                    if session_entry(grant.hold.who.terms.session) != entry
                }

    def forget_session(self, session_id: str) -> None:
        """Its name may be used anew: nobody remembers the old one."""
        self.session_told.pop(session_id, None)
        for truth in self.truth.values():
            of_others = {t: g for t, g in truth.believed.items() if g.hold.who.terms.session != session_id}
            truth.believed = of_others

    # --- what must hold at each commit ---

    def _judge_session(self, was: Record | None, now: Record | None) -> None:
        if isinstance(was, Session) and isinstance(now, Session):
            if was.ended is not None:
                assert now.ended == was.ended, "a session that was over came back"
            assert now.expires_us >= was.expires_us, "a renewal never shortens"
            if now.renewals != was.renewals:
                assert was.expires_us > self.clock_us, "I5: a session that had run out was renewed"
            if self.steady and now.ended == "expired" and was.ended is None:
                assert was.expires_us <= self.clock_us, "a session ended that still ran"

    def _judge(self, decision: Decision, key: str, was: LockRecord, now: LockRecord) -> None:
        """I1, I5 and the rules of the past, for one lock."""
        truth = self.truth[key]
        after = {hold.who.lock_token: hold for hold in now.holds}
        for token, hold in truth.live.items():
            if token not in after:
                self._judge_end(decision, Grant(key, hold), was)
        for token, hold in after.items():
            before = truth.live.get(token)
            if before is None or (before.pending and before.token != hold.token):
                self._judge_start(decision, Grant(key, hold), [other for other in now.holds if other is not hold])
            elif before is not hold:
                self._judge_renewal(was, before, hold)
        truth.live = after
        if now.offer is not None and was.offer is None and now.offer.waiter.who.terms.group:
            who = now.offer.waiter.who
            offers = [self.record(other).offer for other in who.terms.group]
            assert all(o is not None and o.waiter.who.request == who.request for o in offers), "a part was offered"

    def _judge_start(self, decision: Decision, new: Grant, beside: list[Hold]) -> None:
        key, hold, truth = new.key, new.hold, self.truth[new.key]
        who, terms = hold.who, hold.who.terms
        assert self.end_of(hold) > self.clock_us, "I5: the lease had run out when it was committed"
        assert who.lock_token not in truth.ended, "a lease that was over came back"
        assert not any(Grant(key, other).bars(new) for other in beside), "I1: two who conflict"
        for other in terms.group:
            there = [h for h in self.record(other).holds if h.who.request == who.request]
            assert there, "one of a group was granted without the others"
        if self.steady:
            self._judge_by_time(decision, new, beside)
        if hold.pending:
            return
        joined = any(other.token == hold.token for other in beside)
        for old in itertools.chain.from_iterable(other.grants for other in self.truth.values()):
            if old.key == key and not joined:
                assert hold.token > old.hold.token, "I1: tokens rise"
            elif old.key != key and old.bars(new):
                assert hold.token > old.hold.token, "I1: tokens rise from above to below, and back"
        truth.grants.append(new)

    def _judge_by_time(self, decision: Decision, new: Grant, beside: list[Hold]) -> None:
        """What depends on a clock that does not go back."""
        key, who, truth = new.key, new.hold.who, self.truth[new.key]
        own = any(who.owner_id == other.who.owner_id and other.token == new.hold.token for other in beside)
        for old in self._all_believed():
            assert not old.bars(new) or self._believed_until(old) <= self.clock_us, "I1: somebody still believes it"
        for old in [Grant(other, hold) for other, its in self.truth.items() for hold in its.live.values()]:
            terms = old.hold.who.terms  # it may have been lost, and nobody noticed yet
            if terms.lock_delay_us and not terms.session and not old.hold.pending and old.key != key and old.bars(new):
                until_us = self._end_by_force_or_time(old) + terms.lock_delay_us
                assert decision.now.latest >= until_us, "given before the lock-delay was over that nobody noticed"
        for old, until_us in itertools.chain.from_iterable(other.closed for other in self.truth.values()):
            if old.key == key or old.bars(new):
                assert own or decision.now.latest >= until_us, "given again before the lock-delay was over"
        if who.request in truth.settled:
            assert decision.now.earliest >= truth.settled[who.request], "a settled request took the lock again"

    def _judge_renewal(self, was: LockRecord, before: Hold, hold: Hold) -> None:
        if hold.expires_us != before.expires_us or hold.renewals != before.renewals:
            assert before.expires_us > self.clock_us, "a lease that had run out was renewed"
            assert hold.pending or hold.expires_us >= before.expires_us, "a renewal never shortens"
            assert hold.renewals > before.renewals
            assert was.revoked is None or was.revoked.at_us > self.clock_us, "renewed after it was taken"
            if was.revoked is not None:
                assert hold.expires_us <= max(before.expires_us, was.revoked.at_us), "renewed past its end"
        assert hold.token == before.token
        assert hold.pending == before.pending
        assert not hold.who.terms.session or hold.pending, "a lock under a session was renewed by itself"

    def _judge_end(self, decision: Decision, old: Grant, was: LockRecord) -> None:
        truth, hold = self.truth[old.key], old.hold
        if hold.pending:  # nobody was told of it, and whoever asked may ask again
            return
        truth.ended.add(hold.who.lock_token)
        truth.settled[hold.who.request] = decision.now.latest + self.limits.retention_us
        past = self.get(done_entry(old.key, hold.who.request))
        assert isinstance(past, Done), "nothing tells what became of it"
        if past.ending == "released" and self._let_go(decision.command, hold):
            truth.believed.pop(hold.who.lock_token, None)
        elif isinstance(decision.command, ForceRelease) and past.ending == "forced" and not self._was_taken(was):
            truth.believed.pop(hold.who.lock_token, None)
            self._close(old, decision.now.latest)
        elif past.ending == "forced":
            assert was.revoked is not None, "taken by force without a word"
            assert not self.steady or was.revoked.at_us <= self.clock_us, "taken before the grace was over"
            truth.believed.pop(hold.who.lock_token, None)
            self._close(old, was.revoked.at_us)
        elif self.steady:
            assert self.end_of(hold) <= self.clock_us, "taken from somebody whose lease still ran"
            session = self.session(hold.who.terms.session)
            if past.ending == "expired":
                lost = hold.who.terms.session and session is None  # missing means dead, from when it is noticed
                ended_us = session.ended_us if session is not None and session.ended else hold.expires_us
                self._close(old, min(ended_us, decision.now.latest) if lost else ended_us)
            else:
                assert session is not None, "released, and nobody did"
                assert session.ended == "released", "released, and nobody did"

    def _was_taken(self, record: LockRecord) -> bool:
        return record.revoked is not None and record.revoked.at_us <= self.now().earliest

    def _close(self, old: Grant, end_us: int) -> None:
        delay_us = old.hold.who.terms.lock_delay_us
        end_us = min(end_us, old.hold.until(end_us).expires_us)
        if delay_us and self.steady:
            self.truth[old.key].closed.append((old, end_us + delay_us))

    def _end_by_force_or_time(self, grant: Grant) -> int:
        revoked = self.record(grant.key).revoked
        return min(grant.hold.expires_us, revoked.at_us) if revoked is not None else grant.hold.expires_us

    def _let_go(self, command: Command, hold: Hold) -> bool:
        if isinstance(command, Leave | LeaveAll):
            return hold.pending
        releases = command.parts if isinstance(command, ReleaseAll) else (command,)
        return any(isinstance(part, Release) and part.lock_token == hold.who.lock_token for part in releases)

    # --- what owners believe ---

    def _all_believed(self) -> Iterator[Grant]:
        for truth in self.truth.values():
            yield from truth.believed.values()

    def _believed_until(self, grant: Grant) -> int:
        session_id = grant.hold.who.terms.session
        revoked = self.record(grant.key).revoked
        if revoked is not None and revoked.at_us <= self.clock_us:  # taken by force: what its owner believes is void
            return 0
        if not session_id:
            return grant.hold.expires_us
        return grant.hold.until(self.session_told.get(session_id, 0)).expires_us

    def told(self, decision: Decision) -> Iterator[Grant]:
        """The holds that the outcome of a decision tells somebody of."""
        outcome, keys = decision.step.outcome, [entry.removeprefix(LOCKS) for entry in decision.command.at]
        holds: tuple[Hold, ...] = ()
        if isinstance(outcome, Granted | Renewed):
            holds = (outcome.hold,)
        elif isinstance(outcome, GrantedAll):
            holds = outcome.holds
        elif isinstance(outcome, RenewedAll):
            holds = tuple(part.hold for part in outcome.parts)
        for key, hold in zip(keys, holds, strict=bool(holds)):
            if hold.expires_us > self.clock_us:
                yield Grant(key, hold)

    def _believe(self, decision: Decision) -> None:
        for grant in self.told(decision):
            hold = grant.hold
            there = self.truth[grant.key].live.get(hold.who.lock_token)
            assert there is not None, "told of a hold that is not there"
            revoked = self.record(grant.key).revoked
            end_us = self.end_of(there) if revoked is None else min(self.end_of(there), revoked.at_us)
            assert (there.token, end_us, there.pending) == (hold.token, hold.expires_us, False)
            self.truth[grant.key].believed[hold.who.lock_token] = grant
            if hold.who.terms.session:
                self._believe_session(hold.who.terms.session, hold.expires_us)
        outcome, command = decision.step.outcome, decision.command
        if isinstance(command, EndSession) and isinstance(outcome, SessionIs):
            self.session_told[command.session_id] = 0
        elif isinstance(outcome, SessionIs) and outcome.session.ended is None:
            self._believe_session(command.at[0].removeprefix(SESSIONS), outcome.session.expires_us)

    def _believe_session(self, session_id: str, until_us: int) -> None:
        told_us = self.session_told.get(session_id)
        if told_us != 0:  # whoever ended it believes nothing of it any more
            self.session_told[session_id] = max(told_us or 0, until_us)

    # --- what must hold at any time ---

    def check(self) -> None:
        for key, record in self.records().items():
            grants = [Grant(key, hold) for hold in record.holds]
            assert not any(one.bars(other) for one, other in itertools.combinations(grants, 2))
            assert all(hold.token <= record.last_token for hold in record.holds)
            assert record.holds or record.revoked is None
            self._check_terms(record)
            self._check_queue(key, record)
            self._check_members(key, record)

    def _check_terms(self, record: LockRecord) -> None:
        for hold in record.holds:
            terms = hold.who.terms
            assert hold.slot is None if not terms.limit else hold.slot in range(terms.limit)
            assert not terms.max_hold_us or hold.expires_us <= hold.granted_us + terms.max_hold_us or hold.pending
        if record.offer is not None:  # it counts as a hold
            wanted = record.offer.waiter.who.terms
            for hold in record.holds:
                assert (wanted.shared and hold.who.terms.shared) or (wanted.limit == hold.who.terms.limit > 0)
            assert not wanted.limit or len({hold.slot for hold in record.holds}) < wanted.limit

    def _check_queue(self, key: str, record: LockRecord) -> None:
        priorities = [waiter.who.terms.priority for waiter in record.queue if not waiter.suspect_us]
        assert priorities == sorted(priorities, reverse=True)
        requests = [hold.who.request for hold in record.holds]
        requests += [waiter.who.request for waiter in record.queue]
        requests += [record.offer.waiter.who.request] if record.offer else []
        assert len(requests) == len(set(requests)), "a request is there once"
        for hold in record.holds:
            past = self.get(done_entry(key, hold.who.request))
            assert not (self.steady and isinstance(past, Done) and past.until_us > self.clock_us + self.width_us)
        assert len(record.queue) <= self.limits.max_waiters + 1
        assert len(record.holds) <= self.limits.max_holders + self.limits.max_reentrancy
        assert all(len(waiter.attempts) <= self.limits.max_polls for waiter in record.queue)

    def _check_members(self, key: str, record: LockRecord) -> None:
        """Whatever lives by a session can be found when that ends."""
        whos = [hold.who for hold in record.holds] + [waiter.who for waiter in record.queue]
        whos += [record.offer.waiter.who] if record.offer else []
        for who in whos:
            if who.terms.session:
                assert member_entry(who.terms.session, who.request, key) in self.entries, "the index misses it"
