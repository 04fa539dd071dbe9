"""Many runs of the simulation: seed after seed, and a failing one made as small as it gets."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields

from fencegate.verify.history import Violation
from fencegate.verify.judge import judge, lost_updates
from fencegate.verify.sim.faults import planned
from fencegate.verify.sim.plans import plan_of, plans
from fencegate.verify.sim.schedule import Plan, Run, run

__all__ = ["Arm", "Failure", "Tally", "judged", "plan_of", "plans", "play", "shrink"]

UNFENCED_EVERY = 4
"""One in so many runs is played again without the check: enough to show what it is for."""


@dataclass(slots=True)
class Arm:
    """What came of one arm."""

    writes: int = 0
    stale_writes: int = 0
    stale_accepted: int = 0
    lost_updates: int = 0
    runs: int = 0

    @property
    def is_broken(self) -> bool:
        """Of the arm without the check: whether it shows what the check is for."""
        return self.stale_accepted > 0 or self.lost_updates > 0

    def add(self, other: "Arm") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class Failure:
    """A run that broke a promise: the plan plays it again."""

    plan: Plan
    violations: list[Violation]
    faults: list[str]


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    runs: int = 0
    faults: int = 0
    operations: int = 0
    simulated_us: int = 0
    fenced: Arm = field(default_factory=Arm)
    unfenced: Arm = field(default_factory=Arm)
    failures: list[Failure] = field(default_factory=list)
    steps: int = 0
    processor_s: float = field(default=0.0, compare=False)
    """Of processors, where it was measured: on a busy machine this tells how fast it is."""
    interrupted: bool = False
    """Whether somebody stopped it before it was done."""

    @property
    def schedules(self) -> int:
        """How often the simulation ran, in either arm."""
        return self.fenced.runs + self.unfenced.runs

    def add(self, other: "Tally") -> None:
        """What others saw beside us."""
        self.runs += other.runs
        self.faults += other.faults
        self.operations += other.operations
        self.simulated_us += other.simulated_us
        self.steps += other.steps
        self.processor_s += other.processor_s
        self.fenced.add(other.fenced)
        self.unfenced.add(other.unfenced)
        self.failures = sorted([*self.failures, *other.failures], key=lambda failure: failure.plan.seed)


def play(tally: Tally, plan: Plan, *, unfenced: bool | None = None) -> Failure | None:
    """One run with the check, and for some (for this one, if `unfenced` says so) the same without it."""
    done, failure = judged(plan)
    tally.runs += 1
    if done is not None:
        _count(tally, tally.fenced, done)
        tally.faults += len(done.history.faults)
        tally.operations += len(done.history.holds) + len(done.history.reads) + len(done.history.writes)
    if failure is not None:
        tally.failures.append(failure)
        return failure
    if plan.seed % UNFENCED_EVERY == 0 if unfenced is None else unfenced:
        _count(tally, tally.unfenced, run(plan.but(fenced=False)))
    return None


def judged(plan: Plan) -> tuple[Run | None, Failure | None]:
    """What came of a plan, and what is wrong with that, if anything."""
    try:
        done = run(plan)
        found = judge(done.history)
    except Exception as error:  # a run that does not end, say: whoever swept has to know of which seed
        return None, Failure(plan, [Violation("simulation", repr(error))], [])
    return done, Failure(plan, found, done.history.faults) if found else None


def _count(tally: Tally, arm: Arm, done: Run) -> None:
    tally.simulated_us += done.simulated_us
    tally.steps += done.steps
    arm.runs += 1
    arm.writes += len(done.history.writes)
    arm.stale_writes += done.stale
    arm.stale_accepted += done.stale if not done.plan.fenced else 0
    arm.lost_updates += len(lost_updates(done.history))


def shrink(failure: Failure, tried: Callable[[], None] = lambda: None) -> Failure:
    """The smallest plan of the same seed that still fails: with fewer faults, one by one and by kind, and with fewer
    callers, keys, rounds and replicas, and with callers who are all alike."""
    smallest = failure
    progress = True
    while progress:
        progress = False
        for plan in _smaller(smallest.plan):
            tried()
            _, failed = judged(plan)
            if failed is not None:
                smallest, progress = failed, True
                break
    return smallest


def _smaller(plan: Plan) -> Iterator[Plan]:
    for fault in planned(plan):
        yield plan.but(without=(*plan.without, fault.number))
    for kind in plan.faults:
        yield plan.but(faults=tuple(other for other in plan.faults if other != kind))
    if plan.rounds > 1:
        yield plan.but(rounds=plan.rounds // 2)
        yield plan.but(rounds=plan.rounds - 1)
    if plan.callers > 1:
        yield plan.but(callers=plan.callers - 1)
    if plan.keys > 1:
        yield plan.but(keys=plan.keys - 1)
    if plan.replicas > 1:
        yield plan.but(replicas=plan.replicas - 1)
    if plan.direct != "nobody":
        yield plan.but(direct="nobody")
    if plan.direct == "some":
        yield plan.but(direct="all")
    if plan.calls:
        yield plan.but(calls=False)
    if plan.judged:
        yield plan.but(judged=False)
    if plan.spread:
        yield plan.but(spread=False)
    if not plan.clock:
        yield plan.but(clock=True)
