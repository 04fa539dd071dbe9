"""What came of the cells, for scripts and for people."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fencegate.verify.real.cell import Live
from fencegate.verify.real.outcome import ArmCount, Outcome

MOST_SHOWN = 5
_NUMBERS = ("calls", "faults", "stale\ntaken", "lost,\nfenced", "lost,\nunfenced", "recovery,\nseconds")


def line(live: Live) -> str:
    """For a progress bar."""
    return (
        f"{live.outcome.name}  {live.operations} operations  {live.faults} faults  "
        f"{live.stale_tried} stale writes tried  {live.stale_accepted} accepted"
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "store": outcome.store,
        "resource": outcome.resource,
        "seconds": round(outcome.took_s, 3),
        "episodes": outcome.episodes,
        "operations": outcome.operations,
        "faults": len(outcome.spells),
        "faultsByKind": _by_kind(outcome),
        "fenced": _arm(outcome.fenced),
        "unfenced": _arm(outcome.unfenced),
        "recoveryMillis": _recovery(outcome),
        "violations": [
            {"episode": broken.episode, "arm": broken.arm, "what": [str(each) for each in broken.violations]}
            for broken in outcome.broken
        ],
        "remarks": outcome.remarks,
        "ok": outcome.ok,
        "proved": outcome.proved,
        "why": outcome.why_not,
    }


def _arm(count: ArmCount) -> dict[str, int]:
    return {
        "writes": count.writes,
        "acknowledged": count.acknowledged,
        "unknown": count.unknown,
        "notWritten": count.not_written,
        "staleWrites": count.stale_writes,
        "staleAccepted": count.stale_accepted,
        "lostUpdates": count.lost_updates,
    }


def _by_kind(outcome: Outcome) -> dict[str, int]:
    found: dict[str, int] = {}
    for spell in outcome.spells:
        found[spell.kind] = found.get(spell.kind, 0) + 1
    return dict(sorted(found.items()))


def _recovery(outcome: Outcome) -> dict[str, int] | None:
    times = outcome.recoveries()
    if not times:
        return None
    return {
        "median": round(times[len(times) // 2] * 1000),
        "p95": round(times[min(len(times) - 1, len(times) * 95 // 100)] * 1000),
        "worst": round(times[-1] * 1000),
    }


def show(console: Console, outcomes: Sequence[Outcome], seed: int) -> None:
    title = f"Real faults on real processes, from seed {seed}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for column in ("resource", "locks in"):
        table.add_column(column, overflow="fold")
    for column in _NUMBERS:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for outcome in outcomes:
        table.add_row(*_row(outcome))
    console.print(table)
    words = "stale taken: of those tried; recovery: median/worst, until a fenced write was acknowledged"
    console.print(f"[dim]{words}[/]", highlight=False)
    for outcome in outcomes:
        why = [] if outcome.proved else [outcome.why_not]
        for remark in (*why, *outcome.remarks):
            console.print(f"[yellow]note[/]  {escape(outcome.name)}: {escape(remark)}", highlight=False)
        for broken in outcome.broken:
            words = f"{outcome.name}, episode {broken.episode}, {broken.arm}"
            console.print(f"[red]broken[/] in {escape(words)}:", highlight=False)
            for violation in broken.violations[:MOST_SHOWN]:
                console.print(f"  {escape(str(violation))}", highlight=False)
            for fault in broken.faults:
                console.print(f"    {escape(fault)}", highlight=False)


def _row(outcome: Outcome) -> tuple[str, ...]:
    fenced, unfenced = outcome.fenced, outcome.unfenced
    times = outcome.recoveries()
    if outcome.proved:
        verdict = "[green]kept[/]"
    elif not outcome.ok:
        verdict = "[red]broken[/]"
    else:
        verdict = "[yellow]not run[/]" if not outcome.episodes else "[yellow]open[/]"
    return (
        escape(outcome.resource),
        escape(outcome.store),
        str(outcome.operations),
        str(len(outcome.spells)),
        f"{fenced.stale_accepted}/{fenced.stale_writes}",
        str(fenced.lost_updates),
        str(unfenced.lost_updates),
        f"{times[len(times) // 2]:.1f}/{times[-1]:.1f}" if times else "",
        verdict,
    )
