"""The benchmark measures what it says: real cycles, every error seen, nothing left running. Never how fast."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import binaries
from bench.etcd import EtcdLocks
from bench.own_transactions import LABELS
from bench.signals import signals_held_back
from bench.wrk import run_cycles
from tests.real import redis, seaweed

ROOT = Path(__file__).parents[1]
BENCH = (sys.executable, "-m", "bench")


@pytest.fixture(autouse=True)
def _programs() -> None:
    try:
        binaries.wrk()
        binaries.etcd()
    except binaries.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdLocks]:
    arm = EtcdLocks()
    try:
        arm.start(tmp_path)
        yield arm
    finally:
        arm.stop()


def test_a_short_run_of_cycles_counts_them_without_errors_and_the_ratios() -> None:
    names = ["etcd-1", "etcd-32", "fencegate-1", "fencegate-32"]
    command = [*BENCH, "--json", "--seconds", "1", "--rounds", "1", "--only", *names]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    outcome = json.loads(run.stdout.splitlines()[-1])
    assert outcome["valid"] is True
    assert sorted(outcome["arms"]) == names
    for name, arm in outcome["arms"].items():
        assert arm["errors"] == 0, name
        assert arm["cycles"] > 0, name
        assert 0 < arm["cyclesPerSecond"] <= arm["cycles"] + 0.1, name  # a client counts for a second, or a bit more
        for call in ("acquire", "release"):
            assert 0 < arm[f"{call}P50Millis"] <= arm[f"{call}P99Millis"], name
    cycles = {name: arm["cyclesPerSecond"] for name, arm in outcome["arms"].items()}
    for name in ("fencegate-32 / fencegate-1", "fencegate-32 / etcd-32"):
        ratio = outcome["ratios"].pop(name)
        of, over = name.split(" / ")
        assert ratio["value"] == pytest.approx(cycles[of] / cycles[over], rel=0.01)
        assert ratio["met"] is (ratio["value"] >= ratio["goal"])
    assert outcome["ratios"] == {}


def test_libraries_on_a_server_are_measured_in_processes_of_their_own() -> None:
    if reason := redis.missing():
        pytest.skip(reason)
    names = ["redis-py-1", "fencegate-redis-1", "redis-py-sync-1", "fencegate-redis-hand-over-5"]
    command = [*BENCH, "--json", "--seconds", "0.3", "--rounds", "1", "--only", *names]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    outcome = json.loads(run.stdout.splitlines()[-1])
    assert outcome["valid"] is True
    assert sorted(outcome["arms"]) == sorted(name for name in names if "hand-over" not in name)
    assert all(arm["cycles"] > 0 for arm in outcome["arms"].values())
    assert sorted(outcome["handOvers"]) == sorted(name for name in names if "hand-over" in name)
    assert all(arm["handOvers"] > 0 for arm in outcome["handOvers"].values())
    assert "fencegate-redis-1 / redis-py-1" in outcome["ratios"]


def test_arms_that_run_in_turns_are_measured_with_each_number_of_clients() -> None:
    if reason := seaweed.missing():
        pytest.skip(reason)
    objects = [f"{kind}-objects-16k-{clients}" for clients in (1, 8) for kind in ("plain", "conditional", "fenced")]
    sessions = [f"{kind}-{label}-sqlite-1" for label in LABELS for kind in ("plain", "fenced")]
    names = [*sessions, *objects]
    command = [*BENCH, "--json", "--seconds", "0.2", "--rounds", "2", "--only", *names]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    outcome = json.loads(run.stdout.splitlines()[-1])
    assert outcome["valid"] is True
    assert sorted(outcome["writes"]) == sorted(names)
    assert all(arm["writes"] > 0 and arm["errors"] == 0 for arm in outcome["writes"].values())
    for clients in (1, 8):
        assert outcome["ratios"][f"fenced-objects-16k-{clients} / plain-objects-16k-{clients}"]["value"] > 0


def test_a_short_run_of_hand_overs_gives_their_length_without_errors_and_the_ratios() -> None:
    names = [f"{arm}-hand-over-{waiters}" for arm, waiters in (("etcd", 5), ("fencegate", 5), ("fencegate", 500))]
    command = [*BENCH, "--json", "--seconds", "0.5", "--rounds", "1", "--only", *names]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    outcome = json.loads(run.stdout.splitlines()[-1])
    assert outcome["valid"] is True
    assert list(outcome["handOvers"]) == names
    for name, measured in outcome["handOvers"].items():
        assert measured["errors"] == 0, name
        assert measured["handOvers"] > 0, name
        assert 0 < measured["p50Millis"] <= measured["p99Millis"], name
    few, many = (outcome["handOvers"][f"fencegate-hand-over-{waiters}"]["p50Millis"] for waiters in (5, 500))
    ratio = outcome["ratios"]["fencegate-hand-over-500 / fencegate-hand-over-5"]
    assert ratio["value"] == pytest.approx(many / few, rel=0.01)
    assert (ratio["goal"], ratio["met"]) == (3.0, ratio["value"] <= 3.0)
    assert outcome["ratios"]["fencegate-hand-over-5 / etcd-hand-over-5"]["goal"] is None


def test_in_a_hand_over_each_release_brings_one_other_holder_and_nobody_is_left(etcd: EtcdLocks) -> None:
    before = _range(etcd)
    sample = etcd.hand_over(waiters=3, seconds=0.5)
    after = _range(etcd)
    assert (sample.errors, sample.first_error) == (0, "")
    assert sample.latencies_us["hand-over"].total() == sample.cycles > 0
    commits = int(after["header"]["revision"]) - int(before["header"]["revision"])
    assert commits >= 2 * sample.cycles  # a release, and somebody who queues up again
    assert "kvs" not in after, "somebody still holds it, or waits"


def test_a_counted_cycle_is_two_commits_of_the_server_on_a_key_of_its_own(etcd: EtcdLocks) -> None:
    before = _range(etcd)
    sample = etcd.run(clients=4, seconds=0.5)
    after = _range(etcd)
    commits = int(after["header"]["revision"]) - int(before["header"]["revision"])
    assert sample.errors == 0
    assert sample.cycles > 0
    assert commits >= 2 * sample.cycles  # the warm-up commits too, but does not count
    assert "kvs" not in after, "a client ended with its lock held"
    for call in ("acquire", "release"):
        assert abs(sample.latencies_us[call].total() - sample.cycles) <= 4


def test_an_answer_without_a_token_is_an_error_and_no_cycle(etcd: EtcdLocks) -> None:
    etcd.run(clients=2, seconds=0.1)
    sample = run_cycles(etcd.url, [etcd.cycle(client) for client in range(2)], "noSuchMember", 0.2)
    assert sample.cycles == 0
    assert sample.errors > 0
    assert sample.first_error.startswith("acquire: 200")


def test_an_answer_other_than_200_is_an_error_and_no_cycle(etcd: EtcdLocks) -> None:
    etcd.run(clients=1, seconds=0.1)
    etcd.leases = ["1"]  # which nobody granted
    sample = etcd.run(clients=1, seconds=0.2)
    assert sample.cycles == 0
    assert sample.errors > 0
    assert "lease not found" in sample.first_error


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the children of a process in /proc (Linux)")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_no_process_and_no_data_behind(sent: signal.Signals, code: int) -> None:
    command = [*BENCH, "--seconds", "60", "--rounds", "1", "--only", "etcd-1"]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 90
        while len(children := _children(run.pid)) < 2:  # etcd, and wrk
            assert run.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        run.send_signal(sent)
        assert run.wait(60) == code
    finally:
        run.kill()
        run.wait()
    assert not [child for child in children if Path(f"/proc/{child}").exists()]
    assert list((ROOT / "build").glob(f"bench-{run.pid}-*")) == []


def test_a_signal_that_comes_while_a_process_is_started_is_heard_after_that() -> None:
    steps: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        try:
            with signals_held_back():
                signal.raise_signal(signal.SIGINT)
                steps.append("started")
            steps.append("used")
        finally:
            steps.append("ended")
    assert steps == ["started", "ended"]
    assert signal.getsignal(signal.SIGINT) is before


def _children(pid: int) -> list[int]:
    """The processes whose parent is `pid`."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid:
            found.append(int(entry))
    return found


def _range(etcd: EtcdLocks) -> Any:
    """Every key of etcd that starts with `bench:`, and the revision."""
    first, last = (base64.b64encode(text).decode() for text in (b"bench:", b"bench;"))
    return etcd.post("/v3/kv/range", {"key": first, "range_end": last})
