"""The simulated part of the campaign: play until the time is up, shrink what failed, say what was seen."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fencegate.clock import SYSTEM, Clock
from fencegate.verify.sim.campaign import Failure, Tally, shrink
from fencegate.verify.sim.sweep import sweep


@dataclass(slots=True)
class Simulated:
    """What was seen."""

    seed: int
    tally: Tally = field(default_factory=Tally)
    smallest: list[Failure] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def interrupted(self) -> bool:
        return self.tally.interrupted

    @property
    def ok(self) -> bool:
        return not self.tally.failures

    @property
    def proved(self) -> bool:
        """Nothing was broken, though the faults were such that without the check stale writes got in."""
        return self.ok and self.tally.unfenced.is_broken


def simulate(
    seconds: float,
    seed: int,
    runs: int | None,
    watch: Callable[[float, Tally], None],
    jobs: int | None = None,
    clock: Clock = SYSTEM,
) -> Simulated:
    """Seed after seed, by `jobs` processes (one for each processor); Ctrl-C ends it with what was seen so far."""
    began_us = clock.monotonic_us()

    def took_s() -> float:
        return (clock.monotonic_us() - began_us) / 1e6

    tally = sweep(seed, seconds=seconds, runs=runs, jobs=jobs, on_progress=lambda seen: watch(took_s(), seen))
    found = Simulated(seed, tally, list(tally.failures))
    try:
        for place, failure in enumerate(tally.failures):
            found.smallest[place] = shrink(failure)
    except KeyboardInterrupt:
        tally.interrupted = True
    found.took_s = took_s()
    return found


def line(tally: Tally) -> str:
    """For a progress bar."""
    return (
        f"simulation  {tally.runs} runs  {tally.operations} operations  {tally.faults} faults  "
        f"{tally.fenced.stale_writes} stale writes tried  {tally.fenced.stale_accepted} accepted"
    )


def as_json(found: Simulated) -> dict[str, Any]:
    tally = found.tally
    return {
        "kind": "simulation",
        "seed": found.seed,
        "runs": tally.runs,
        "schedules": tally.schedules,
        "operations": tally.operations,
        "faults": tally.faults,
        "seconds": round(found.took_s, 3),
        "simulatedSeconds": round(tally.simulated_us / 1e6, 3),
        "fenced": arm(tally, fenced=True),
        "unfenced": arm(tally, fenced=False),
        "violations": [
            {
                "seed": failure.plan.seed,
                "what": [str(violation) for violation in failure.violations],
                "smallest": msgspec.to_builtins(small.plan),
                "faults": small.faults,
            }
            for failure, small in zip(tally.failures, found.smallest, strict=True)
        ],
        "ok": found.ok,
        "proved": found.proved,
    }


def arm(tally: Tally, *, fenced: bool) -> dict[str, int]:
    of = tally.fenced if fenced else tally.unfenced
    return {
        "writes": of.writes,
        "staleWrites": of.stale_writes,
        "staleAccepted": of.stale_accepted,
        "lostUpdates": of.lost_updates,
    }


def show(console: Console, found: Simulated) -> None:
    tally = found.tally
    table = Table(title="Simulated, with real engine and client code", title_justify="left")
    for column in ("", "fenced", "unfenced"):
        table.add_column(column, justify="left" if not column else "right")
    for name, key in (
        ("writes", "writes"),
        ("stale writes tried", "staleWrites"),
        ("stale writes accepted", "staleAccepted"),
        ("acknowledged updates lost", "lostUpdates"),
    ):
        table.add_row(name, str(arm(tally, fenced=True)[key]), str(arm(tally, fenced=False)[key]))
    console.print(table)
    speed = tally.simulated_us / 1e6 / max(found.took_s, 1e-9)
    console.print(
        f"{tally.runs} runs from seed {found.seed}, {tally.faults} faults, {tally.operations} operations judged; "
        f"{speed:.0f} simulated seconds a second, {tally.schedules / max(found.took_s, 1e-9):.0f} schedules a second"
    )
    for failure, small in zip(tally.failures, found.smallest, strict=True):
        console.print(f"[red]broken[/] in seed {failure.plan.seed}:", highlight=False)
        for violation in failure.violations[:5]:
            console.print(f"  {escape(str(violation))}", highlight=False)
        console.print(f"  smallest: {escape(str(small.plan))}", highlight=False)
        for fault in small.faults:
            console.print(f"    {escape(fault)}", highlight=False)
        console.print(f"  again: fencegate verify --seed {failure.plan.seed} --runs 1", highlight=False)
