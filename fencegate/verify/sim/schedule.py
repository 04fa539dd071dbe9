"""One run of the simulation: who is there, and what came of it."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from fencegate.clock import repeatable
from fencegate.verify.history import History
from fencegate.verify.sim.caller import Caller
from fencegate.verify.sim.clock import SimClock
from fencegate.verify.sim.connection import DirectConnection, SimConnection
from fencegate.verify.sim.faults import KINDS, Faults
from fencegate.verify.sim.loop import BEGINNING_US
from fencegate.verify.sim.network import CALM, Network, Weather
from fencegate.verify.sim.resource import ResourceLink, ResourceServer
from fencegate.verify.sim.service import Replica, Wire, opened
from fencegate.verify.sim.store import StoreServer
from fencegate.verify.sim.workloads import WORKLOADS
from fencegate.verify.sim.world import Process, World, without_collector

if TYPE_CHECKING:
    from fencegate.verify.sim.caller import Snare

STORM_US, STORM_OF_A_ROUND_US = 1_500_000, 2_100_000
CALM_US = 40_000_000
PATIENCE_US = 15_000_000
"""How long after the last fault a caller may still be waiting: the longest wait it asks for, a TTL, and a little."""
SETTLED_US = 10_000_000
"""How long after the last fault a lease, a place or an offer of before may still be in the way: a process that was
paused for 5 s goes on, and what it held runs out."""
BAD_WEATHER = Weather(lost=0.05, unheard=0.03, late=0.02, twice=0.01)
LATE_WEATHER = replace(BAD_WEATHER, late=0.15)
"""Where replicas judge what is too late: what was sent, and comes later still, is what that is about."""
CLOCKS_APART_US = 50_000
CLOCKS_FAR_APART_US = 3_000_000
"""Where leases end by being watched, clocks need not agree."""


Direct = Literal["nobody", "some", "all"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is made of; with the same plan it is the same run."""

    seed: int
    callers: int = 3
    replicas: int = 2
    keys: int = 2
    rounds: int = 5
    faults: tuple[str, ...] = KINDS
    fenced: bool = True
    fenced_reads: bool = True
    claims: bool = False
    """Whether the resource is told of a new holder before anything is read."""
    workload: str = "list"
    clock: bool = True
    """Whether the store has a clock; without one, leases end by being watched."""
    direct: Direct = "nobody"
    """Who opens the store and has an engine of its own; the others ask replicas, and there are none without them."""
    calls: bool = False
    """Whether the store tells of a commit by a call."""
    judged: bool = False
    """Whether replicas judge by their own clocks what is too late, where the store has none, and don't send it."""
    spread: bool = False
    """Whether each request goes to whichever replica, as behind a load balancer, and not to the same as the last."""
    without: tuple[int, ...] = ()
    """Faults that are left out, by number: how a run that fails is made smaller."""

    def but(self, **changes: object) -> "Plan":
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def storm_us(self) -> int:
        """For how long things go wrong: about as long as the callers work."""
        return STORM_US + self.rounds * STORM_OF_A_ROUND_US


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a plan."""

    plan: Plan
    history: History
    simulated_us: int
    steps: int
    stale: int


def run(plan: Plan) -> Run:
    """Play it."""
    with repeatable(plan.seed), without_collector():
        stage = Stage(plan)
        try:
            return stage.play()
        finally:
            stage.world.end()


class Stage:
    """All who take part in a run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(f"{plan.seed}")
        weather = LATE_WEATHER if plan.judged and not plan.clock else BAD_WEATHER
        self.network = Network(self.world, weather if "messages" in plan.faults else CALM)
        self.store = StoreServer(self.world, clock=plan.clock, calls=plan.calls, judged=plan.judged)
        self.resource = ResourceServer(fenced=plan.fenced)
        self.history = History(in_turn=not plan.faults)
        self.replicas = [
            Replica(self.network, self.store, f"replica-{number}", self._offset_us())
            for number in range(0 if plan.direct == "all" else plan.replicas)
        ]
        self.keys = [f"sim:{number}" for number in range(plan.keys)]
        if plan.workload == "counter":
            self.history.counters = tuple(self.keys)
        self.snares: list[Snare] = []
        self._number = 0
        self.callers = [self.caller() for _ in range(plan.callers)]

    def _offset_us(self) -> int:
        most_us = CLOCKS_APART_US if self.plan.clock else CLOCKS_FAR_APART_US
        return self.world.chance.randint(-most_us, most_us)

    def caller(self) -> Caller:
        self._number += 1
        world, plan = self.world, self.plan
        process = world.process(f"caller-{self._number}")
        clock = SimClock(world, self._offset_us())
        link = ResourceLink(self.network, self.resource, process)
        caller = Caller(world, process, self._connection(process, clock), link, clock, self.history)
        caller.is_direct = self._is_direct
        caller.keys, caller.snares = self.keys, self.snares
        process.spawn(caller.work(WORKLOADS[plan.workload], plan, self._one_is_done))
        return caller

    @property
    def _is_direct(self) -> bool:
        """Whether the caller that comes next is; of some, every other one."""
        return self.plan.direct == "all" or (self.plan.direct == "some" and self._number % 2 == 1)

    def _connection(self, process: Process, clock: SimClock) -> SimConnection:
        if self._is_direct:
            opening = partial(opened, self.network, self.store, process, clock, visiting=True)
            return DirectConnection(process, opening, clock)
        return SimConnection(process, Wire(self.network, self.replicas, process, spread=self.plan.spread), clock)

    def _one_is_done(self) -> None:
        self.world.is_over = all(caller.done for caller in self.callers)

    def play(self) -> Run:
        world, history = self.world, self.history
        calm_us = BEGINNING_US + self.plan.storm_us
        Faults(self).begin()
        world.run(calm_us + CALM_US)
        history.calm_from_us = calm_us + SETTLED_US if self.plan.faults else BEGINNING_US
        for caller in self.callers:
            since_us = caller.waiting_since_us
            if since_us is not None and world.now_us - max(since_us, calm_us) > PATIENCE_US:
                history.unfinished.append(caller.name)
        history.came_back = self.store.came_back
        history.final = {key: self.resource.values.get(key, ()) for key in self.keys}
        return Run(self.plan, history, world.now_us - BEGINNING_US, world.steps, self.resource.stale)
