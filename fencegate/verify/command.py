"""What `fencegate verify` does: simulate, hurt real processes, say what was seen, and keep what failed.

The exit code: 0 when every promise was kept and the unfenced arm shows that it mattered, 1 when not, 130 after Ctrl-C.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fencegate.clock import SYSTEM
from fencegate.core.errors import InvalidInput
from fencegate.verify import simulation
from fencegate.verify.real import telling
from fencegate.verify.real.campaign import Campaign, Cells, plans, run_cells
from fencegate.verify.real.cast import Entries
from fencegate.verify.real.cell import Live
from fencegate.verify.real.outcome import Outcome, saved
from fencegate.verify.simulation import Simulated, simulate
from fencegate.web.json import dumps

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command line."""

    seconds: float = 30.0
    seed: int | None = None
    runs: int | None = None
    cells: Cells = field(default_factory=Cells)
    simulated: bool = True
    real: bool = True
    report: Path | None = None
    history: Path | None = None
    """Where the history of what failed is written; in the current folder by default."""
    json: bool = False
    entries: Entries = field(default_factory=Entries)
    jobs: int | None = None
    """How many processes simulate; one for each processor by default."""

    def check(self) -> None:
        if not self.seconds > 0:
            raise InvalidInput("seconds", "must be more than 0")
        if self.jobs is not None and self.jobs < 1:
            raise InvalidInput("jobs", "must be at least 1")
        for name, path in (("report", self.report), ("history", self.history)):
            if path is not None and not path.absolute().parent.is_dir():
                raise InvalidInput(name, f"there is no folder {path.parent}")
        self.cells.check()


@dataclass(slots=True)
class Came:
    """What came of it all."""

    seed: int
    simulated: Simulated | None = None
    campaign: Campaign | None = None
    took_s: float = 0.0
    histories: list[Path] = field(default_factory=list)

    @property
    def outcomes(self) -> list[Outcome]:
        return [] if self.campaign is None else self.campaign.outcomes

    @property
    def played(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.episodes]

    @property
    def interrupted(self) -> bool:
        parts = (self.simulated, self.campaign)
        return any(part is not None and part.interrupted for part in parts)

    @property
    def ok(self) -> bool:
        return (self.simulated is None or self.simulated.ok) and all(each.ok for each in self.outcomes)

    @property
    def proved(self) -> bool:
        """Each part shows that without the check stale writes get in; what is not on this machine is no part."""
        parts = [each for each in self.outcomes if not each.missing]
        real = self.campaign is None or (bool(parts) and all(each.proved for each in parts))
        return self.ok and real and (self.simulated is None or self.simulated.proved)

    @property
    def verdict(self) -> str:
        if not self.ok:
            return "a promise was broken"
        if self.campaign is not None and not self.played:
            return "proves nothing: no episode was played to its end"
        if not self.proved:
            parts = [each for each in self.outcomes if not each.missing and not each.proved]
            why = "; ".join(f"{each.name}: {each.why_not}" for each in parts)
            return why or "proves nothing: without the check no stale write got in either"
        return "every promise was kept, and without the check stale writes got in"


def run(wanted: Wanted) -> int:
    """See the head of this file."""
    wanted.check()
    came = Came(wanted.seed if wanted.seed is not None else int(SYSTEM.random_id(4), 16))
    began_us = SYSTEM.monotonic_us()
    _play(wanted, came)
    came.took_s = (SYSTEM.monotonic_us() - began_us) / 1e6
    only = came.outcomes[0] if len(came.outcomes) == 1 else None
    if only is not None and only.error is not None and not only.episodes:
        raise only.error  # what the user asked for can't be reached
    _keep(wanted, came)
    if wanted.report is not None:
        from fencegate.verify.report import page

        _write("report", wanted.report, page(came).encode())
    if wanted.json:
        print(dumps(_as_json(came)).decode())
    else:
        _show(Console(), came)
    if not came.ok:
        return 1
    if came.interrupted:
        return INTERRUPTED
    return 0 if came.proved or wanted.runs is not None else 1


def _play(wanted: Wanted, came: Came) -> None:
    simulates = wanted.simulated and not (wanted.cells.asked and wanted.runs is None)
    real = wanted.real and wanted.runs is None
    if simulates:
        seconds = wanted.seconds / 2 if real else wanted.seconds
        with _terminated_as_interrupted(), _bar(wanted, seconds) as (progress, task):

            def simulating(at_s: float, tally: Any) -> None:
                progress.update(task, completed=at_s, description=simulation.line(tally))

            came.simulated = simulate(seconds, came.seed, wanted.runs, simulating, wanted.jobs)
    if real and not came.interrupted:
        seconds = wanted.seconds / 2 if simulates else wanted.seconds
        began_us = SYSTEM.monotonic_us()
        with _bar(wanted, seconds) as (progress, task):

            def hurting(_: object, live: Live) -> None:
                at_s = (SYSTEM.monotonic_us() - began_us) / 1e6
                progress.update(task, completed=at_s, description=escape(telling.line(live)))

            came.campaign = run_cells(plans(wanted.cells, seconds, came.seed, wanted.entries), hurting)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM as Ctrl-C, as it is for real processes: what was seen is said, and nobody is left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _bar(wanted: Wanted, seconds: float) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("verify"), BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=wanted.json) as progress:
        yield progress, progress.add_task("starting", total=seconds)


def _keep(wanted: Wanted, came: Came) -> None:
    """The history of each cell that broke a promise."""
    failed = [(outcome, broken) for outcome in came.outcomes for broken in outcome.broken]
    for number, (outcome, broken) in enumerate(failed):
        path = wanted.history or Path(f"fencegate-verify-{came.seed}.json")
        if number:
            path = path.with_stem(f"{path.stem}-{number + 1}")
        _write("history", path, saved(outcome, broken, came.seed))
        came.histories.append(path)


def _as_json(came: Came) -> dict[str, Any]:
    if came.campaign is None and came.simulated is not None:
        return {**simulation.as_json(came.simulated), "interrupted": came.interrupted}
    return {
        "kind": "campaign",
        "seed": came.seed,
        "seconds": round(came.took_s, 3),
        "simulation": None if came.simulated is None else simulation.as_json(came.simulated),
        "cells": [telling.as_json(outcome) for outcome in came.played],
        "notRun": [
            {"store": each.store, "resource": each.resource, "why": each.failed or "interrupted"}
            for each in came.outcomes
            if not each.episodes
        ],
        "histories": [str(path) for path in came.histories],
        "verdict": came.verdict,
        "interrupted": came.interrupted,
        "ok": came.ok,
        "proved": came.proved,
    }


def _show(console: Console, came: Came) -> None:
    if came.simulated is not None:
        simulation.show(console, came.simulated)
    if came.outcomes:
        telling.show(console, came.outcomes, came.seed)
    for path in came.histories:
        console.print(f"history: {escape(str(path))}", highlight=False, soft_wrap=True)
    broken = [outcome for outcome in came.outcomes if outcome.broken]
    for outcome in broken:
        where = f"--store {outcome.store} --resource {outcome.resource} --seconds {outcome.asked_s:g}"
        again = f"fencegate verify --real {where} --seed {came.seed}"
        console.print(f"the same faults again: {escape(again)}", highlight=False, soft_wrap=True)
    if came.interrupted:
        console.print("[yellow]interrupted[/]  this is what was seen so far", highlight=False)
    colour = "green" if came.proved else "red" if not came.ok else "yellow"
    word = "kept" if came.proved else "broken" if not came.ok else "not proved"
    console.print(f"[{colour}]{word}[/]  {escape(came.verdict)}", highlight=False)


def _write(field_: str, path: Path, text: bytes) -> None:
    try:
        path.write_bytes(text)
    except OSError as error:
        raise InvalidInput(field_, f"{path} can't be written: {error.strerror}") from None
