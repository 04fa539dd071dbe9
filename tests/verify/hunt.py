"""How soon each planted bug is found, from seed 0 on: `python -m tests.verify.hunt` writes it down.

The seeds go to `caught.json`, where the tests take them from, and the table to `docs/correctness.md`. Run it again when
the engine, the client or the simulation has changed: the same seed is another run then.
"""

import logging
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import msgspec

from fencegate.verify.sim.campaign import Failure, judged, plan_of
from fencegate.verify.sim.schedule import Plan
from tests.verify.mutants import MUTANTS

MOST_RUNS = 5000
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


def failure(plan: Plan) -> Failure | None:
    """What is wrong with a run, if anything."""
    return judged(plan)[1]


def hunt(name: str, seeds: Iterator[int]) -> Failure | None:
    """The first of these seeds in which a planted bug shows."""
    with MUTANTS[name]():
        return next((found for seed in seeds if (found := failure(plan_of(seed))) is not None), None)


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
    found = hunt(name, iter(range(MOST_RUNS)))
    if found is None:
        return None
    seconds = round(getrusage(RUSAGE_SELF).ru_utime - begun_s, 1)
    return Caught(found.plan.seed, found.plan.workload, found.violations[0].invariant, seconds)


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
