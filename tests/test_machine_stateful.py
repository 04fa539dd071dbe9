"""The state machine against the invariants: owners, replicas, sessions and keys at once, old views, late commits, bad
clocks. `judging_store` says what must hold; here is what everybody does.

FENCEGATE_EXAMPLES in the environment asks for a longer run, by chance.
"""

import os
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fencegate.core.commands import (
    Acquire,
    AcquireAll,
    Command,
    Confirm,
    Drop,
    EndSession,
    Expire,
    ExpireSession,
    ForceRelease,
    Forget,
    ForgetSession,
    HandOverAll,
    Leave,
    LeaveAll,
    OpenSession,
    Refused,
    Release,
    ReleaseAll,
    Renew,
    RenewAll,
    RenewSession,
    TakeUp,
    TakeUpAll,
)
from fencegate.core.machine import look_below
from fencegate.core.model import (
    LOCKS,
    MEMBERS,
    Claimant,
    Done,
    Limits,
    Member,
    Terms,
    floor_entry,
    lock_entry,
    session_entry,
)
from tests.judging_store import SECOND, Decision, JudgingStore
from tests.living_replicas import Tending, parts

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

FLAT = ("k1", next(f"k{n}" for n in range(2, 10_000) if floor_entry(f"k{n}") == floor_entry("k1")))  # of one shard
PATH = ("a", "a/b", "a/b/c")
SESSIONS = ("s1", "s2")


@dataclass(frozen=True)
class Theme:
    """A run keeps to a few kinds of terms: drawn from all of them, those that meet would seldom have to do with each
    other."""

    keys: tuple[str, ...]
    terms: tuple[Terms | None, ...]


THEMES = (
    Theme(FLAT, (None,)),
    Theme(FLAT, (Terms(limit=2), Terms(limit=2), None)),
    Theme(FLAT, (Terms(shared=True), None)),
    Theme(FLAT, (Terms(shared=True), Terms(shared=True, priority=1), Terms(priority=2), None)),
    Theme(FLAT, (Terms(lock_delay_us=2 * SECOND), Terms(shared=True, lock_delay_us=SECOND), None)),
    Theme(FLAT, (Terms(max_hold_us=6 * SECOND), Terms(limit=2, max_hold_us=3 * SECOND), Terms(priority=-1))),
    Theme(PATH, (Terms(hierarchical=True), None)),
    Theme(PATH, (Terms(hierarchical=True), Terms(hierarchical=True, shared=True), Terms(shared=True), None)),
    Theme(
        PATH, (Terms(hierarchical=True, lock_delay_us=3 * SECOND), Terms(lock_delay_us=3 * SECOND), Terms(priority=1))
    ),
    Theme(PATH[:2], (Terms(hierarchical=True, max_hold_us=5 * SECOND), Terms(hierarchical=True), None)),
)

owners = st.sampled_from(["A", "B", "C"])
replicas = st.sampled_from(["r1", "r2", "r3"])
names = st.sampled_from(["n1", "n2", "n3", "n4"])
ttls = st.integers(1, MAX_TTL_S)
picks = st.integers(0, 1000)
flags = st.booleans()


class Locks(RuleBasedStateMachine):
    """A store, its clock, and everybody who uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.store = JudgingStore((), LIMITS)
        self.keys: tuple[str, ...] = ()
        self.theme = THEMES[0]
        self.use_sessions = False
        self.ids = 0
        self.lowest_us = self.highest_us = 0
        self.later: list[Decision] = []
        self.polls: dict[tuple[str, str], Acquire | AcquireAll] = {}
        """Who waits, by request and attempt."""
        self.granted: list[tuple[tuple[str, ...], str, str]] = []
        """Lock keys, the lock token and the owner that somebody was told of."""
        self.looks: list[Confirm] = []
        """Looks below pending holds, and what they found; some of them old."""
        self.next: list[HandOverAll] = []
        self.dead: set[str] = set()

    @initialize(width_s=st.sampled_from([0, 0, 1, 2]), theme=st.sampled_from(THEMES), use_sessions=flags)
    def begin(self, width_s: int, theme: Theme, use_sessions: bool) -> None:
        self.theme, self.keys, self.use_sessions = theme, theme.keys, use_sessions
        self.store = JudgingStore(theme.keys, LIMITS)
        self.store.width_us = width_s * SECOND
        for session_id in SESSIONS if use_sessions else ():
            self.run(OpenSession(session_id, "A", MAX_TTL_S * SECOND))

    def key(self, pick: int) -> str:
        return self.keys[pick % len(self.keys)]

    # --- time and faults ---

    @rule(seconds=st.floats(0.001, 6))
    def pass_time(self, seconds: float) -> None:
        self.store.clock_us += int(seconds * SECOND)

    @rule(seconds=st.floats(0.001, 30))
    def turn_the_clock_back(self, seconds: float) -> None:
        self.highest_us = max(self.highest_us, self.store.clock_us)
        self.store.clock_us = max(self.lowest_us, self.store.clock_us - int(seconds * SECOND))
        self.store.steady = False

    @rule(pick=picks)
    def lose_the_record(self, pick: int) -> None:
        """A failover that lost writes; then order rests on the clock, which must not have gone back below them."""
        last = max([grant.hold.token for truth in self.store.truth.values() for grant in truth.grants], default=0)
        if last >= self.store.clock_us:
            return
        self.lowest_us = max(self.lowest_us, last + 1)
        self.lose(lock_entry(self.key(pick)))

    @rule(session_id=st.sampled_from(SESSIONS))
    @precondition(lambda self: self.use_sessions)
    def lose_the_session(self, session_id: str) -> None:
        self.lose(session_entry(session_id))

    def lose(self, entry: str) -> None:
        self.later = [decision for decision in self.later if entry not in decision.seen]
        self.looks.clear()
        self.store.lose(entry)

    @rule(replica=replicas)
    @precondition(lambda self: len(self.dead) < 2)
    def kill(self, replica: str) -> None:
        self.dead.add(replica)
        self.polls = {place: poll for place, poll in self.polls.items() if parts(poll)[0].replica != replica}

    @rule()
    def forget_what_is_past_its_time(self) -> None:
        for entry, (_, record) in list(self.store.entries.items()):
            if isinstance(record, Done) and record.until_us <= self.store.clock_us:
                del self.store.entries[entry]

    # --- acquire, and wait ---

    @rule(where=picks, owner=owners, replica=replicas, ttl_s=ttls, pick=picks, wait=flags, again=flags, later=flags)
    def acquire(
        self, where: int, owner: str, replica: str, ttl_s: int, pick: int, wait: bool, again: bool, later: bool
    ) -> None:
        who = self.claimant(f"u{self.new_id()}", owner, ttl_s, pick)
        wait_us = pick % 3 * 5 * SECOND
        self.ask(Acquire(self.key(where), who, replica, f"p{self.new_id()}", wait, False, again, wait_us), later)

    @rule(where=picks, replica=replicas, asks=st.lists(st.tuples(owners, picks, flags, flags), min_size=2, max_size=5))
    def rush(self, where: int, replica: str, asks: list[tuple[str, int, bool, bool]]) -> None:
        """Several who come at once: else they would seldom have to do with each other."""
        for owner, pick, wait, again in asks:
            self.acquire(where, owner, replica, MAX_TTL_S, pick, wait, again, False)

    @rule(where=picks, name=names, replica=replicas, wait=flags, ttl_s=st.sampled_from([5, 5, 5, 4]), later=flags)
    def acquire_by_name(self, where: int, name: str, replica: str, wait: bool, ttl_s: int, later: bool) -> None:
        who = self.claimant(name, f"owner of {name}", ttl_s, 0, special=None)
        self.ask(Acquire(self.key(where), who, replica, f"p{self.new_id()}", wait, named=True), later)

    @rule(owner=owners, replica=replicas, pick=picks, modes=st.lists(flags, min_size=3), wait=flags, later=flags)
    def acquire_all(self, owner: str, replica: str, pick: int, modes: list[bool], wait: bool, later: bool) -> None:
        """Two of the locks, or all: of what the theme has, a group takes what goes with several."""
        who = self.claimant(f"g{self.new_id()}", owner, MAX_TTL_S, pick)
        group = tuple(sorted(key for number, key in enumerate(self.keys) if len(self.keys) < 3 or number != pick % 4))
        common = replace(who.terms, limit=0, hierarchical=False, group=group)
        attempt, shares = f"p{self.new_id()}", any(terms and terms.shared for terms in self.theme.terms)
        asked = [
            Acquire(key, replace(who, special=replace(common, shared=shares and shared)), replica, attempt, wait)
            for key, shared in zip(group, modes, strict=False)
        ]
        self.ask(AcquireAll(tuple(asked)), later)

    def claimant(self, request: str, owner: str, ttl_s: int, pick: int, **given: Terms | None) -> Claimant:
        special = given.get("special", self.theme.terms[pick % len(self.theme.terms)])
        if self.use_sessions and not given and pick // 10 % 2:
            owner = ["A", "", "A", "B"][pick % 4]  # the session's own, none, or a wrong one
            special = replace(special or Terms(), session=SESSIONS[pick // 20 % len(SESSIONS)])
        return Claimant(request, f"{request}.{self.new_id()}", owner, ttl_s * SECOND, f"{ttl_s}", special=special)

    def ask(self, command: Acquire | AcquireAll, later: bool) -> None:
        first = parts(command)[0]
        if first.replica in self.dead:
            return
        if first.wait:
            self.polls[first.who.request, first.attempt] = command
        self.run(command, later)

    @rule(pick=picks, keep_s=st.sampled_from([0, 5]), later=flags)
    @precondition(lambda self: self.polls)
    def leave(self, pick: int, keep_s: int, later: bool) -> None:
        place = list(self.polls)[pick % len(self.polls)]
        command = self.polls.pop(place)
        leaves = tuple(Leave(part.lock_key, *place, keep_s * SECOND) for part in parts(command))
        self.run(LeaveAll(leaves) if isinstance(command, AcquireAll) else leaves[0], later)

    @rule(pick=picks, later=flags)
    @precondition(lambda self: self.polls)
    def take_up(self, pick: int, later: bool) -> None:
        self.run(self.taking(list(self.polls.values())[pick % len(self.polls)]), later)

    def taking(self, poll: Acquire | AcquireAll) -> TakeUp | TakeUpAll:
        request = parts(poll)[0].who.request
        if isinstance(poll, Acquire):
            return TakeUp(poll.lock_key, request)
        return TakeUpAll(tuple(part.lock_key for part in poll.parts), request)

    @rule(pick=picks)
    @precondition(lambda self: self.polls)
    def ask_again(self, pick: int) -> None:
        self.run(list(self.polls.values())[pick % len(self.polls)])

    @rule(pick=picks, later=flags)
    @precondition(lambda self: self.next)
    def hand_over_all(self, pick: int, later: bool) -> None:
        self.run(self.next.pop(pick % len(self.next)), later)

    # --- hierarchical ---

    @rule(pick=picks)
    def look_below_a_pending_hold(self, pick: int) -> None:
        pending = [(key, hold) for key, r in self.store.records().items() for hold in r.holds if hold.pending]
        if pending:
            key, hold = pending[pick % len(pending)]
            sessions = {session_entry(name): self.store.session(name) for name in SESSIONS}
            found = look_below(self.store.below(key), hold.who, self.store.now(), sessions)
            self.looks.append(Confirm(key, hold.who.request, hold.token, found.highest, found.holder is not None))

    @rule(pick=picks, later=flags)
    @precondition(lambda self: self.looks)
    def confirm(self, pick: int, later: bool) -> None:
        """By one of the last looks; while the pending hold lasts, also an old one tells the truth."""
        self.run(self.looks[-1 - pick % min(3, len(self.looks))], later)

    # --- renew, release ---

    @rule(pick=picks, ttl_s=st.none() | ttls, later=flags)
    @precondition(lambda self: self.granted)
    def renew(self, pick: int, ttl_s: int | None, later: bool) -> None:
        keys, lock_token, owner = self.granted[-1 - pick % len(self.granted)]
        renewals = tuple(Renew(key, lock_token, owner, ttl_s and ttl_s * SECOND) for key in keys)
        self.run(RenewAll(renewals) if len(keys) > 1 else renewals[0], later)

    @rule(pick=picks, alone=flags, later=flags)
    @precondition(lambda self: self.granted)
    def release(self, pick: int, alone: bool, later: bool) -> None:
        keys, lock_token, owner = self.granted[-1 - pick % len(self.granted)]
        releases = tuple(Release(key, lock_token, owner) for key in keys)
        self.run(ReleaseAll(releases) if len(keys) > 1 and not alone else releases[0], later)

    @rule(where=picks, pick=picks, later=flags)
    def tend(self, where: int, pick: int, later: bool) -> None:
        key = self.key(where)
        commands: tuple[Command, ...] = (
            Expire(key),
            Forget(key),
            ForceRelease(key, "why"),
            ForceRelease(key, "please", (1 + pick % 4) * SECOND),
        )
        self.run(commands[pick % len(commands)], later)

    @rule(where=picks, seconds=st.sampled_from([0.0, 0.5, 1.5]), notice=flags)
    def let_the_lease_run_out(self, where: int, seconds: float, notice: bool) -> None:
        """To right after the end of a lease, when what comes next is decided; by others it may go unnoticed."""
        ends = [self.store.end_of(hold) for hold in self.store.record(self.key(where)).holds]
        self.store.clock_us = max([self.store.clock_us, *ends]) + self.store.width_us + int(seconds * SECOND)
        if notice:
            self.run(Expire(self.key(where)))

    @rule(where=picks, back=flags, later=flags)
    def let_it_go_idle(self, where: int, back: bool, later: bool) -> None:
        """Everybody goes, and the record is forgotten; and then the clock may go back below its tokens."""
        key = self.key(where)
        self.run(ForceRelease(key, "enough"))
        self.store.clock_us += LIMITS.suspect_us + LIMITS.offer_us
        self.run(Expire(key))
        self.store.clock_us += LIMITS.suspect_us
        self.run(Expire(key))
        self.store.clock_us += LIMITS.idle_us + self.store.width_us
        self.run(Forget(key), later)
        if back:
            self.turn_the_clock_back(30)

    # --- sessions ---

    @rule(session_id=st.sampled_from(SESSIONS), pick=picks, later=flags)
    @precondition(lambda self: self.use_sessions)
    def keep_or_end_a_session(self, session_id: str, pick: int, later: bool) -> None:
        commands: tuple[Command, ...] = (
            RenewSession(session_id),
            RenewSession(session_id, "A", (1 + pick % MAX_TTL_S) * SECOND),
            EndSession(session_id),
            ExpireSession(session_id),
            OpenSession(session_id, "A", MAX_TTL_S * SECOND),
        )
        self.run(commands[pick % len(commands)], later)

    @rule(pick=picks, later=flags)
    @precondition(lambda self: self.use_sessions)
    def drop_what_a_session_had(self, pick: int, later: bool) -> None:
        drops = self.drops()
        if drops:
            self.run(drops[pick % len(drops)], later)

    @rule(session_id=st.sampled_from(SESSIONS))
    @precondition(lambda self: self.use_sessions)
    def begin_a_session_anew(self, session_id: str) -> None:
        """Long after, when all that it had is gone; a name never comes back before."""
        self.run(EndSession(session_id))
        while mine := [drop for drop in self.drops() if drop.session_id == session_id]:
            self.run(mine[0])
        self.store.clock_us += LIMITS.retention_us + self.store.width_us
        self.later.clear()
        self.run(ForgetSession(session_id))
        if self.store.session(session_id) is None:
            self.store.forget_session(session_id)
            self.run(OpenSession(session_id, "A", MAX_TTL_S * SECOND))

    def drops(self) -> list[Drop]:
        found = []
        for entry, (_, record) in self.store.entries.items():
            if isinstance(record, Member):
                session_id, request, _ = entry.removeprefix(MEMBERS).split("/", 2)
                found.append(Drop(record.lock_key, session_id, request))
        return found

    # --- load, decide, commit ---

    @rule(pick=picks)
    @precondition(lambda self: self.later)
    def land(self, pick: int) -> None:
        self.commit(self.later.pop(pick % len(self.later)))

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    def run(self, command: Command, later: bool = False) -> None:
        decision = self.store.decide(command)
        if later:
            self.later.append(decision)
        else:
            self.commit(decision)

    def commit(self, decision: Decision) -> None:
        if self.store.commit(decision):
            self.hear(decision)

    def hear(self, decision: Decision) -> None:
        """Tell whoever asked, and whoever waits for the same."""
        command, told = decision.command, list(self.store.told(decision))
        self.next = [*self.next, *(later for later in decision.step.next if later not in self.next)][-8:]
        if told:
            who = told[0].hold.who
            self.granted.append((tuple(grant.key for grant in told), who.lock_token, who.owner_id))
            self.forget_polls(who.request, told[0].key)
        elif isinstance(decision.step.outcome, Refused):
            if isinstance(command, Acquire | AcquireAll):
                self.polls.pop((parts(command)[0].who.request, parts(command)[0].attempt), None)
            elif isinstance(command, TakeUp | TakeUpAll):
                self.forget_polls(command.request, command.at[0].removeprefix(LOCKS))

    def forget_polls(self, request: str, key: str) -> None:
        self.polls = {
            place: poll
            for place, poll in self.polls.items()
            if place[0] != request or key not in [part.lock_key for part in parts(poll)]
        }

    @invariant()
    def what_is_there_is_sound(self) -> None:
        self.store.check()

    # --- I6: after the faults stop, whoever waits gets the lock ---

    def teardown(self) -> None:
        self.later.clear()
        self.store.clock_us = max(self.store.clock_us, self.highest_us)  # a clock that went back is a fault too
        self.keep_sessions()
        tending = Tending(self)
        patience_s = MAX_TTL_S + 4 + 4 * LIMITS.offer_us // SECOND + self.store.width_us // SECOND * 5 + 1
        end_us = self.store.clock_us + patience_s * SECOND * len(self.keys)
        while self.polls and self.store.clock_us < end_us:
            tending.tend()
            self.store.clock_us += SECOND // 4
        assert not self.polls, "I6: somebody waits for ever"
        self.end_all()

    def keep_sessions(self) -> None:
        """They end by themselves; whoever waits under one hears of that."""
        for session_id in SESSIONS:
            self.run(ExpireSession(session_id))

    def end_all(self) -> None:
        """When its sessions are over, nothing of them stays."""
        for session_id in SESSIONS:
            self.run(EndSession(session_id))
        for drop in self.drops():
            self.run(drop)
        assert not self.drops(), "an entry of the index stays for ever"
        for record in self.store.records().values():
            assert not any(hold.who.terms.session for hold in record.holds)


examples = int(os.environ.get("FENCEGATE_EXAMPLES", "200"))
Locks.TestCase.settings = settings(
    max_examples=examples,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLocks = Locks.TestCase
