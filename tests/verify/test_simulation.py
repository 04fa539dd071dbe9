"""The simulation: it repeats itself exactly, finds nothing wrong with the real code, and every planted bug."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.commands import Acquire
from fencegate.verify.history import History
from fencegate.verify.sim.campaign import Failure, Tally, plan_of, play, shrink
from fencegate.verify.sim.plans import DIRECT
from fencegate.verify.sim.schedule import Direct, run
from fencegate.verify.sim.sweep import sweep
from fencegate.verify.sim.workloads import WORKLOADS
from fencegate_lockservice.asking import Asking
from tests.eventually import eventually_sync
from tests.verify.hunt import BEGIN, DOCS, END, caught, could_show, failure, hunt, table
from tests.verify.mutants import MUTANTS

SHORT_RUNS = 500
LONG_RUNS = 60
MOST_RUNS = 3000
ONE_RUN_S = 20.0
"""What one run may take on the slowest machine: a hundred times what it took."""


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """What fails in a simulation is meant to."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_the_real_code_keeps_every_promise_and_without_the_check_updates_are_lost() -> None:
    tally = Tally()
    for seed in range(LONG_RUNS):
        plan = plan_of(seed).but(workload="list", keys=1, faults=("pause", "crash", "messages"))
        assert play(tally, plan, unfenced=True) is None, tally.failures
    assert tally.schedules == 2 * LONG_RUNS
    assert tally.faults > 0
    assert tally.fenced.stale_writes > 0
    assert tally.fenced.stale_accepted == tally.fenced.lost_updates == 0
    assert tally.unfenced.stale_accepted > 0
    assert tally.unfenced.lost_updates > 0


@pytest.mark.parametrize("first_seed", range(1000, 1000 + 4 * SHORT_RUNS, SHORT_RUNS))
def test_short_runs_by_the_thousand(first_seed: int) -> None:
    tally = Tally()
    for seed in range(first_seed, first_seed + SHORT_RUNS):
        plan = plan_of(seed).but(rounds=2 if seed % 4 == 0 else 1)
        assert play(tally, plan, unfenced=False) is None, tally.failures
    assert tally.operations > SHORT_RUNS


def test_plans_have_every_workload_with_and_without_a_clock() -> None:
    assert {(plan.workload, plan.clock) for plan in map(plan_of, range(200))} == {
        (workload, clock) for workload in WORKLOADS for clock in (True, False)
    }


def test_plans_have_every_way_to_the_store() -> None:
    assert {(plan.direct, plan.calls, plan.clock) for plan in map(plan_of, range(200))} == {
        (direct, calls, clock) for direct in DIRECT for calls in (True, False) for clock in (True, False)
    }


def test_plans_have_stores_without_a_clock_whose_replicas_judge_what_is_too_late_and_others() -> None:
    assert {plan.judged for plan in map(plan_of, range(200)) if not plan.clock} == {True, False}


@pytest.mark.parametrize("direct", ["some", "all"])
def test_clients_with_an_engine_of_their_own_go_the_straight_way(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    plain = Asking.plain

    def noted(self: Asking, *terms: Any) -> Acquire:
        asked.append(terms[-1])
        return plain(self, *terms)

    monkeypatch.setattr(Asking, "plain", noted)
    tally = Tally()
    for seed in range(2000, 2040):
        plan = plan_of(seed).but(direct=direct, workload="list")
        assert play(tally, plan, unfenced=False) is None, tally.failures
    assert {True, False} <= {*asked}
    assert tally.fenced.stale_writes > 0


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    known = caught()[name]
    begun_us = SYSTEM.monotonic_us()
    found = hunt(name, known.seeds)
    took_s = (SYSTEM.monotonic_us() - begun_us) / 1e6
    if found is None:  # the code has changed, and with it what a seed plays: it must be found all the same
        found = hunt(name, could_show(name, range(MOST_RUNS)))
    else:
        assert took_s < ONE_RUN_S
    assert found is not None, f"went unnoticed in {MOST_RUNS} runs"
    print(f"{name}: seed {found.plan.seed}, {took_s:.2f} s (in a search {known.seconds} s): {found.violations[0]}")
    assert failure(found.plan) is None, "something is wrong with it without the bug as well"


def test_the_table_in_the_docs_is_what_was_measured() -> None:
    assert caught().keys() == MUTANTS.keys()
    assert DOCS.read_text().split(BEGIN)[1].split(END)[0] == table(caught())


def test_a_failing_run_is_made_smaller_and_still_fails() -> None:
    with MUTANTS["everybody fits"]():
        found = next(found for seed in range(50) if (found := failure(plan_of(seed))) is not None)
        small = shrink(found)
        again = failure(small.plan)
    assert isinstance(again, Failure)
    assert again.violations == small.violations
    assert small.plan != found.plan
    assert failure(small.plan) is None


def test_a_run_that_does_not_end_is_a_failure_with_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencegate.verify.sim.world.MOST_STEPS", 50)
    tally = Tally()
    found = play(tally, plan_of(4))
    assert found is not None
    assert found.plan.seed == 4
    assert "busy without end" in str(found.violations[0])
    assert tally.runs == 1


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    program = (
        "import logging; logging.disable(50)\n"
        "from fencegate.verify.sim.campaign import plan_of\n"
        "from fencegate.verify.sim.schedule import run\n"
        "for seed in range(100, 150): done = run(plan_of(seed)); print(done.steps, repr(done.history))\n"
    )

    def histories(hash_seed: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-W", "ignore", "-c", program]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    one, other = histories("1"), histories("2")
    assert one.communicate(timeout=120) == other.communicate(timeout=120)
    assert one.returncode == other.returncode == 0


def test_how_many_processes_sweep_changes_nothing() -> None:
    alone = sweep(300, runs=24, jobs=1)
    seen: list[int] = []
    together = sweep(300, runs=24, jobs=3, on_progress=lambda tally: seen.append(tally.runs))
    assert alone == together
    assert alone.runs == 24
    assert seen == sorted(seen)
    assert seen[-1] == 24


def test_a_sweep_that_has_shown_nothing_in_its_time_goes_on() -> None:
    """A few runs may all be harmless without the check, and would prove nothing with it."""
    tally = sweep(1, seconds=0.0, jobs=1)
    assert tally.unfenced.is_broken
    assert not tally.failures
    assert tally.runs > 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_is_interrupted_says_what_it_saw_and_leaves_nobody_behind(number: signal.Signals) -> None:
    program = (
        "from fencegate.verify.sim.sweep import sweep\n"
        "if __name__ == '__main__':\n"
        "    tally = sweep(0, seconds=600, jobs=2, on_progress=lambda tally: print(tally.runs, flush=True))\n"
        "    print('over', tally.interrupted, tally.runs > 0, flush=True)\n"
    )
    script = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert script.stdout is not None
    assert script.stdout.readline()
    if number == signal.SIGINT:
        os.killpg(script.pid, number)  # as a terminal does
    else:
        script.send_signal(number)
    told, _ = script.communicate(timeout=60)  # whoever is left behind keeps this open
    if number == signal.SIGINT:
        assert told.splitlines()[-1] == "over True True"
        assert script.returncode == 0
    eventually_sync(lambda: not _is_there(script.pid))


@pytest.mark.parametrize(("number", "after_s"), [(signal.SIGINT, 0.05), (signal.SIGINT, 0.1), (signal.SIGTERM, 0.1)])
def test_an_interrupt_while_the_processes_of_a_sweep_are_loading_is_told_without_a_traceback(
    number: signal.Signals, after_s: float
) -> None:
    command = [str(Path(sys.executable).with_name("fencegate")), "verify", "--simulate", "--jobs", "2"]
    verify = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    eventually_sync(lambda: _sweeps(verify.pid))
    time.sleep(after_s)  # wherever in its loading that is
    os.killpg(verify.pid, number)
    told, complaints = verify.communicate(timeout=60)
    assert "Traceback" not in complaints
    assert "KeyboardInterrupt" not in complaints
    assert "interrupted" in told
    assert verify.returncode == 130
    eventually_sync(lambda: not _is_there(verify.pid))


def _sweeps(pid: int) -> bool:
    """Whether it has started a process that plays. Not by `ps`, which may cut off at a terminal's width."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            with contextlib.suppress(FileNotFoundError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return True
    return False


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_command_says_what_it_saw() -> None:
    command = [str(Path(sys.executable).with_name("fencegate")), "verify", "--seed", "8", "--runs", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ok"] is True
    assert told["runs"] == 3
    assert told["violations"] == []


def _histories(workload: str) -> list[History]:
    plans = [plan for plan in map(plan_of, range(100)) if plan.workload == workload]
    return [run(plan).history for plan in plans[:6]]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_holds_reads_and_writes(workload: str) -> None:
    histories = _histories(workload)
    holds = [hold for history in histories for hold in history.holds]
    writes = [write for history in histories for write in history.writes]
    assert len(holds) > 10
    assert len(writes) > 3
    assert any(write.told == "done" for write in writes)
    assert any(read.updates for history in histories for read in history.reads)
    shows = {
        "register": any(write.value is not None for write in writes),
        "counter": any(history.counters for history in histories),
        "set": any(write.value == () for write in writes),
        "several": any(write.group for write in writes),
        "shared": any(hold.shared for hold in holds),
    }
    assert shows.get(workload, True)
