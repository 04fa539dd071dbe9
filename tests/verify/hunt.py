"""How soon each planted bug is found, from seed 0 on: `python -m tests.verify.hunt` writes it down.

The seeds go to `caught.json`, where the tests take them from, and the table to `docs/correctness.md`. Run it again when
the engine, the client or the simulation has changed: the same seed is another run then. Some further seeds are written
down as well, for most changes leave one of a few as it was, and a test that has to search takes its time.
"""

import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import msgspec

from fencegate.verify.sim.campaign import Failure, judged, plan_of
from fencegate.verify.sim.schedule import Plan
from tests.verify.mutants import MUTANTS

MOST_RUNS = 5000
FURTHER = 3
CAUGHT = Path(__file__).with_name("caught.json")
DOCS = Path(__file__).parents[2] / "docs" / "correctness.md"
BEGIN, END = "<!-- caught: written by `python -m tests.verify.hunt` -->\n", "<!-- /caught -->\n"


class Caught(msgspec.Struct, frozen=True):
    """Where a planted bug was found."""

    seed: int
    workload: str
    broke: str
    seconds: float
    """Of one processor, for all seeds up to this one."""
    also: tuple[int, ...] = ()
    """Further seeds in which it shows."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return (self.seed, *self.also)


COULD_SHOW: dict[str, Callable[[Plan], bool]] = {
    "claim not durable": lambda plan: plan.claims and {"restart", "pause"} <= {*plan.faults},
    "mark in memory": lambda plan: {"restart", "pause"} <= {*plan.faults},
    "hard delete": lambda plan: plan.workload == "set" and "pause" in plan.faults,
    "a batch that stops half-way": lambda plan: plan.workload == "several" and "pause" in plan.faults,
    "a reader beside a writer": lambda plan: plan.workload == "shared",
    "a session's renewal does not count": lambda plan: plan.workload == "session",
    "over by another's clock": lambda plan: not plan.clock,
    "too late by our own clock taken for never": lambda plan: plan.judged and not plan.clock,
    "last come, first served": lambda plan: not plan.faults,
    "a queue that forgets": lambda plan: not plan.faults,
    "nobody there between two polls": lambda plan: not plan.faults,
    "a poll that takes the next along": lambda plan: not plan.faults,
    "counted from an answer of its own process": lambda plan: plan.direct != "nobody",
}
"""Plans in which some of them can show at all, so that a search need not play the others."""


def could_show(name: str, seeds: Iterable[int]) -> Iterator[int]:
    return (seed for seed in seeds if name not in COULD_SHOW or COULD_SHOW[name](plan_of(seed)))


def failure(plan: Plan) -> Failure | None:
    """What is wrong with a run, if anything."""
    return judged(plan)[1]


def hunt(name: str, seeds: Iterable[int]) -> Failure | None:
    """The first of these seeds in which a planted bug shows."""
    return next(_all(name, seeds), None)


def _all(name: str, seeds: Iterable[int]) -> Iterator[Failure]:
    with MUTANTS[name]():
        yield from (found for seed in seeds if (found := failure(plan_of(seed))) is not None)


def caught() -> dict[str, Caught]:
    """What was written down."""
    return msgspec.json.decode(CAUGHT.read_bytes(), type=dict[str, Caught])


def table(all_caught: dict[str, Caught]) -> str:
    lines = ["| planted | found in seed | after | as |", "|---|---:|---:|---|"]
    for name, one in all_caught.items():
        lines.append(f"| {name} | {one.seed} ({one.workload}) | {one.seconds:.1f} s | {one.broke} |")
    return "\n".join(lines) + "\n"


def _timed(name: str) -> Caught | None:
    logging.disable(logging.CRITICAL)
    begun_s = getrusage(RUSAGE_SELF).ru_utime
    found = hunt(name, range(MOST_RUNS))
    if found is None:
        return None
    seconds = round(getrusage(RUSAGE_SELF).ru_utime - begun_s, 1)
    others = islice(_all(name, could_show(name, range(found.plan.seed + 1, MOST_RUNS))), FURTHER)
    also = tuple(other.plan.seed for other in others)
    return Caught(found.plan.seed, found.plan.workload, found.violations[0].invariant, seconds, also)


def main() -> int:
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        found = dict(zip(MUTANTS, pool.map(_timed, MUTANTS), strict=True))
    missed = [name for name, one in found.items() if one is None]
    if missed:
        print(f"not found in {MOST_RUNS} runs: {', '.join(missed)}")
        return 1
    all_caught = {name: one for name, one in found.items() if one is not None}
    CAUGHT.write_bytes(msgspec.json.format(msgspec.json.encode(all_caught)) + b"\n")
    text = DOCS.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    DOCS.write_text(before + BEGIN + table(all_caught) + END + after)
    print(table(all_caught))
    return 0


if __name__ == "__main__":
    sys.exit(main())
