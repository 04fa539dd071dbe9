"""Which runs are played: a plan for each seed, of every size, workload and mixture of faults."""

from collections.abc import Iterator

from fencegate.clock import seeded
from fencegate.verify.sim.faults import KINDS
from fencegate.verify.sim.schedule import Direct, Plan
from fencegate.verify.sim.workloads import WORKLOADS

ROUNDS = (1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 8)
"""Most runs are small: a fault does what it does within a few holds, and in the time of one long run many short ones
are played. Some are long, for what needs a past."""

DIRECT: tuple[Direct, ...] = ("nobody", "nobody", "nobody", "nobody", "some", "all")


def plan_of(seed: int) -> Plan:
    """The plan of a seed; the same on every machine."""
    chance = seeded(f"plan {seed}")
    kinds = tuple(kind for kind in KINDS if chance.random() < 0.5)
    if chance.random() < 0.15:
        kinds = KINDS
    if chance.random() < 0.06:
        kinds = ()
    workload = chance.choice(tuple(WORKLOADS))
    claims = chance.random() < 0.25
    plan = Plan(
        seed,
        callers=chance.choice((2, 3, 3, 4)) if kinds else 4,
        replicas=chance.choice((1, 2, 2, 3)),
        keys=2 if workload == "several" else chance.choice((1, 1, 2)) if kinds else 1,
        rounds=chance.choice(ROUNDS),
        faults=kinds,
        fenced_reads=not claims,
        claims=claims,
        workload=workload,
        clock=chance.random() < 0.75,
        direct=chance.choice(DIRECT),
        calls=chance.random() < 0.5,
        judged=chance.random() < 0.5,
        spread=chance.random() < 0.25,
    )
    if kinds and plan.judged and not plan.clock and chance.random() < 0.5:
        return plan.but(callers=2)  # what lands late is found where nobody has changed the lock meanwhile
    return plan


def plans(first_seed: int) -> Iterator[Plan]:
    """Plans without end."""
    seed = first_seed
    while True:
        yield plan_of(seed)
        seed += 1
