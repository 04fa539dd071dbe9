"""The report of a campaign: one self-contained page, without scripts or anything fetched from elsewhere."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from fencegate.clock import SYSTEM
from fencegate.verify import report_plots as plots
from fencegate.verify.history import Violation
from fencegate.verify.real.outcome import Outcome
from fencegate.verify.simulation import Simulated

if TYPE_CHECKING:
    from fencegate.verify.command import Came

_OWN_STYLE = """
.fault { opacity: .85 } .fault.pause { fill: var(--hatch) } .fault.kill { fill: var(--bad) }
.fault.line { fill: var(--a) } .fault.other { fill: var(--b) }
.dot.calm { fill: var(--good); opacity: .7 } .dot.during { fill: var(--a); opacity: .75 }
.overview th, .overview td { padding: .42rem .7rem } .overview thead th { font-size: .92rem; line-height: 1.3 }
.end-tick { text-anchor: end } .median { stroke: var(--ink); stroke-width: 2 }
.curve { fill: none; stroke-width: 2.5 } .curve.fenced { stroke: var(--good) } .curve.unfenced { stroke: var(--bad) }
.name { text-anchor: end; font-weight: 600 } .name.fenced { fill: var(--good) } .name.unfenced { fill: var(--bad) }
.overview td.number { white-space: nowrap }
tspan.soft { fill: var(--soft) } td.number { text-align: right } pre { overflow-x: auto }
.key { display: inline-block; width: 22px; height: 11px; border-radius: 3px; margin-right: .4rem; vertical-align: -1px }
"""
_KEYS = (
    ("var(--hatch)", "stopped (SIGSTOP)"),
    ("var(--bad)", "killed (SIGKILL) and started again"),
    ("var(--a)", "a line is delayed, cut, held or half open; a write while a fault is under way"),
    ("var(--b)", "full disk, moved clock, failover with loss"),
    ("var(--good)", "a write while all is well"),
)
_COLUMNS = (
    "",
    "operations",
    "faults",
    "stale writes tried",
    "accepted",
    "lost, fenced",
    "lost, unfenced",
    "recovery, median / worst",
)


def page(came: "Came") -> str:
    """The whole page."""
    state = "proved" if came.proved else "failed"
    made = datetime.fromtimestamp(SYSTEM.now_us() / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    house = files("fencegate_demo").joinpath("report.css").read_text(encoding="utf-8")
    verdict = came.verdict[:1].upper() + came.verdict[1:]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Fencegate: the campaign</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
{house}{_OWN_STYLE}</style></head><body><main>
<h1>What was tried to break it</h1>
<p>The same workload under the same faults, in two arms: with the resource's check, and without it.</p>
<p class="conclusion {state}">{escape(verdict)}.</p>
{_simulated(came.simulated)}
{_overview(came.played)}
{_not_run(came.outcomes)}
{_curves(came.played)}
{"".join(map(_cell, came.played))}
<footer>Workers, lock service replicas, gateways and servers were real processes on one machine. An update counts as
lost when it was acknowledged and is not in the resource at the end of its episode, read from the resource itself.
<br>Seed {came.seed}, {came.took_s:.0f} s{", interrupted" if came.interrupted else ""}. Made on {made}.</footer>
</main></body></html>
"""


def _simulated(found: Simulated | None) -> str:
    if found is None:
        return ""
    tally = found.tally
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td class="number">{fenced}</td><td class="number">{unfenced}</td></tr>'
        for name, fenced, unfenced in (
            ("writes", tally.fenced.writes, tally.unfenced.writes),
            ("stale writes tried", tally.fenced.stale_writes, tally.unfenced.stale_writes),
            ("stale writes accepted", tally.fenced.stale_accepted, tally.unfenced.stale_accepted),
            ("acknowledged updates lost", tally.fenced.lost_updates, tally.unfenced.lost_updates),
        )
    )
    return f"""<section><h2>Simulated</h2>
<p>{tally.runs} runs, {tally.faults} faults, {tally.simulated_us / 1e6:.0f} simulated seconds; the engine and the client
are the real ones.</p>
<table><thead><tr><th></th><th>fenced</th><th>unfenced</th></tr></thead><tbody>{rows}</tbody></table></section>"""


def _overview(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return ""
    head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
    rows = "\n".join(map(_row, outcomes))
    return f"""<section><h2>Real processes</h2>
<p>Leases of 1 to 2 s; a holder is stopped for longer than that every few seconds, whatever else goes wrong.</p>
<div class="overview"><table><thead><tr>{head}</tr></thead><tbody>
{rows}
</tbody></table></div></section>"""


def _row(outcome: Outcome) -> str:
    fenced, unfenced = outcome.fenced, outcome.unfenced
    times = outcome.recoveries()
    recovery = f"{times[len(times) // 2]:.2f} / {times[-1]:.1f} s" if times else ""
    words = "" if outcome.proved else f' <span class="bad">{escape(outcome.why_not)}</span>'
    cells = (
        f"{outcome.operations:,}",
        f"{len(outcome.spells):,}",
        f"{fenced.stale_writes:,}",
        f"{fenced.stale_accepted:,}",
        _share(fenced.lost_updates, fenced.acknowledged),
        _share(unfenced.lost_updates, unfenced.acknowledged),
        recovery,
    )
    numbers = "".join(f'<td class="number">{each}</td>' for each in cells)
    return f'<tr><th scope="row"><a href="#{_anchor(outcome)}">{escape(outcome.name)}</a>{words}</th>{numbers}</tr>'


def _share(lost: int, acknowledged: int) -> str:
    share = f" ({lost / acknowledged:.1%})" if lost and acknowledged else ""
    return f"{lost:,} of {acknowledged:,}{share}"


def _not_run(outcomes: Sequence[Outcome]) -> str:
    lines = [
        f"<li>{escape(each.name)}: {escape(each.failed or 'interrupted')}</li>"
        for each in outcomes
        if not each.episodes or each.failed
    ]
    return f'<p class="soft">Not run, or not to the end:</p><ul class="soft">{"".join(lines)}</ul>' if lines else ""


def _curves(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return ""
    return f"""<section><h2>Acknowledged updates that were lost</h2>
<p>Added up over the campaign, one cell after the other.</p><figure>{plots.lost(outcomes)}</figure></section>
<section><h2>Recovery</h2>
<p>From the end of each fault to the next fenced write that was acknowledged. Others may be under way at that moment.
The stroke is the median.</p>
<figure>{plots.recoveries(outcomes)}</figure></section>
<section><h2>Cell by cell</h2>{_legend()}</section>"""


def _legend() -> str:
    items = "".join(f'<li><span class="key" style="background:{colour}"></span>{words}</li>' for colour, words in _KEYS)
    return f'<ul class="legend">{items}</ul>'


def _cell(outcome: Outcome) -> str:
    broken = "".join(
        f"<p class=bad>Episode {each.episode}, {each.arm}:</p><pre>{_lines(each.violations)}</pre>"
        for each in outcome.broken
    )
    remarks = "".join(f'<p class="soft">{escape(each)}</p>' for each in outcome.remarks)
    return f"""<section id="{_anchor(outcome)}"><h2>{escape(outcome.name[:1].upper() + outcome.name[1:])}</h2>
<p>{outcome.episodes} episodes, {len(outcome.spells)} faults; {outcome.fenced.stale_writes} stale writes were tried
in the fenced arm and {outcome.fenced.stale_accepted} accepted; {outcome.unfenced.stale_accepted} in the other.</p>
{broken}{remarks}<figure>{plots.timeline(outcome)}</figure></section>
"""


def _lines(violations: Sequence[Violation]) -> str:
    return escape("\n".join(map(str, violations)))


def _anchor(outcome: Outcome) -> str:
    return "".join(each if each.isalnum() else "-" for each in outcome.name)
