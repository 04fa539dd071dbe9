"""The demo, as a real command: what it proves, what it says, and what it leaves behind."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fencegate_demo.events import Event, Granted, Read, Wrote
from fencegate_demo.holdings import Holding
from fencegate_demo.plan import Run, Wishes, make_plan
from fencegate_demo.stage import perform
from fencegate_demo.timeline import TokenNames, draw_up
from fencegate_demo.verdict import is_proved, judge

COMMAND = [sys.executable, "-c", "from fencegate.cli import main; main()", "demo"]
USES = ["migration", "cron", "leader", "inventory", "payment", "cache", "files"]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=200, env=environment)


def last_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return dict(json.loads(done.stdout.splitlines()[-1]))


def assert_proved(told: dict[str, Any]) -> None:
    fenced, unfenced = told["fenced"], told["unfenced"]
    assert fenced["staleWrites"] > 1
    assert (fenced["staleAccepted"], fenced["lostUpdates"], fenced["finalOwner"]) == (0, 0, "B")
    assert unfenced["staleWrites"] == unfenced["staleAccepted"] > 1
    assert unfenced["lostUpdates"] > 1
    assert told["proved"] is True


# --- as a command ----------------------------------------------------------------------------------------------------


def test_terminal_and_report_show_the_pause_the_refusal_and_the_verdict(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = demo("--report", str(page))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout, "colours are for terminals"
    for said in ("gc-pause over rows", "A holds it", "stopped for", "⊘A2", "!A2", "Proved:"):
        assert said in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    html = page.read_text(encoding="utf-8")
    assert html.count('role="img"') == 2
    for said in ('class="mark refused"', 'class="mark corrupting"', "SIGSTOP", "Proved:", "prefers-color-scheme: dark"):
        assert said in html
    assert not re.search(r"https?:|<script|<link|@import|src=", html), "the page needs nothing but itself"
    assert _Balance().of(html) == []


def test_a_store_and_a_database_of_the_users_are_left_as_they_were(tmp_path: Path) -> None:
    locks, data = tmp_path / "locks.db", tmp_path / "new" / "app.db"
    data.parent.mkdir()
    with sqlite3.connect(data) as mine:
        mine.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY, name TEXT)")
        mine.execute("INSERT INTO mine VALUES (1, 'kept')")
    mine.close()
    done = demo("gc-pause", "--json", "--store", f"sqlite:///{locks}", "--resource", f"sqlite:///{data}")
    assert done.returncode == 0, done.stderr
    told = last_line(done)
    assert_proved(told)
    assert (told["scenario"], told["store"], told["resource"]) == (
        "gc-pause",
        f"sqlite:///{locks}",
        f"sqlite:///{data}",
    )
    assert not locks.exists()
    with sqlite3.connect(data) as mine:
        assert mine.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
        assert mine.execute("SELECT * FROM mine").fetchall() == [(1, "kept")]
    mine.close()


def test_a_folder_and_a_store_in_use_before_keep_what_they_had(tmp_path: Path) -> None:
    folder, locks = tmp_path / "bucket", tmp_path / "locks.db"
    folder.mkdir()
    (folder / "mine.txt").write_text("kept")
    _lock_once(locks)
    done = demo("gateway-pause", "--json", "--store", f"sqlite:///{locks}", "--resource", f"file://{folder}")
    assert done.returncode == 0, done.stderr
    assert_proved(last_line(done))
    assert [path.name for path in folder.rglob("*")] == ["mine.txt"]
    with sqlite3.connect(locks) as store:
        assert store.execute("SELECT key FROM entries WHERE key LIKE 'lock/%'").fetchall() == [("lock/mine",)]
        assert store.execute("SELECT count(*) FROM entries WHERE key > char(2) AND key LIKE '%demo-%'").fetchone() == (
            0,
        )
    store.close()


def _lock_once(locks: Path) -> None:
    from fencegate.sync import connect

    with connect(f"sqlite:///{locks}") as client, client.hold("mine", ttl=5):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc, which only Linux has")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_and_no_file(number: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([*COMMAND, "--json"], stdout=subprocess.DEVNULL, env=environment) as running:
        try:
            children = _wait_for_a_stopped_child(running.pid)
            running.send_signal(number)
            assert running.wait(60) == 130
        finally:
            running.kill()
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    assert list(tmp_path.iterdir()) == []


def _wait_for_a_stopped_child(pid: int) -> list[str]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            try:
                stat = Path(f"/proc/{child}/stat").read_text()
            except FileNotFoundError:
                continue
            if stat.rpartition(")")[2].split()[0] == "T":
                return children
        time.sleep(0.01)
    raise AssertionError("no process was stopped")


def test_the_list_names_every_scenario() -> None:
    names = ["gc-pause", "gateway-pause", "first-write", *USES]
    assert [line.split()[0] for line in demo("--list").stdout.splitlines()] == names
    assert [each["name"] for each in last_line(demo("--list", "--json"))["scenarios"]] == names


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nonsense"], "gc-pause, gateway-pause"),
        (["inventory", "--resource", "rows"], "a resource of its own"),
        (["--resource", "nonsense"], "resource"),
        (["--resource", "gopher://x"], "gopher"),
        (["--resource", "http://127.0.0.1:1/"], "'service' runs one of its own"),
        (["--store", "gopher://x"], "gopher"),
        (["--report", "/no/such/folder/report.html"], "report"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_usage_is_told_in_words_with_exit_code_2(arguments: list[str], named: str) -> None:
    done = demo(*arguments)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


# --- the verdict -----------------------------------------------------------------------------------------------------


async def test_nothing_is_proved_when_the_fence_of_the_fenced_arm_is_off(tmp_path: Path) -> None:
    plan = make_plan(Wishes("gc-pause"), tmp_path)
    (result,) = await perform(
        replace(plan, runs=[_sabotaged(run) for run in plan.runs]),
        tmp_path,
        lambda _trial, _event: None,
    )
    assert result.fenced.verdict.stale_accepted > 1
    assert result.fenced.verdict.lost
    assert not result.proved


def _sabotaged(run: Run) -> Run:
    return replace(
        run, fenced=replace(run.fenced, settings=msgspec.structs.replace(run.fenced.settings, mode="shadow"))
    )


def overtaken(*, acknowledged: bool) -> list[Event]:
    """A (token 5) writes A1; B (token 9) reads and writes B1; A writes A2."""
    return [
        Granted(1, "A", 5, 0, 50),
        Wrote(3, "A", 5, 2, "A1", True),
        Read(61, "B", 9, ("A1",)),
        Wrote(63, "B", 9, 62, "B1", True),
        Wrote(80, "A", 5, 4, "A2", acknowledged),
    ]


def unheard_of() -> list[Event]:
    """A (token 5) writes A1; B (token 9) reads without showing its token; A writes A2; B writes what it made of A1."""
    return [
        Granted(1, "A", 5, 0, 50),
        Wrote(3, "A", 5, 2, "A1", True),
        Granted(60, "B", 9, 59, 99),
        Read(61, "B", 9, ("A1",), fenced=False),
        Wrote(70, "A", 5, 69, "A2", True),
        Wrote(80, "B", 9, 79, "B1", True),
    ]


def test_a_write_is_stale_when_the_newer_holder_had_read_although_the_resource_had_not_heard_of_it() -> None:
    verdict = judge(unheard_of(), Holding("B", ("A1", "B1")))
    assert (verdict.stale_writes, verdict.stale_accepted, verdict.lost) == (1, 1, ("A2",))


def test_the_picture_shows_what_the_fence_was_shown_and_not_who_only_read() -> None:
    (drawn,) = draw_up([unheard_of()], TokenNames([5, 9]))
    (fence,) = [lane for lane in drawn.lanes if lane.name == "fence"]
    assert [(span.actor, span.start_us) for span in fence.spans] == [("A", 3), ("B", 80)]


def test_a_write_is_stale_when_the_resource_had_seen_a_higher_token_before_it_answered() -> None:
    verdict = judge(overtaken(acknowledged=False), Holding("B", ("A1", "B1")))
    assert (verdict.stale_writes, verdict.stale_accepted, verdict.lost) == (1, 0, ())


def test_a_stale_write_that_is_in_the_resource_was_accepted_whatever_was_answered() -> None:
    verdict = judge(overtaken(acknowledged=False), Holding("A", ("A1", "A2")))
    assert (verdict.stale_accepted, verdict.lost) == (1, ("B1",))


def test_a_stale_write_that_was_acknowledged_counts_even_when_it_was_overwritten() -> None:
    verdict = judge(overtaken(acknowledged=True), Holding("B", ("A1", "B1")))
    assert verdict.stale_accepted == 1


def test_a_proof_needs_stale_writes_in_both_arms() -> None:
    kept = judge(overtaken(acknowledged=False), Holding("B", ("A1", "B1")))
    lost = judge(overtaken(acknowledged=True), Holding("A", ("A1", "A2")))
    calm = judge(overtaken(acknowledged=True)[:-1], Holding("B", ("A1", "B1")))
    assert is_proved(kept, lost)
    assert not is_proved(calm, lost)
    assert not is_proved(kept, calm)
    assert not is_proved(kept, kept)
    assert not is_proved(lost, lost)


def test_a_resource_that_lets_nobody_in_proves_nothing() -> None:
    events: list[Event] = [
        Wrote(3, "A", 5, 2, "A1", True),
        Read(61, "B", 9, ("A1",)),
        Wrote(63, "B", 9, 62, "B1", False),
        Wrote(80, "A", 5, 4, "A2", False),
    ]
    refused = judge(events, Holding("A", ("A1",)))
    assert (refused.stale_writes, refused.stale_accepted, refused.lost) == (1, 0, ())
    assert not is_proved(refused, judge(overtaken(acknowledged=True), Holding("A", ("A1", "A2"))))


def test_tokens_are_shortened_so_that_their_order_is_still_seen() -> None:
    name = TokenNames([1763264009999999, 1763264010000001, 1763264012345678])
    assert name(1763264009999999) < name(1763264010000001) < name(1763264012345678)
    assert name(1763264012345678) == "…12345678"
    assert name.hidden == "17632640"
    assert TokenNames([34])(34) == "34"


class _Balance(HTMLParser):
    """Tags that were opened and never closed, or closed and never opened."""

    VOID = ("meta", "br")

    def of(self, html: str) -> list[str]:
        self.open: list[str] = []
        self.feed(html)
        return self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
