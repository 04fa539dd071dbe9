"""The campaign with real processes: it finds nothing in what we ship, and finds a bug that was planted."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fencegate.verify.history import History, Read, Write
from fencegate.verify.judge import judge
from fencegate.verify.real.campaign import Cells, plans
from fencegate.verify.real.cast import Entries
from fencegate.verify.real.cell import Live, Plan, run_cell
from fencegate.verify.real.histories import Ledger, stale
from fencegate.verify.real.outcome import Outcome, saved
from fencegate.verify.real.record import Granted, HasRead, HasWritten, LetGo, Reads, Record, Said, Tail, Writes
from fencegate.verify.real.sides import resource_side
from fencegate.verify.real.storm import ALWAYS, APART, WEIGHTS, storm
from fencegate.verify.real.thinning import thinned
from tests.real import azurite
from tests.verify.planted import BUGS

EVERY = (*WEIGHTS, *APART)
MOST_S = 150
"""A busy machine may need many episodes; an idle one needs one."""


# --- the campaign ----------------------------------------------------------------------------------------------------


async def campaign(folder: Path, *, gateway: tuple[str, ...] | None = None, resource: str = "rows") -> Outcome:
    """Episode after episode, until it found a fault, or proved its point and lost something without the check."""
    outcome, stop = Outcome("sqlite", resource), asyncio.Event()
    entries = Entries() if gateway is None else Entries(gateway=gateway)

    def watch(live: Live) -> None:
        if gateway is None and live.outcome.proved and live.outcome.unfenced.lost_updates:
            stop.set()

    await run_cell(Plan("sqlite", resource, 11, MOST_S, entries, storm_s=6.0), folder / "cell", outcome, stop, watch)
    return outcome


async def test_nothing_is_lost_in_the_fenced_arm_and_something_in_the_other(tmp_path: Path) -> None:
    outcome = await campaign(tmp_path)
    assert not outcome.failed
    assert not outcome.broken, saved(outcome, outcome.broken[0], 11)  # the whole history: it may not come again
    assert outcome.proved, outcome.why_not
    assert outcome.spells
    assert outcome.fenced.stale_writes > 0
    assert outcome.fenced.stale_accepted == outcome.fenced.lost_updates == 0
    assert outcome.unfenced.lost_updates > 0
    assert outcome.recoveries()


async def test_a_bug_that_was_planted_in_the_gateway_is_found(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("planted.py"))
    assert "no check" in BUGS  # the others take longer to find
    outcome = await campaign(tmp_path, gateway=(script, "no check"))
    assert not outcome.failed
    assert not outcome.ok
    found = json.loads(saved(outcome, outcome.broken[0], 11))
    assert found["seed"] == 11
    assert found["violations"]
    assert found["history"]["writes"]
    assert found["faults"]


# --- what it is made of ----------------------------------------------------------------------------------------------


def resources(seconds: float, cells: Cells) -> list[str]:
    return [plan.resource for plan in plans(cells, seconds, 1, Entries())]


def test_with_little_time_nothing_is_begun_that_it_does_not_suffice_for_unless_it_was_asked_for() -> None:
    assert resources(5, Cells()) == ["rows"]
    assert resources(15, Cells()) == ["rows", "objects"]
    assert resources(5, Cells(resource="objects")) == ["objects"]
    assert len(resources(5, Cells(everything=True))) > 10


async def test_a_server_that_forgets_when_it_is_killed_is_stopped_and_cut_off_but_never_killed(tmp_path: Path) -> None:
    assert "azure" in resources(5, Cells(everything=True))
    if reason := azurite.missing():
        pytest.skip(reason)
    async with resource_side("azure", tmp_path) as side:
        assert side.servers
        assert side.addresses
        assert side.commits
        assert not side.killable


def test_a_seed_gives_the_same_faults() -> None:
    assert storm("7/a", EVERY, 10) == storm("7/a", EVERY, 10)
    assert storm("7/a", EVERY, 10) != storm("8/a", EVERY, 10)


def test_a_holder_is_paused_in_every_episode_and_clocks_don_t_move_where_commits_are_lost() -> None:
    for seed in range(200):
        kinds = [fault.kind for fault in storm(str(seed), EVERY, 6.0)]
        assert "pause holder" in kinds
        assert sum(kind in APART for kind in kinds) <= 1


def test_a_store_that_can_lose_commits_does_so_in_about_a_quarter_of_the_episodes() -> None:
    can = (*ALWAYS, "clock of store", "failover with loss")
    losing = [
        seed for seed in range(200) if "failover with loss" in {each.kind for each in storm(str(seed), can, 10.0)}
    ]
    assert 35 < len(losing) < 65


def test_only_what_a_cell_can_do_is_drawn() -> None:
    drawn = {fault.kind for seed in range(200) for fault in storm(str(seed), ALWAYS, 10.0)}
    assert drawn == {*ALWAYS, "pause holder"}


def said(it: type[Said], at_us: int, **more: object) -> Said:
    return it(episode=1, arm="fenced", client="w1.1", key="e1a", at_us=at_us, **more)  # type: ignore[arg-type]


def test_what_a_killed_worker_had_begun_is_unknown_and_what_it_was_told_is_kept(tmp_path: Path) -> None:
    record, tail, ledger = Record(tmp_path / "w1"), Tail(tmp_path / "w1"), Ledger()
    record.say(said(Granted, 10, token=5, asked_us=9, until_us=1000))
    record.say(said(Reads, 11, number=1, token=5))
    record.say(said(HasRead, 12, number=1, updates=("a",)))
    for line in tail.new():
        ledger.hear(line)
    assert ledger.thinking == {"w1.1"}
    record.say(said(Writes, 13, number=2, token=5, update="b"))
    with (tmp_path / "w1").open("ab") as torn:
        torn.write(b'{"it":"has-wri')
    for line in tail.new():
        ledger.hear(line)
    (write,) = ledger.history.writes
    assert (write.told, write.ended_us) == ("unknown", None)
    assert ledger.history.reads[0].updates == ("a",)
    assert ledger.history.holds[0].believed_until_us == 1000


def test_a_write_that_was_said_not_to_be_written_must_not_be_there() -> None:
    ledger = Ledger()
    ledger.hear(said(Granted, 10, token=5, asked_us=9, until_us=1000))
    ledger.hear(said(Reads, 11, number=1, token=5))
    ledger.hear(said(HasRead, 12, number=1, updates=()))
    ledger.hear(said(Writes, 13, number=2, token=5, update="b"))
    ledger.hear(said(HasWritten, 14, number=2, told="not-written"))
    ledger.hear(said(LetGo, 15, token=5, since_us=15))
    ledger.history.final = {"e1a": ()}
    assert not ledger.violations(fenced=True)
    ledger.history.final = {"e1a": ("b",)}
    assert [violation.invariant for violation in ledger.violations(fenced=True)] == ["I4"]


def test_a_create_after_a_delete_by_a_higher_token_is_a_violation() -> None:
    ledger = Ledger()
    for number, (token, update, told) in enumerate([(6, "b", "done"), (6, "-b", "done"), (5, "a", "done")]):
        where = {"episode": 1, "arm": "fenced", "client": "w1.1", "key": "e1x"}
        ledger.hear(Writes(**where, at_us=10 * number, number=number, token=token, update=update))  # type: ignore[arg-type]
        ledger.hear(HasWritten(**where, at_us=10 * number + 5, number=number, told=told))  # type: ignore[arg-type]
    assert [violation.invariant for violation in ledger.violations(fenced=True)] == ["I3"]
    assert [write.update for write in stale(ledger.crossed)] == ["a"]


def test_calls_of_unknown_outcome_that_nobody_saw_are_left_out_unless_they_explain_a_refusal() -> None:
    history = History(final={"k": ("a",)})
    history.reads = [Read("w1", "k", 5, 0, 1, ()), *(Read(f"u{n}", "k", 6 + n, 10 + n) for n in range(60))]
    history.writes = [
        Write("w1", "k", 5, "a", 2, 3, "done"),
        Write("w2", "k", 70, "gone", 80, None, "unknown"),
        Write("w1", "k", 5, "b", 90, 91, "refused"),
    ]
    small = thinned(history)
    assert 0 < len(small.reads) - 1 <= 4
    assert [write.update for write in small.writes] == ["a", "b"]
    assert judge(small) == []
    history.reads = history.reads[:1]
    history.writes.pop(1)
    assert [violation.invariant for violation in judge(thinned(history))] == ["linearizable"]


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--store", "nonsense"], 2, "nonsense"),
        (["--simulate", "--all"], 2, "simulate"),
        (["--real", "--seconds", "5", "--store", "redis://127.0.0.1:1/0"], 3, "127.0.0.1:1"),
    ],
)
def test_bad_usage_and_a_server_that_is_not_there_have_exit_codes(arguments: list[str], code: int, words: str) -> None:
    command = [str(Path(sys.executable).with_name("fencegate")), "verify", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
