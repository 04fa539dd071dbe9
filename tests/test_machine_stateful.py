"""The state machine against the invariants: owners, replicas and keys at once, old views, late commits, bad clocks.

A decision is made on a view of the store, which may be old, and committed some time later, on condition that what it
saw is unchanged. FENCEGATE_EXAMPLES in the environment asks for a longer run.
"""

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fencegate.core.commands import (
    Acquire,
    Command,
    Expire,
    ForceRelease,
    Forget,
    Granted,
    Leave,
    Need,
    Refused,
    Release,
    Renew,
    Renewed,
    Step,
    TakeUp,
)
from fencegate.core.machine import transition
from fencegate.core.model import (
    Claimant,
    Done,
    Hold,
    Limits,
    LockRecord,
    Record,
    Terms,
    done_entry,
    floor_entry,
    lock_entry,
)
from fencegate.core.ports import Interval

SECOND = 1_000_000
LIMITS = Limits(
    max_holders=6,
    max_waiters=4,
    max_polls=3,
    max_reentrancy=3,
    offer_us=3 * SECOND,
    retention_us=20 * SECOND,
    suspect_us=10 * SECOND,
    idle_us=SECOND,
)
MAX_TTL_S = 8

KEYS = ("k1", next(f"k{n}" for n in range(2, 10_000) if floor_entry(f"k{n}") == floor_entry("k1")))  # of one shard
keys = st.sampled_from(KEYS)
owners = st.sampled_from(["A", "B", "C"])
replicas = st.sampled_from(["r1", "r2", "r3"])
names = st.sampled_from(["n1", "n2", "n3", "n4"])
ttls = st.integers(1, MAX_TTL_S)
picks = st.integers(0, 1000)
flags = st.booleans()
# A run keeps to a few kinds of terms: drawn from all of them, those that meet would seldom have to do with each other.
palettes = st.sampled_from(
    [
        [None],
        [Terms(limit=2), Terms(limit=2), None],
        [Terms(shared=True), None],
        [Terms(shared=True), Terms(shared=True, priority=1), Terms(priority=2), None],
        [Terms(lock_delay_us=2 * SECOND), Terms(shared=True, lock_delay_us=SECOND), None],
        [Terms(max_hold_us=6 * SECOND), Terms(limit=2, max_hold_us=3 * SECOND), Terms(priority=-1)],
    ]
)


def together(one: Hold, other: Hold) -> bool:
    """Whether these two may hold a lock at the same time."""
    ours, theirs = one.who.terms, other.who.terms
    if one.who.owner_id == other.who.owner_id and one.token == other.token:
        return one.slot == other.slot
    if ours.limit and theirs.limit:
        return one.slot != other.slot and one.token != other.token
    return ours.shared and theirs.shared and one.token == other.token


@dataclass
class Decision:
    """What the state machine made of a command, and what it saw; not yet committed."""

    command: Command
    step: Step
    seen: dict[str, int | None]
    now: Interval


@dataclass
class Truth:
    """What really happened to one lock key, as the commits tell."""

    tokens: list[int] = field(default_factory=list)
    live: dict[str, Hold] = field(default_factory=dict)
    """Holds by lock token, as of the last commit."""
    ended: set[str] = field(default_factory=set)
    settled: dict[str, int] = field(default_factory=dict)
    """Until when a named request may not take the lock again."""
    closed_until_us: int = 0
    """Until when nobody may, after it was lost."""


class Locks(RuleBasedStateMachine):
    """A store, its clock, and everybody who uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, tuple[int, Record]] = {}
        self.versions = 0
        self.ids = 0
        self.clock_us = 1000 * SECOND
        self.lowest_us = self.highest_us = 0
        self.width_us = 0
        self.steady = True
        self.pending: list[Decision] = []
        self.truth = {key: Truth() for key in KEYS}
        self.polls: dict[tuple[str, str, str], Acquire] = {}
        """Who waits, by lock key, request and attempt."""
        self.tokens_known: list[tuple[str, str, str]] = []
        """Lock keys, lock tokens and owners that somebody was told of."""
        self.dead: set[str] = set()
        self.palette: list[Terms | None] = [None]

    @initialize(width_s=st.sampled_from([0, 0, 1, 2]), palette=palettes)
    def begin(self, width_s: int, palette: list[Terms | None]) -> None:
        self.width_us = width_s * SECOND
        self.palette = palette

    # --- time and faults ---

    @rule(seconds=st.floats(0.001, 6))
    def pass_time(self, seconds: float) -> None:
        self.clock_us += int(seconds * SECOND)

    @rule(seconds=st.floats(0.001, 30))
    def turn_the_clock_back(self, seconds: float) -> None:
        self.highest_us = max(self.highest_us, self.clock_us)
        self.clock_us = max(self.lowest_us, self.clock_us - int(seconds * SECOND))
        self.steady = False

    @rule(key=keys)
    def lose_the_record(self, key: str) -> None:
        """A failover that lost writes; then order rests on the clock, which must not have gone back below them."""
        last = max(self.truth[key].tokens, default=0)
        if last >= self.clock_us:
            return
        self.lowest_us = max(self.lowest_us, last + 1)
        self.entries.pop(lock_entry(key), None)
        self.pending = [decision for decision in self.pending if decision.command.lock_key != key]
        self.truth[key] = Truth(self.truth[key].tokens)
        for entry in [entry for entry in self.entries if entry.startswith("done/") and entry.endswith(key)]:
            del self.entries[entry]

    @rule(replica=replicas)
    @precondition(lambda self: len(self.dead) < 2)
    def kill(self, replica: str) -> None:
        self.dead.add(replica)
        self.polls = {place: poll for place, poll in self.polls.items() if poll.replica != replica}

    @rule()
    def forget_what_is_past_its_time(self) -> None:
        for entry, (_, record) in list(self.entries.items()):
            if isinstance(record, Done) and record.until_us <= self.clock_us:
                del self.entries[entry]

    # --- commands ---

    @rule(key=keys, owner=owners, replica=replicas, ttl_s=ttls, pick=picks, wait=flags, again=flags, later=flags)
    def acquire(
        self, key: str, owner: str, replica: str, ttl_s: int, pick: int, wait: bool, again: bool, later: bool
    ) -> None:
        special = self.palette[pick % len(self.palette)]
        who = self.claimant(f"u{self.new_id()}", owner, ttl_s, special)
        self.ask(Acquire(key, who, replica, f"p{self.new_id()}", wait, False, again), later)

    @rule(key=keys, replica=replicas, asks=st.lists(st.tuples(owners, picks, flags, flags), min_size=2, max_size=5))
    def rush(self, key: str, replica: str, asks: list[tuple[str, int, bool, bool]]) -> None:
        """Several who come at once: else they would seldom have to do with each other."""
        for owner, pick, wait, again in asks:
            self.acquire(key, owner, replica, MAX_TTL_S, pick, wait, again, False)

    @rule(key=keys, seconds=st.sampled_from([0.0, 0.5, 1.5]))
    def let_the_lease_run_out(self, key: str, seconds: float) -> None:
        """To right after the end of a lease, when what comes next is decided."""
        ends = [hold.expires_us for hold in self.records().get(key, LockRecord()).holds]
        self.clock_us = max([self.clock_us, *ends]) + self.width_us + int(seconds * SECOND)
        self.run(Expire(key))

    @rule(key=keys, name=names, replica=replicas, wait=flags, ttl_s=st.sampled_from([5, 5, 5, 4]), later=flags)
    def acquire_by_name(self, key: str, name: str, replica: str, wait: bool, ttl_s: int, later: bool) -> None:
        who = self.claimant(name, f"owner of {name}", ttl_s)
        self.ask(Acquire(key, who, replica, f"p{self.new_id()}", wait, named=True), later)

    def claimant(self, request: str, owner: str, ttl_s: int, special: Terms | None = None) -> Claimant:
        return Claimant(request, f"{request}.{self.new_id()}", owner, ttl_s * SECOND, f"{ttl_s}", special=special)

    def ask(self, command: Acquire, later: bool) -> None:
        if command.replica in self.dead:
            return
        if command.wait:
            self.polls[command.lock_key, command.who.request, command.attempt] = command
        self.run(command, later)

    @rule(pick=picks, keep_s=st.sampled_from([0, 5]), later=flags)
    @precondition(lambda self: self.polls)
    def leave(self, pick: int, keep_s: int, later: bool) -> None:
        key, request, attempt = list(self.polls)[pick % len(self.polls)]
        del self.polls[key, request, attempt]
        self.run(Leave(key, request, attempt, keep_s * SECOND), later)

    @rule(pick=picks, later=flags)
    @precondition(lambda self: self.polls)
    def take_up(self, pick: int, later: bool) -> None:
        key, request, _ = list(self.polls)[pick % len(self.polls)]
        self.run(TakeUp(key, request), later)

    @rule(pick=picks, ttl_s=st.none() | ttls, later=flags)
    @precondition(lambda self: self.tokens_known)
    def renew(self, pick: int, ttl_s: int | None, later: bool) -> None:
        key, lock_token, owner = self.tokens_known[-1 - pick % len(self.tokens_known)]
        self.run(Renew(key, lock_token, owner, ttl_s and ttl_s * SECOND), later)

    @rule(pick=picks, later=flags)
    @precondition(lambda self: self.tokens_known)
    def release(self, pick: int, later: bool) -> None:
        key, lock_token, owner = self.tokens_known[-1 - pick % len(self.tokens_known)]
        self.run(Release(key, lock_token, owner), later)

    @rule(key=keys, command=st.sampled_from([Expire, Expire, Forget, ForceRelease]), later=flags)
    def tend(self, key: str, command: type, later: bool) -> None:
        self.run(ForceRelease(key, "why") if command is ForceRelease else command(key), later)

    @rule(key=keys, back=flags, later=flags)
    def let_it_go_idle(self, key: str, back: bool, later: bool) -> None:
        """Everybody goes, and the record is forgotten; and then the clock may go back below its tokens."""
        self.run(ForceRelease(key, "enough"))
        self.clock_us += LIMITS.suspect_us + LIMITS.offer_us
        self.run(Expire(key))
        self.clock_us += LIMITS.suspect_us
        self.run(Expire(key))
        self.clock_us += LIMITS.idle_us + self.width_us
        self.run(Forget(key), later)
        if back:
            self.turn_the_clock_back(30)

    @rule(pick=picks)
    @precondition(lambda self: self.pending)
    def land(self, pick: int) -> None:
        self.commit(self.pending.pop(pick % len(self.pending)))

    # --- load, decide, commit ---

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    def now(self) -> Interval:
        return Interval(self.clock_us - self.width_us // 2, self.clock_us + self.width_us // 2)

    def run(self, command: Command, later: bool = False) -> bool:
        decision = self.decide(command)
        if later:
            self.pending.append(decision)
            return False
        return self.commit(decision)

    def decide(self, command: Command) -> Decision:
        view: dict[str, Record | None] = {}
        seen: dict[str, int | None] = {}
        now = self.now()
        while True:
            step = transition(view, command, now, LIMITS)
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
        if step.writes:
            self.check(decision)
        for entry, record in step.writes.items():
            self.versions += 1
            if record is None:
                self.entries.pop(entry, None)
            else:
                self.entries[entry] = (self.versions, record)
        self.hear(decision)
        return True

    # --- what must hold ---

    def check(self, decision: Decision) -> None:
        """I1, I5 and the rules of the past, at the moment of a commit."""
        key = decision.command.lock_key
        truth = self.truth[key]
        record = decision.step.writes.get(lock_entry(key))
        after = {hold.who.lock_token: hold for hold in record.holds} if isinstance(record, LockRecord) else {}
        started = [hold for token, hold in after.items() if token not in truth.live]
        for hold in started:
            assert hold.expires_us > self.clock_us, "I5: the lease had run out when it was committed"
            assert hold.who.lock_token not in truth.ended, "a lease that was over came back"
            kin = [other for other in after.values() if other is not hold and other not in started]
            assert all(together(hold, other) for other in kin), "I1: two who conflict"
            if not any(hold.token == other.token for other in kin):
                assert hold.token > max(truth.tokens, default=0), "I1: tokens rise"
                truth.tokens.append(hold.token)
            if self.steady and not any(hold.who.owner_id == other.who.owner_id for other in kin):
                assert decision.now.latest >= truth.closed_until_us, "given again before the lock-delay was over"
            if self.steady and hold.who.request in truth.settled:
                assert decision.now.earliest >= truth.settled[hold.who.request], "a settled request took the lock again"
        for token, hold in truth.live.items():
            if token not in after:
                truth.ended.add(token)
                truth.settled[hold.who.request] = decision.now.latest + LIMITS.retention_us
                if self.steady and not self.was_ended(decision, hold):
                    assert hold.expires_us <= self.clock_us, "taken from somebody whose lease still ran"
                    delay_us = hold.who.terms.lock_delay_us
                    truth.closed_until_us = max(truth.closed_until_us, delay_us and hold.expires_us + delay_us)
            elif after[token].expires_us != hold.expires_us:
                assert hold.expires_us > self.clock_us, "a lease that had run out was renewed"
                assert after[token].expires_us > hold.expires_us, "a renewal never shortens"
                assert after[token].renewals > hold.renewals
                assert after[token].token == hold.token
        truth.live = after

    def was_ended(self, decision: Decision, hold: Hold) -> bool:
        command = decision.command
        return isinstance(command, ForceRelease) or (
            isinstance(command, Release) and command.lock_token == hold.who.lock_token
        )

    def hear(self, decision: Decision) -> None:
        """Tell whoever asked, and whoever waits for the same."""
        outcome, key = decision.step.outcome, decision.command.lock_key
        if isinstance(outcome, Granted | Renewed) and outcome.hold.expires_us > self.clock_us:
            who = outcome.hold.who
            assert self.truth[key].live[who.lock_token] == outcome.hold, "told of a hold that is not there"
            self.tokens_known.append((key, who.lock_token, who.owner_id))
            self.polls = {place: poll for place, poll in self.polls.items() if place[:2] != (key, who.request)}
        elif isinstance(outcome, Refused) and isinstance(decision.command, Acquire):
            self.polls.pop((key, decision.command.who.request, decision.command.attempt), None)

    def records(self) -> Mapping[str, LockRecord]:
        found = {key: self.entries.get(lock_entry(key), (0, None))[1] for key in KEYS}
        return {key: record for key, record in found.items() if isinstance(record, LockRecord)}

    @invariant()
    def who_holds_may_hold_together(self) -> None:
        for record in self.records().values():
            assert all(together(one, other) for one, other in itertools.combinations(record.holds, 2))
            assert all(hold.token <= record.last_token for hold in record.holds)
            for hold in record.holds:
                terms = hold.who.terms
                assert hold.slot is None if not terms.limit else hold.slot in range(terms.limit)
                assert not terms.max_hold_us or hold.expires_us <= hold.granted_us + terms.max_hold_us
            if record.offer is not None:  # it counts as a hold
                wanted = record.offer.waiter.who.terms
                for hold in record.holds:
                    assert (wanted.shared and hold.who.terms.shared) or (wanted.limit == hold.who.terms.limit > 0)
                assert not wanted.limit or len({hold.slot for hold in record.holds}) < wanted.limit

    @invariant()
    def the_queue_is_in_the_order_of_priority(self) -> None:
        for record in self.records().values():
            priorities = [waiter.who.terms.priority for waiter in record.queue if not waiter.suspect_us]
            assert priorities == sorted(priorities, reverse=True)

    @invariant()
    def a_request_is_there_once(self) -> None:
        for key, record in self.records().items():
            requests = [hold.who.request for hold in record.holds]
            requests += [waiter.who.request for waiter in record.queue]
            requests += [record.offer.waiter.who.request] if record.offer else []
            assert len(requests) == len(set(requests))
            for hold in record.holds:
                past = self.entries.get(done_entry(key, hold.who.request), (0, None))[1]
                assert not (self.steady and isinstance(past, Done) and past.until_us > self.clock_us + self.width_us)

    @invariant()
    def records_are_bounded(self) -> None:
        for record in self.records().values():
            assert len(record.queue) <= LIMITS.max_waiters + 1
            assert len(record.holds) <= LIMITS.max_holders
            assert all(len(waiter.attempts) <= LIMITS.max_polls for waiter in record.queue)

    # --- I6: after the faults stop, whoever waits gets the lock ---

    def teardown(self) -> None:
        self.pending.clear()
        self.clock_us = max(self.clock_us, self.highest_us)  # a clock that went back is a fault too
        for key in KEYS:
            waiting = {place for place in self.polls if place[0] == key}
            patience_s = MAX_TTL_S + 4 + 4 * LIMITS.offer_us // SECOND + self.width_us // SECOND * 5 + 1
            end_us = self.clock_us + patience_s * SECOND
            while waiting & set(self.polls) and self.clock_us < end_us:
                self.tend_all(key)
                self.clock_us += SECOND // 4
            assert not waiting & set(self.polls), "I6: somebody waits for ever"

    def tend_all(self, key: str) -> None:
        """What the replicas that live do for those who wait with them; each lets go as soon as it has the lock."""
        self.run(Expire(key))
        for place, poll in list(self.polls.items()):
            if place in self.polls and place[0] == key:
                record = self.records().get(key, LockRecord())
                if record.offer is not None and record.offer.waiter.who.request == poll.who.request:
                    self.run(TakeUp(key, poll.who.request))
                elif not self.stands(record, poll):
                    self.run(poll)
                if place not in self.polls:
                    self.let_go(key, poll.who.request)

    def stands(self, record: LockRecord, poll: Acquire) -> bool:
        return any(poll.attempt in waiter.attempts and not waiter.suspect_us for waiter in record.queue)

    def let_go(self, key: str, request: str) -> None:
        for hold in self.records().get(key, LockRecord()).holds:
            if hold.who.request == request:
                self.run(Release(key, hold.who.lock_token))


examples = int(os.environ.get("FENCEGATE_EXAMPLES", "150"))
Locks.TestCase.settings = settings(
    max_examples=examples,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLocks = Locks.TestCase
