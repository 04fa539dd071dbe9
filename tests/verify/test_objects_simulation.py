"""The real adapter of a bucket in a simulation: nothing is found wrong with it, and every planted bug is."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

import pytest

from fencegate.verify.sim.objects import ObjectRun, plan_of, run
from tests.verify.object_mutants import MUTANTS, SEEDS, Mutant

RUNS = 100
MOST_RUNS = 600


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """What fails in a simulation is meant to."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_the_real_adapter_keeps_every_promise_in_both_layouts() -> None:
    layouts, told, stale = set(), set(), 0
    for seed in range(RUNS):
        plan = plan_of(seed)
        found = run(plan)
        assert not found.violations, f"{plan}: {found.violations}"
        layouts.add(plan.layout)
        told |= {write.told for write in found.done.history.writes}
        stale += found.done.stale
    assert layouts == {"framed", "pointer"}
    assert told == {"done", "refused", "unknown"}
    assert stale > 0


def first_failure(mutant: Mutant, seeds: Iterable[int]) -> tuple[int, ObjectRun] | None:
    with mutant.plant():
        for seed in seeds:
            found = run(mutant.plan(seed))
            if found.violations:
                return seed, found
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_in_the_adapter_is_found(name: str) -> None:
    mutant, began_s = MUTANTS[name], time.process_time()
    found = first_failure(mutant, SEEDS[name]) or first_failure(mutant, range(MOST_RUNS))
    assert found is not None, f"went unnoticed in {MOST_RUNS} runs"
    seed, failure = found
    print(f"{name}: seed {seed}, {time.process_time() - began_s:.2f} s: {failure.violations[0]}")
    assert not run(mutant.plan(seed)).violations  # without the bug nothing is wrong with it


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    program = (
        "import logging; logging.disable(50)\n"
        "from fencegate.verify.sim.objects import plan_of, run\n"
        "for seed in range(6): print(repr(run(plan_of(seed)).done.history))\n"
    )

    def history(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-W", "ignore", "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout

    first = history("1")
    assert first.count("\n") == 6
    assert first == history("2")
