"""Nodes of a redlock store are wiped and brought back while proposers go on, without any server: every message may
come late, and every step of bringing a node back may be followed by anything."""

import random
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Change, Unavailable
from fencegate_lockservice.stores.redlock.members import Config, NodeSays, identity, judge, strangers
from fencegate_lockservice.stores.redlock.paxos import (
    Absent,
    Accept,
    Answer,
    Ballots,
    Beaten,
    Edit,
    Fit,
    Prepare,
    Proposal,
    Settled,
    Standing,
)
from fencegate_lockservice.stores.redlock.register import Commit, Identity
from tests.stores.test_redlock_paxos import KEY, NODES, Acceptor, history_of

SEATS = ("a", "b", "c", "d", "e")
MAJORITY = NODES // 2 + 1
WIPES = 20


def says(state: str, number: int, config: Config) -> NodeSays:
    fields = {"digest": config.digest}
    return NodeSays(state, SEATS[number], config.identities[number], "D", SEATS, config, 0, fields)


class Server:
    """A node: what it says of itself, and one register."""

    def __init__(self, number: int, config: Config) -> None:
        self.number = number
        self.says = says("voting", number, config)
        self.register = Acceptor()

    def hear(self, digest: str, identity: str, asked: Prepare | Accept) -> Answer:
        if (self.says.state, self.says.digest, self.says.identity) != ("voting", digest, identity):
            return Absent()
        return self.register.hear(asked)

    def change(self, seen: NodeSays, new: NodeSays) -> bool:
        now = self.says
        if (now.state, now.identity, now.digest) != (seen.state, seen.identity, seen.digest):
            return False
        self.says = new
        return True

    def wipe(self) -> None:
        self.says = NodeSays()
        self.register = Acceptor()


class World:
    """Servers, proposers and healers. A `flaw` of theirs: "hasty" ones let a node vote before it has copied anything,
    "silent" ones bring it back under its old identity, so that nobody is told."""

    def __init__(self, seed: int, flaw: str = "") -> None:
        self.random = random.Random(seed)
        self.now_us = 1
        config = Config("D", SEATS, tuple(identity(1, "", name) for name in SEATS))
        self.servers = [Server(number, config) for number in range(NODES)]
        self.network: list[tuple[Proposer, Prepare | Accept, int, str, str, Answer | None]] = []
        self.done: list[str] = []
        self.never: set[str] = set()
        self.flaw = flaw
        self.proposers = [Proposer(number, self) for number in range(3)]
        self.healers = [self._heal() for _ in range(2)]
        self.wipes = WIPES

    def run(self) -> None:
        alive = list(self.proposers)
        for _ in range(30_000):
            self.now_us += 1
            chance = self.random.random()
            if self.wipes and chance < 0.02 and self._all_vote():
                self.wipes -= 1
                for server in self.random.sample(self.servers, self.random.choice((1, 1, 2))):
                    server.wipe()
            elif not self._all_vote() and chance < 0.95:  # soon, for what is written meanwhile covers up what was lost
                next(self.random.choice(self.healers))
            elif chance > 0.99 or not self.network:
                self.random.choice(self.proposers).give_up()
            else:
                self._deliver()
            alive = [proposer for proposer in alive if next(proposer.life, proposer) is None]
            if not alive:
                return
        raise AssertionError("it never ends")

    def _all_vote(self) -> bool:
        return all(server.says.state == "voting" for server in self.servers)

    def _deliver(self) -> None:
        place = self.random.randrange(len(self.network))
        self.network[place], self.network[-1] = self.network[-1], self.network[place]
        proposer, asked, number, digest, of, answer = self.network.pop()
        if answer is not None:
            proposer.hear(asked, number, answer)
        elif self.random.random() < 0.7:
            heard = self.servers[number].hear(digest, of, asked)
            self.network.append((proposer, asked, number, digest, of, heard))

    def look(self) -> dict[int, NodeSays]:
        """What some of them say now; at times not all of them answer."""
        some = self.random.sample(self.servers, self.random.choice((4, NODES, NODES)))
        return {server.number: server.says for server in some}

    def _heal(self) -> Iterator[None]:
        """What `Council` does, one step at a time."""
        while True:
            yield
            found = self.look()
            yield
            try:
                findings = judge(SEATS, found)
            except Unavailable:
                continue
            assert findings is not None
            config = findings.config
            for number in findings.behind:
                self._install(number, found[number], config)
                yield
            for number in findings.blank:
                yield from self._bring_back(number, found[number], config)

    def _install(self, number: int, seen: NodeSays, config: Config) -> None:
        self.servers[number].change(seen, replace(seen, config=config, fields={"digest": config.digest}))

    def _bring_back(self, number: int, seen: NodeSays, config: Config) -> Iterator[None]:
        server = self.servers[number]
        if seen.state != "copying" or seen.identity < config.identities[number]:
            fresh = identity(self.now_us, config.identities[number], f"{self.random.getrandbits(32):08x}")
            if self.flaw == "silent":
                fresh = config.identities[number]
            server.change(seen, NodeSays("copying", SEATS[number], fresh, "D", SEATS))
            return
        if seen.identity != config.identities[number]:
            seated = config.seated(number, seen.identity)
            for other, node in self.look().items():
                yield
                if node.state == "voting" and node.config is not None:
                    self._install(other, node, node.config.merged(seated))
            return
        held: list[Acceptor] = []
        for source in self.random.sample(self.servers, NODES):
            yield
            if (source.says.state, source.says.digest) == ("voting", config.digest):
                held.append(replace(source.register))
            if len(held) == MAJORITY:
                break
        else:
            return
        if server.says.identity != seen.identity or server.says.state != "copying":
            return
        if self.flaw != "hasty":
            newest = max([*held, server.register], key=lambda register: register.ballot)
            promised = max(register.promised for register in [*held, server.register])
            server.register = replace(newest, promised=promised)
        yield
        voting = replace(seen, state="voting", config=config, fields={"digest": config.digest})
        server.change(seen, voting)


class Proposer:
    """Commits one after the other, each with a view of who votes that may be old."""

    def __init__(self, number: int, world: World) -> None:
        self.world = world
        self.ballots = Ballots(number, lambda: world.now_us + world.random.randrange(5))
        self.standing: tuple[str, Standing] | None = None
        self.proposal: Proposal | None = None
        self.settled: Settled | None = None
        self.config: Config | None = None
        self.voters: frozenset[int] = frozenset()
        self.life = self._live(number)

    def _live(self, number: int) -> Iterator[None]:
        for turn in range(12):
            yield from self._settle(Identity())
            if self.settled is None or self.settled.standing is None:
                continue
            version, history = history_of(self.settled.standing.value)
            expected = [name for name in self.world.done if name not in history]
            assert not [name for name in expected if name in self.before], "a commit that was done is not read"
            name = f"{number}-{turn}"
            commit = Commit(KEY, [Change(KEY, version, name, msgspec.json.encode([*history, name]))], b"", name, 0)
            yield from self._settle(commit)
            if self.settled is not None and self.settled.fit is Fit.THERE:
                self.world.done.append(name)
            elif self.settled is not None and self.settled.fit is Fit.NEVER:
                self.world.never.add(name)

    def _settle(self, edit: Edit) -> Iterator[None]:
        self.before = set(self.world.done)
        self.settled, self.proposal = None, Proposal(NODES, edit, self.ballots)
        self._begin()
        while self.settled is None and self.proposal is not None:
            yield
        self.proposal = None
        if self.settled is not None and self.settled.standing is not None and self.config is not None:
            self.standing = (self.config.digest, self.settled.standing)

    def _begin(self) -> None:
        """With a view of its own: both messages of a round carry the same one."""
        if self.config is None or self.world.random.random() < 0.5:
            try:
                findings = judge(SEATS, self.world.look())
            except Unavailable:
                findings = None
            if findings is not None:
                self.config, self.voters = findings.config, findings.voters
        if self.config is None or self.proposal is None:
            self.proposal = None
            return
        digest, standing = self.standing or ("", None)
        self.standing = None
        self._send(self.proposal.begin(standing if digest == self.config.digest else None))

    def _send(self, asked: Prepare | Accept) -> None:
        assert self.config is not None
        config = self.config
        for number in range(NODES):
            answer = None if number in self.voters else Absent()
            self.world.network.append((self, asked, number, config.digest, config.identities[number], answer))

    def hear(self, asked: Prepare | Accept, node: int, answer: Answer) -> None:
        if self.proposal is None or self.settled is not None:
            return
        step = self.proposal.hear(asked, node, answer)
        if isinstance(step, Prepare | Accept):
            self._send(step)
        elif isinstance(step, Beaten):
            self._begin()
        elif step is not None:
            self.settled = step

    def give_up(self) -> None:
        if self.settled is None:
            self.proposal = None


def judge_world(world: World) -> int:
    """All that was told to be done was read by whoever looked later; gives how many that were."""
    findings = judge(SEATS, {server.number: server.says for server in world.servers})
    assert findings is not None
    voting = [server.register for server in world.servers if server.number in findings.voters]
    newest = max(voting, key=lambda register: register.ballot)
    _, history = history_of(newest.value if newest.ballot else None)
    assert set(world.done) <= set(history), "a commit that was done is lost"
    assert not world.never & set(history), "a commit that was refused is there"
    return len(world.done)


@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, 50, 25)], ids=str)
def test_nodes_are_wiped_and_brought_back_and_nothing_that_was_done_is_lost(seeds: range) -> None:
    done = wiped = 0
    for seed in seeds:
        world = World(seed)
        world.run()
        done += judge_world(world)
        wiped += WIPES - world.wipes
    assert done > len(seeds)
    assert wiped > len(seeds)


@pytest.mark.parametrize("flaw", ["hasty", "silent"])
def test_nodes_that_are_brought_back_in_a_wrong_way_are_found_out(flaw: str) -> None:
    with pytest.raises(AssertionError, match=r"lost|refused|not read"):
        for seed in range(1000):
            world = World(seed, flaw)
            world.run()
            judge_world(world)


# --- who belongs together --------------------------------------------------------------------------------------------

CONFIG = Config("D", SEATS, tuple(identity(1, "", name) for name in SEATS))
ALL = {number: says("voting", number, CONFIG) for number in range(NODES)}


def test_a_later_identity_of_each_seat_is_right_whoever_tells_of_it_first() -> None:
    one, two = CONFIG.seated(0, identity(5, "", "x")), CONFIG.seated(4, identity(3, "", "y"))
    assert one.merged(two) == two.merged(one) == one.seated(4, two.identities[4])
    assert one.merged(CONFIG) == one
    assert one.digest != CONFIG.digest
    assert identity(2, one.identities[0], "z") > one.identities[0]


def test_a_node_that_was_replaced_does_not_vote_and_the_others_are_told() -> None:
    later = CONFIG.seated(4, identity(9, "", "x"))
    found = ALL | {0: says("voting", 0, later)}
    findings = judge(SEATS, found)
    assert findings is not None
    assert (findings.config, findings.voters) == (later, frozenset({0, 1, 2, 3}))
    assert (findings.behind, findings.blank) == ((1, 2, 3), (4,))


def test_a_first_start_that_was_broken_off_is_finished() -> None:
    forming = {number: replace(ALL[number], state="forming", config=None, fields={}) for number in range(NODES)}
    assert judge(SEATS, forming) is None
    findings = judge(SEATS, forming | {2: ALL[2]})
    assert findings is not None
    assert (findings.voters, findings.ready, findings.blank) == (frozenset({2}), (0, 1, 3, 4), ())


def test_too_few_or_foreign_nodes_are_refused() -> None:
    with pytest.raises(Unavailable, match="no answer from c, d, e"):
        judge(SEATS, {0: ALL[0], 1: ALL[1]})
    with pytest.raises(Unavailable, match=r"without their data: a, b, c .a majority lost its data"):
        judge(SEATS, ALL | {0: NodeSays(), 1: NodeSays(), 2: NodeSays()})
    with pytest.raises(Unavailable, match=r"only 2 of 5 nodes can vote.*without their data: a, b, c"):
        judge(SEATS, ALL, frozenset({0, 1, 2}))
    with pytest.raises(Unavailable, match=r"first start needs every node.*: e"):
        judge(SEATS, {number: NodeSays() for number in range(4)})
    with pytest.raises(UnsafeConfiguration, match="different stores"):
        judge(SEATS, ALL | {3: replace(ALL[3], deployment="other")})
    with pytest.raises(UnsafeConfiguration, match="are the same server"):
        judge(SEATS, ALL | {3: ALL[2]})
    with pytest.raises(UnsafeConfiguration, match="belongs to the nodes a, b, c"):
        judge(SEATS, ALL | {3: replace(ALL[3], seats=("a", "b", "c"))})


def test_nodes_that_belong_to_something_else_than_the_majority_are_strangers() -> None:
    other = {number: replace(node, deployment="other") for number, node in ALL.items()}
    assert not strangers(SEATS, ALL | {4: NodeSays()})
    assert not strangers(SEATS, other)  # all of them were emptied, and somebody has made a store of them
    assert set(strangers(SEATS, ALL | {1: other[1], 3: replace(ALL[3], seats=("a", "b", "c")), 4: ALL[2]})) == {3, 4}
    assert set(strangers(SEATS, ALL | {1: other[1], 3: other[3]})) == {1, 3}
    assert set(strangers(SEATS, {0: ALL[0], 1: other[1], 2: other[2], 3: other[3]})) == {0}
    assert not strangers(SEATS, {0: ALL[0], 1: ALL[1], 2: other[2], 3: other[3]})  # nobody can tell whose they are
