"""What goes wrong in a run, and when: each kind of fault is a method of its name."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from fencegate.clock import seeded
from fencegate.verify.sim.loop import BEGINNING_US
from fencegate.verify.sim.network import CALM
from fencegate.verify.sim.store import NAME as STORE

if TYPE_CHECKING:
    from fencegate.verify.sim.caller import Caller
    from fencegate.verify.sim.schedule import Plan, Stage
    from fencegate.verify.sim.world import Process

KINDS = ("pause", "crash", "partition", "messages", "failover", "clock", "reset", "restart")
NEEDS_A_CLOCK = ("failover", "clock")
"""What only befalls stores with a clock: those without are built to lose nothing."""
FEWEST = 2
LIES_IN_WAIT = 0.6
"""How many of the faults that can do so wait for the moment at which they do most harm."""
PAUSES_US = (300_000, 2_000_000, 2_000_000, 5_000_000)
CLAIMED_FOR_US = 5_000_000


T = TypeVar("T")


class Dice(Protocol):
    """What a fault rolls: chance that can be repeated."""

    def random(self) -> float: ...
    def randint(self, a: int, b: int, /) -> int: ...
    def randrange(self, stop: int, /) -> int: ...
    def choice(self, seq: Sequence[T], /) -> T: ...


class Planned(NamedTuple):
    """A fault to come. Each rolls dice of its own, so that a run without one of them has the others as they were."""

    number: int
    at_us: int
    kind: str


def planned(plan: "Plan") -> list[Planned]:
    """The faults of a plan, without those that it leaves out."""
    chance = seeded(f"faults {plan.seed}")
    kinds = [kind for kind in plan.faults if kind != "messages" and (plan.clock or kind not in NEEDS_A_CLOCK)]
    kinds += ["pause"] * (2 * kinds.count("pause"))  # what it is all about
    count = chance.randint(FEWEST, FEWEST + 2 * plan.rounds) if kinds else 0
    all_of_them = [Planned(number, chance.randrange(plan.storm_us), chance.choice(kinds)) for number in range(count)]
    return [fault for fault in all_of_them if fault.number not in plan.without]


class Faults:
    """See the head of this file. `messages` is not here: the network sees to it, all the while."""

    def __init__(self, stage: "Stage") -> None:
        self._stage = stage
        self._world = stage.world

    def begin(self) -> None:
        """Have all of them happen, each at its time, and the storm end."""
        plan = self._stage.plan
        for fault in planned(plan):
            chance = seeded(f"fault {plan.seed} {fault.number}")
            self._world.after(fault.at_us, partial(getattr(self, fault.kind), chance))
        self._world.after(plan.storm_us, self._calm)

    def _say(self, what: str) -> None:
        self._stage.history.faults.append(f"{(self._world.now_us - BEGINNING_US) / 1e6:.3f} s: {what}")

    def _calm(self) -> None:
        self._stage.network.weather = CALM
        self._stage.network.cut.clear()
        self._stage.snares.clear()
        self._stage.store.snares.clear()

    def pause(self, chance: Dice) -> None:
        """Somebody is paused: whoever has read next and will write, who holds a lock, or anybody; where callers have an
        engine of their own, also whoever commits the next grant, before it hears of that."""
        for_us = chance.choice(PAUSES_US)
        if chance.random() < LIES_IN_WAIT:
            if self._stage.plan.direct != "nobody" and chance.random() < 0.5:
                self._stage.store.snares.append(lambda process: self._pause(process, for_us))
                return
            self._stage.snares.append(lambda caller: self._pause(caller.process, for_us))
            return
        holding = [caller.process for caller in self._stage.callers if caller.holding]
        everybody = [process for process in self._world.processes if process.alive]
        self._pause(chance.choice(holding if holding and chance.random() < 0.5 else everybody), for_us)

    def _pause(self, process: "Process", for_us: int) -> bool:
        process.pause(for_us)
        self._say(f"{process.name} paused for {for_us / 1e6:g} s")
        return True

    def crash(self, chance: Dice) -> None:
        stage = self._stage
        if chance.random() < 0.5 and stage.replicas:
            replica = chance.choice(stage.replicas)
            if replica.process.alive:
                replica.crash()
                self._say(f"{replica.name} crashed")
                self._world.after(chance.randint(10_000, 2_000_000), replica.start)
            return
        place = chance.randrange(len(stage.callers))
        caller = stage.callers[place]
        if not caller.done:
            caller.crash()
            self._say(f"{caller.name} crashed")
            stage.callers[place] = stage.caller()

    def partition(self, chance: Dice) -> None:
        network = self._stage.network
        direct = [caller.name for caller in self._stage.callers if caller.is_direct]
        names = [replica.name for replica in self._stage.replicas]
        if direct and (not names or chance.random() < 0.5):  # what they can be cut off from is the store
            pair = frozenset((chance.choice(direct), STORE))
        else:
            pair = frozenset((chance.choice(names), chance.choice([STORE, *[c.name for c in self._stage.callers]])))
        network.cut.add(pair)
        self._say(f"{' and '.join(sorted(pair))} can't hear each other")
        self._world.after(chance.randint(100_000, 4_000_000), lambda: network.cut.discard(pair))

    def failover(self, _chance: Dice) -> None:
        store = self._stage.store
        before = store.lost_commits
        store.fail_over()
        self._stage.history.commits_lost = True
        self._say(f"the store failed over and lost {store.lost_commits - before} commits")

    def reset(self, _chance: Dice) -> None:
        self._stage.store.reset_streams()
        self._say("the store can't say what changed lately")

    def restart(self, chance: Dice) -> None:
        """The resource restarts: now, or when somebody has read and will write, while another is paused who may too.
        (Who has only claimed is paused then, so that the other comes first.)"""
        if chance.random() < LIES_IN_WAIT:
            self._stage.snares.append(self._restart_if_it_matters)
        else:
            self._restart()

    def _restart_if_it_matters(self, caller: "Caller") -> bool:
        matters = any(other.process.paused_until_us > self._world.now_us for other in self._stage.callers)
        if matters:
            self._restart()
            if self._stage.plan.claims:
                self._pause(caller.process, CLAIMED_FOR_US)
        return matters

    def _restart(self) -> None:
        self._stage.resource.restart()
        self._say("the resource restarted")

    def clock(self, chance: Dice) -> None:
        jumps = [500_000, 4_000_000]
        if (
            "failover" not in self._stage.plan.faults
        ):  # after lost commits order rests on the clock: it must not go back
            jumps += [-4_000_000, -500_000]
        by_us = chance.choice(jumps)
        self._stage.store.offset_us += by_us
        self._stage.history.clocks_moved = True
        self._say(f"the store's clock jumped by {by_us / 1e6:g} s")
