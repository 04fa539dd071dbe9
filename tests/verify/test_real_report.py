"""The verdict and the report of a campaign: what proves nothing is not a pass."""

from io import StringIO
from pathlib import Path

import msgspec
from rich.console import Console

from fencegate.verify.command import Came
from fencegate.verify.real.campaign import Campaign
from fencegate.verify.real.outcome import Outcome, Spell
from fencegate.verify.real.telling import as_json, show
from fencegate.verify.report import page


def seen(*, lost: int, stale: int = 3, accepted: int = 0) -> Outcome:
    outcome = Outcome("redis", "rows", episodes=2, operations=100, seconds=20.0)
    outcome.fenced.acknowledged = outcome.unfenced.acknowledged = 50
    outcome.fenced.stale_writes, outcome.fenced.stale_accepted = stale, accepted
    outcome.unfenced.lost_updates = lost
    outcome.spells = [
        Spell("pause holder", "pause holder: w1 <&>", 1.0, 4.0, 0.3),
        Spell("kill store", "k", 5, 6, None),
    ]
    outcome.latencies = [(0.5, 0.004), (2.0, 1.2)]
    outcome.lost = {"fenced": [(10.0, 0), (20.0, 0)], "unfenced": [(10.0, lost), (20.0, 0)]}
    return outcome


def came(*outcomes: Outcome) -> Came:
    return Came(7, campaign=Campaign(list(outcomes)))


def test_faults_that_cost_nothing_without_the_check_prove_nothing() -> None:
    outcome = seen(lost=0)
    assert outcome.ok
    assert not outcome.proved
    assert "proves nothing" in as_json(outcome)["why"]
    assert not came(outcome, seen(lost=2)).proved
    assert "proves nothing" in came(outcome).verdict
    assert came(seen(lost=2)).proved


def test_a_stale_write_that_gets_in_without_the_check_proves_it_though_nothing_was_lost() -> None:
    """On a busy machine few writes come late, and what one of them overwrites may be its own."""
    outcome = seen(lost=0)
    outcome.unfenced.stale_accepted = 1
    assert outcome.proved
    assert came(outcome).proved
    assert came(outcome).verdict == "every promise was kept, and without the check stale writes got in"
    outcome.fenced.stale_writes = 0
    assert not outcome.proved


def test_a_stale_write_that_was_accepted_is_a_broken_promise() -> None:
    outcome = seen(lost=2, accepted=1)
    assert not outcome.ok
    assert not came(outcome).ok
    assert came(outcome).verdict == "a promise was broken"


def test_a_campaign_that_began_nothing_proves_nothing() -> None:
    missing = Outcome("etcd", "rows", failed="no etcd server", missing=True)
    assert not came(missing).proved
    assert came(missing, seen(lost=2)).proved
    assert not came(Outcome("etcd", "rows", failed="did not start"), seen(lost=2)).proved


def test_the_report_is_one_page_without_anything_from_elsewhere(tmp_path: Path) -> None:
    missing = Outcome("etcd", "rows", failed="no etcd server")
    text = page(came(seen(lost=2), missing))
    assert "pause holder: w1 &lt;&amp;&gt;" in text
    assert "no etcd server" in text
    assert "unfenced: 2" in text
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_servers_with_long_names_cut_nothing_off_in_a_terminal() -> None:
    outcome = seen(lost=2)
    outcome.store, outcome.resource = "postgresql://…@db.internal:5432/locks", "s3://company-reports/eu/2026?…"
    console = Console(file=StringIO(), width=80)
    show(console, [outcome], 7)
    assert isinstance(console.file, StringIO)
    rows = console.file.getvalue().splitlines()[1:]
    assert "unfenced" in rows[1]
    (figures,) = [row for row in rows if row.endswith("kept ")]
    assert figures.split()[-7:] == ["100", "2", "0/3", "0", "2", "0.3/0.3", "kept"]


def test_what_is_told_to_scripts_can_be_told() -> None:
    told = msgspec.json.decode(msgspec.json.encode(as_json(seen(lost=2))))
    assert told["fenced"] == told["fenced"] | {"staleWrites": 3, "staleAccepted": 0, "lostUpdates": 0}
    assert told["faultsByKind"] == {"kill store": 1, "pause holder": 1}
    assert told["recoveryMillis"] == {"median": 300, "p95": 300, "worst": 300}
    assert told["proved"] is True
