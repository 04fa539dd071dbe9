"""The voting of a redlock store without any server: proposers and nodes in one process, and a network that drops,
delays and doubles what they say (but an Accept). Seeded, so that a run that fails can be repeated."""

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import msgspec
import pytest

from fencegate.core.ports import Change
from fencegate_lockservice.stores.redlock.paxos import (
    NONE,
    Absent,
    Accept,
    Accepted,
    Answer,
    Ballots,
    Beaten,
    Edit,
    Fit,
    Lost,
    Prepare,
    Promised,
    Proposal,
    Reading,
    Refused,
    Settled,
    Standing,
)
from fencegate_lockservice.stores.redlock.register import RECENT, Commit, Identity, decode, found_in, register_of

NODES = 5
KEY = "lock/k"
HISTORY = msgspec.json.Decoder(list[str])


@dataclass
class Acceptor:
    """What the Lua scripts of a node do, for one register."""

    promised: str = NONE
    ballot: str = NONE
    value: bytes = b""
    hint: bytes = b""

    def hear(self, asked: Prepare | Accept) -> Answer:
        if isinstance(asked, Prepare):
            if self.promised >= asked.ballot:
                return Refused(self.promised)
            self.promised = asked.ballot
            return Promised(self.ballot, self.value, self.hint)
        if self.promised > asked.ballot:
            return Refused(self.promised)
        self.promised, self.ballot, self.value, self.hint = asked.next_ballot, asked.ballot, asked.value, asked.hint
        return Accepted()


@dataclass
class Told:
    """What proposers said to those who asked: ids of commits, by what became of them."""

    done: set[str] = field(default_factory=set)
    never: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    seen: list[list[str]] = field(default_factory=list)
    """Histories that were read, in the order in which the reads began and ended, one after the other."""


def history_of(value: bytes | None) -> tuple[str | None, list[str]]:
    """The version of the entry, and all commits that made it."""
    found = found_in(value, [KEY], 0)
    return (found[KEY].version, HISTORY.decode(found[KEY].value)) if found else (None, [])


Message = tuple["Proposer", Prepare | Accept, int, Answer | None]


class Proposer:
    """Commits one after the other, each on what it read before; it gives up now and then, as after a timeout."""

    def __init__(self, number: int, world: "World", majority: int | None) -> None:
        self.world = world
        self.random = world.random
        self.ballots = Ballots(number, lambda: self.world.now_us + self.random.randrange(5))
        self.majority = majority
        self.standing: Standing | None = None
        self.proposal: Proposal | None = None
        self.asked: Prepare | Accept | None = None
        self.script = self._live(number)
        self.wake: Settled | None = None
        next(self.script)

    def _live(self, number: int) -> Iterator[None]:
        for turn in range(8):
            settled = yield from self._settle(Identity())
            if settled is None:
                continue
            assert settled.standing is not None
            version, history = history_of(settled.standing.value)
            self.world.told.seen.append(history)
            if self.random.random() < 0.15:
                version = "another"
            name = f"{number}-{turn}"
            change = Change(KEY, version, name, msgspec.json.encode([*history, name]))
            commit = Commit(KEY, [change], b"", name, 0)
            settled = yield from self._settle(commit)
            if settled is None:
                (self.world.told.unknown if commit.proposed else self.world.told.never).add(name)
            else:
                told = self.world.told
                {Fit.THERE: told.done, Fit.NEVER: told.never, Fit.UNKNOWN: told.unknown}[settled.fit].add(name)

    def _settle(self, edit: Edit) -> Generator[None, None, Settled | None]:
        self.proposal = Proposal(NODES, edit, self.ballots)
        if self.majority is not None:
            self.proposal._majority = self.majority
        self.wake = None
        standing, self.standing = self.standing, None
        self._send(self.proposal.begin(standing))
        while self.wake is None and self.proposal is not None:
            yield
        settled, self.proposal = self.wake, None
        if settled is not None:
            self.standing = settled.standing
        return settled

    def _send(self, asked: Prepare | Accept) -> None:
        self.asked = asked
        self.world.network += [(self, asked, node, None) for node in range(NODES)]

    def hear(self, asked: Prepare | Accept, node: int, answer: Answer) -> None:
        if self.proposal is None:
            return
        step = self.proposal.hear(asked, node, answer)
        if isinstance(step, Prepare | Accept):
            self._send(step)
        elif isinstance(step, Beaten):
            self._send(self.proposal.begin())
        elif step is not None:
            self.wake = step

    def give_up(self) -> None:
        self.proposal = None

    def go_on(self) -> bool:
        return next(self.script, self) is None


class World:
    """Nodes, proposers, and what is on its way between them."""

    def __init__(self, seed: int, proposers: int = 3, majority: int | None = None) -> None:
        self.random = random.Random(seed)
        self.now_us = 0
        self.network: list[Message] = []
        self.nodes = [Acceptor() for _ in range(NODES)]
        self.told = Told()
        self.proposers = [Proposer(number, self, majority) for number in range(proposers)]

    def run(self) -> None:
        alive = list(self.proposers)
        for _ in range(20_000):
            self.now_us += 1
            chance = self.random.random()
            if chance < 0.02 and alive:
                self.random.choice(alive).give_up()
            elif self.network:
                self._deliver(chance)
            elif alive:
                self.random.choice(alive).give_up()  # all it said was lost
            alive = [proposer for proposer in alive if proposer.go_on()]
            if not alive and not self.network:
                return
        raise AssertionError("it never ends")

    def _deliver(self, chance: float) -> None:
        place = self.random.randrange(len(self.network))
        message = self.network[place]
        once = isinstance(message[1], Accept) and message[3] is None  # a line carries it once, or not at all
        if once or chance > 0.05:  # else it is delivered, and stays under way: it will come again
            self.network[place] = self.network[-1]
            self.network.pop()
        proposer, asked, node, answer = message
        lost = self.random.random() < 0.08
        if answer is not None:
            proposer.hear(asked, node, Lost() if lost else answer)
        elif lost:
            self.network.append((proposer, asked, node, Lost()))
        else:
            self.network.append((proposer, asked, node, self.nodes[node].hear(asked)))

    def judge(self) -> None:
        """What is there in the end tells who was lied to."""
        last = Proposer(99, self, None)
        for _ in range(1000):
            if not self.network:
                break
            proposer, asked, node, answer = self.network.pop(0)
            if answer is None:
                self.network.append((proposer, asked, node, self.nodes[node].hear(asked)))
            else:
                proposer.hear(asked, node, answer)
        assert last.wake is not None
        assert last.wake.standing is not None
        _, history = history_of(last.wake.standing.value)
        assert len(set(history)) == len(history)
        assert self.told.done <= set(history), "a commit that was told to be done is lost"
        assert not self.told.never & set(history), "a commit that was refused is there"
        for seen in self.told.seen:
            assert seen == history[: len(seen)], "something was read that never was"


@pytest.mark.parametrize("seeds", [range(start, start + 50) for start in range(0, 150, 50)], ids=str)
def test_whatever_the_network_does_what_is_said_of_a_commit_is_true(seeds: range) -> None:
    done = 0
    for seed in seeds:
        world = World(seed)
        world.run()
        world.judge()
        done += len(world.told.done)
    assert done > len(seeds)


def test_proposers_that_take_two_of_five_for_a_majority_are_found_out() -> None:
    with pytest.raises(AssertionError, match=r"lost|refused|never was"):
        for seed in range(300):
            world = World(seed, majority=2)
            world.run()
            world.judge()


def test_whoever_wrote_last_writes_again_in_one_round_and_anybody_else_in_two() -> None:
    nodes = [Acceptor() for _ in range(NODES)]
    rounds: list[str] = []

    def settle(edit: Edit, ballots: Ballots, standing: Standing | None) -> Settled:
        proposal = Proposal(NODES, edit, ballots)
        asked = proposal.begin(standing)
        while True:
            rounds.append(type(asked).__name__)
            steps = [proposal.hear(asked, number, node.hear(asked)) for number, node in enumerate(nodes)]
            (step,) = [step for step in steps if step is not None]
            if isinstance(step, Settled):
                return step
            asked = proposal.begin() if isinstance(step, Beaten) else step

    def commit(expected: str | None, version: str) -> Commit:
        return Commit(KEY, [Change(KEY, expected, version, b"{}")], b"", version, 0)

    now_us = iter(range(1, 1000))
    one, two = (Ballots(number, lambda: next(now_us)) for number in (1, 2))
    first = settle(commit(None, "v1"), one, None)
    second = settle(commit("v1", "v2"), one, first.standing)
    assert rounds == ["Prepare", "Accept", "Accept"]
    rounds.clear()
    assert settle(commit("v2", "v3"), two, None).fit is Fit.THERE
    assert rounds == ["Prepare", "Accept"]
    assert settle(commit("v2", "w3"), one, second.standing).fit is Fit.NEVER


def test_a_value_that_only_some_accepted_is_read_by_nobody_until_a_majority_has_it() -> None:
    reading = Reading(NODES)
    for ballot, value in (("2", b"new"), ("1", b"old"), ("1", b"old")):
        reading.hear(ballot, value)
    assert not reading.known
    reading.hear("2", b"new")
    assert not reading.known
    assert not reading.hopeless
    reading.hear("2", b"new")
    assert (reading.known, reading.value) == (True, b"new")
    split = Reading(3)
    for ballot in ("1", "2", "3"):
        split.hear(ballot, b"")
    assert split.hopeless
    empty = Reading(3)
    empty.hear(NONE, b"")
    empty.hear(NONE, b"")
    assert (empty.known, empty.value) == (True, None)


# --- what a register holds -------------------------------------------------------------------------------------------


def test_a_lock_and_its_settled_requests_are_in_one_register_and_all_else_has_its_own() -> None:
    assert register_of("lock/orders:7/a") == "lock/orders:7/a"
    assert register_of("done/r1/orders:7/a") == "lock/orders:7/a"
    assert register_of("session/s1") == "session/s1"
    assert register_of("done/r1") == "done/r1"


def test_of_the_settled_requests_of_a_lock_the_newest_are_kept_and_the_lock_always() -> None:
    value: bytes | None = None
    version = None
    for number in range(200):
        changes = [
            Change("lock/k", version, f"v{number}", b"{}"),
            Change(f"done/r{number}/k", None, f"v{number}", b"x" * 100, keep_until_us=10**15),
        ]
        commit = Commit("lock/k", changes, b"", f"v{number}", 0)
        assert commit.judge(value) is Fit.FITS
        value, _ = commit.apply(value)
        version = f"v{number}"
    entries = decode(value).entries
    assert entries["lock/k"].version == "v199"
    assert [name for name in entries if name != "lock/k"] == [f"done/r{number}/k" for number in range(136, 200)]
    assert len(decode(value).commits) == RECENT


def test_a_commit_that_others_may_have_built_on_is_unknown_when_the_past_does_not_reach_back() -> None:
    commit = Commit("k", [Change("k", None, "mine", b"{}")], b"", "mine", 0)
    commit.apply(None)
    value: bytes | None = None
    version = None
    for number in range(RECENT + 1):
        assert commit.judge(value) is (Fit.FITS if not number else Fit.NEVER if number < RECENT else Fit.UNKNOWN)
        other = Commit("k", [Change("k", version, f"v{number}", b"{}")], b"", f"v{number}", 0)
        value, _ = other.apply(value)
        version = f"v{number}"


def stale_commit() -> tuple[Proposal, Accept, Commit, bytes]:
    """A commit on what was there long ago, sent; and what is there now."""
    values: list[bytes] = []
    version = None
    for number in range(RECENT + 2):
        other = Commit(KEY, [Change(KEY, version, f"v{number}", b"{}")], b"", f"v{number}", 0)
        values.append(other.apply(values[-1] if values else None)[0])
        version = f"v{number}"
    commit = Commit(KEY, [Change(KEY, "v0", "mine", b"{}")], b"", "mine", 0)
    proposal = Proposal(NODES, commit, Ballots(1, lambda: 100))
    asked = proposal.begin(Standing("1", values[0]))
    assert isinstance(asked, Accept)
    return proposal, asked, commit, values[-1]


def test_a_commit_that_every_node_refused_or_was_not_asked_for_was_surely_never_made() -> None:
    proposal, asked, commit, value = stale_commit()
    assert commit.judge(value) is Fit.UNKNOWN
    for node in range(NODES - 2):
        assert proposal.hear(asked, node, Refused("2")) is None
    assert proposal.hear(asked, 3, Absent()) is None
    assert proposal.hear(asked, 4, Refused("2")) == Beaten(True)
    assert commit.judge(value) is Fit.NEVER
    assert not commit.proposed


@pytest.mark.parametrize("last", [Lost(), Accepted(), None])
def test_a_commit_that_one_node_may_have_accepted_stays_unknown(last: Answer | None) -> None:
    proposal, asked, commit, value = stale_commit()
    for node in range(NODES - 1):
        assert proposal.hear(asked, node, Refused("2")) is None
    step = proposal.hurry(asked) if last is None else proposal.hear(asked, NODES - 1, last)
    assert step == Beaten(True)
    assert proposal.hear(asked, NODES - 1, Refused("2")) is None
    assert commit.judge(value) is Fit.UNKNOWN
    assert commit.proposed


def test_a_commit_that_a_node_refuses_since_it_accepted_it_before_stays_unknown() -> None:
    proposal, asked, commit, value = stale_commit()
    for node in range(NODES - 1):
        proposal.hear(asked, node, Refused("2"))
    assert proposal.hear(asked, NODES - 1, Refused(asked.next_ballot)) == Beaten(True)
    assert commit.judge(value) is Fit.UNKNOWN


def test_a_commit_that_was_sent_twice_stays_unknown_when_only_the_second_was_refused_by_all() -> None:
    proposal, asked, commit, value = stale_commit()
    for node in range(NODES):
        proposal.hear(asked, node, Lost())
    first, _ = Commit(KEY, [Change(KEY, None, "v0", b"{}")], b"", "v0", 0).apply(None)
    again = proposal.begin(Standing("3", first))
    assert isinstance(again, Accept)
    for node in range(NODES):
        proposal.hear(again, node, Refused("4"))
    assert commit.judge(value) is Fit.UNKNOWN
