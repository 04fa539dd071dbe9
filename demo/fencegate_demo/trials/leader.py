"""Leader election on trial: a leader sleeps between two of its writes, and its successors write meanwhile."""

from collections.abc import Sequence

from fencegate_demo.contents import read_row
from fencegate_demo.trials.bench import Bench
from fencegate_demo.trials.events import Touched
from fencegate_demo.trials.use import Findings, Place, Use
from fencegate_demo.uses import leader

TASKS = 3


def prepare(_place: Place) -> None:
    """The plan is empty at first."""


def work(bench: Bench) -> None:
    if bench.role == "stopped":
        bench.passes = 2  # its first write goes through
    tasks = iter([f"{bench.name}{number + 1}" for number in range(TASKS)])
    with bench.locks() as locks, bench.http() as plans:
        bench.attempt(lambda: leader.lead(locks, plans, bench.place.name, tasks, ttl=bench.ttl))


async def examine(place: Place, touched: Sequence[Touched]) -> Findings:
    row = await read_row(place.settings, (place.name,))
    plan = [] if row is None else row["assigned"]
    terms = [int(each["term"]) for each in plan]
    rightful = sum(each.kind == "write" and each.accepted for each in touched)
    wrong = []
    if terms != sorted(terms):
        wrong.append("the plan is not in the order of the terms")
    if len(plan) != rightful:
        wrong.append(f"{rightful} assignments were acknowledged, and {len(plan)} are in the plan")
    return Findings({"leaders": len(set(terms)), "acknowledged": rightful, "assigned": len(plan)}, wrong)


USE = Use(
    "leader",
    "leader election: a deposed leader can't write any more",
    "rows",
    prepare,
    work,
    examine,
    guard="leader:{key}",
)
