"""The seven uses, as a real command: each is proved with real processes, and nothing is proved without the fence."""

import ast
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fencegate_demo import uses
from fencegate_demo.events import Paused, Resumed
from fencegate_demo.trials.events import Began, Event, Killed, Stumbled, Touched
from fencegate_demo.trials.registry import USES
from fencegate_demo.trials.use import Findings
from fencegate_demo.trials.verdict import is_proved, judge
from tests.test_demo import assert_proved, last_line

RUN = "from fencegate.cli import main; main()"
FENCE_OFF = """
import msgspec
from fencegate_demo.trials.use import Use

place = Use.place
Use.place = lambda *wanted: msgspec.structs.replace(place(*wanted), arm="unfenced")
"""
WITHIN_S = 200


def demo(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", before + RUN, "demo", *arguments]
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, env=environment)


# --- everything -----------------------------------------------------------------------------------------------------

MUST_HOLD: dict[str, dict[str, int | str]] = {
    "migration": {"steps": 3, "firstPrice": 300},
    "cron": {"reports": 1},
    "leader": {},  # how often the stopped leader is elected again depends on when it lost its lease
    "inventory": {"stock": 5, "reserved": 5, "left": 0},
    "payment": {"payments": 3, "charges": 3, "balance": 700},
    "cache": {"builds": 1, "cached": "page of v2"},
    "files": {"files": 5, "results": 5},
}


def test_every_scenario_over_every_resource_and_every_use_is_proved(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = demo("--all", "--embedded", "--json", "--report", str(page))
    assert done.returncode == 0, done.stdout + done.stderr
    told = last_line(done)
    assert told["proved"] is True
    scenarios, found = told["scenarios"][:9], told["scenarios"][9:]
    assert [(each["scenario"], each["resource"]) for each in scenarios] == [
        ("gc-pause", "rows"),
        ("gc-pause", "objects"),
        ("gc-pause", "service"),
        ("gateway-pause", "rows"),
        ("gateway-pause", "objects"),
        ("gateway-pause", "service"),
        ("first-write", "rows"),
        ("first-write", "objects"),
        ("first-write", "service"),
    ]
    for each in scenarios:
        assert_proved(each)
    assert [each["scenario"] for each in found] == list(MUST_HOLD)
    for each in found:
        use, fenced, unfenced = each["scenario"], each["fenced"], each["unfenced"]
        facts = MUST_HOLD[use]
        assert each["proved"] is True, use
        assert {name: fenced[name] for name in facts} == facts, use
        assert fenced.get("assigned", 0) == fenced.get("acknowledged", 0)
        assert (fenced["staleAccepted"], fenced["killed"], fenced["wrong"]) == (0, 1, []), use
        assert fenced["staleWrites"] > 0, use
        assert unfenced["staleAccepted"] > 0, use
        assert unfenced["wrong"], use
    headings = re.findall("<h2>(.*?)</h2>", page.read_text(encoding="utf-8"))
    assert headings == ["gc-pause over rows", "gateway-pause over rows", "first-write over rows", "In use"]


def test_there_is_a_trial_for_every_program_to_copy_and_a_program_for_every_trial() -> None:
    programs = {path.stem for path in _programs()}
    assert programs == set(USES) == set(MUST_HOLD)
    assert all(use.program.is_file() for use in USES.values())


def test_a_program_to_copy_needs_nothing_of_ours_but_what_users_import() -> None:
    public = {"fencegate", "fencegate.sync", "fencegate.sql"}
    for path in _programs():
        imported = {
            name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [each.name for each in node.names]
                if isinstance(node, ast.Import)
                else []
            )
        }
        ours = {name for name in imported if name.startswith("fencegate")}
        assert ours, path
        assert ours <= public, path


def _programs() -> list[Path]:
    return [path for path in Path(uses.__file__).parent.glob("*.py") if path.stem != "__init__"]


# --- what is shown, and left behind ----------------------------------------------------------------------------------


def test_without_the_fence_nothing_is_proved_and_the_exit_code_is_1() -> None:
    done = demo("payment", "--json", before=FENCE_OFF)
    assert done.returncode == 1, done.stderr
    told = last_line(done)
    assert told["proved"] is False
    assert told["fenced"]["staleAccepted"] > 0
    assert "payment 1 charged 2 times" in told["fenced"]["wrong"]


def test_terminal_and_report_show_the_stopped_worker_the_killed_one_and_the_refusal(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = demo("inventory", "--report", str(page))
    assert done.returncode == 0, done.stderr
    for said in ("inventory over database", "stopped for", "⊘A", "!A", "6 sold of 5", "Proved:", "uses/inventory.py"):
        assert said in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    html = page.read_text(encoding="utf-8")
    assert html.count('role="img"') == 2
    for said in ('class="mark refused"', 'class="mark corrupting"', "killed (SIGKILL)", "6 sold of 5", "worker K"):
        assert said in html
    assert not re.search(r"https?:|<script|<link|@import|src=", html), "the page needs nothing but itself"


def test_a_store_in_use_before_keeps_what_it_had(tmp_path: Path) -> None:
    from fencegate.sync import connect

    locks = tmp_path / "locks.db"
    with connect(f"sqlite:///{locks}") as client, client.hold("mine", ttl=5):
        pass
    done = demo("cache", "--json", "--store", f"sqlite:///{locks}")
    assert done.returncode == 0, done.stderr
    assert last_line(done)["store"] == f"sqlite:///{locks}"
    with sqlite3.connect(locks) as store:
        assert store.execute("SELECT key FROM entries WHERE key LIKE 'lock/%'").fetchall() == [("lock/mine",)]
    store.close()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc, which only Linux has")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_use_that_is_cut_short_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    """Workers are found by the nursery's address on their command line, which is in a folder of this test. As under
    nohup: the signal by which a kernel ends what is stopped and has no parent any more is heard by nobody."""
    command = ["nohup", sys.executable, "-c", RUN, "demo", "inventory", "--json"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as running:
        try:
            _wait_until(lambda: "T" in _processes(tmp_path).values(), "a worker is stopped")
            running.send_signal(number)
            running.wait(60)
        finally:
            running.kill()
    _wait_until(lambda: not _processes(tmp_path, "trials.nursery"), "every worker is gone")
    if number == signal.SIGTERM:
        assert _processes(tmp_path) == {}
        assert list(tmp_path.iterdir()) == []
    for pid in _processes(tmp_path):  # its server can't know that the demo was killed
        os.kill(pid, signal.SIGKILL)


def _processes(folder: Path, *others: str) -> dict[int, str]:
    """The processes that have this folder, and the other words, on their command lines: their states, a letter each."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode(errors="replace")
            if all(word in line for word in (str(folder), *others)):
                found[int(process.name)] = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.02)


# --- the verdict -----------------------------------------------------------------------------------------------------


def overtaken(*, accepted: bool) -> list[Event]:
    """A (token 5) is stopped; K (token 7) is killed; B (token 9) reads and writes; A writes."""
    return [
        Began(1, "A"),
        Touched(2, "A", "sku", 5, "read", True),
        Paused(3, "A"),
        Killed(50, "K"),
        Touched(61, "B", "sku", 9, "read", True),
        Touched(62, "B", "sku", 9, "write", True),
        Resumed(70, "A"),
        Touched(80, "A", "sku", 5, "write", accepted),
    ]


FINE, DAMAGED = Findings({}), Findings({}, ["6 sold of 5"])


def test_a_write_is_stale_when_the_resource_had_accepted_a_higher_token_of_the_same_lock() -> None:
    verdict = judge(overtaken(accepted=False), FINE)
    assert (verdict.stale_writes, verdict.stale_accepted, verdict.killed) == (1, 0, 1)
    assert judge(overtaken(accepted=True), FINE).stale_accepted == 1
    other = [*overtaken(accepted=False)[:-1], Touched(80, "A", "another sku", 5, "write", True)]
    assert judge(other, FINE).stale_writes == 0


def test_a_program_that_failed_is_something_wrong() -> None:
    verdict = judge([*overtaken(accepted=False), Stumbled(90, "B", "KeyError: 'x'")], FINE)
    assert list(verdict.wrong) == ["B failed: KeyError: 'x'"]


def test_a_proof_needs_a_stale_write_and_a_killed_worker_and_damage_without_the_fence() -> None:
    kept, lost = judge(overtaken(accepted=False), FINE), judge(overtaken(accepted=True), DAMAGED)
    calm = judge(overtaken(accepted=False)[:-1], FINE)
    nobody_killed = judge([event for event in overtaken(accepted=False) if not isinstance(event, Killed)], FINE)
    assert is_proved(kept, lost)
    assert not is_proved(calm, lost)
    assert not is_proved(nobody_killed, lost)
    assert not is_proved(kept, calm)
    assert not is_proved(kept, kept)
    assert not is_proved(lost, lost)
    assert not is_proved(judge(overtaken(accepted=False), DAMAGED), lost)
