"""What is going on, on stderr, while a person waits at a terminal; silent otherwise."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fencegate_demo.events import Event, Granted, Paused, Ready, Resumed, Wrote
from fencegate_demo.plan import Plan, Trial
from fencegate_demo.trials import events as of_uses
from fencegate_demo.trials.use import UseRun

EVENTS = 15
"""About as many as a trial has."""
USE_EVENTS = 70
"""About as many as both arms of a use have."""


class Watch:
    """A line with a bar for each trial of a scenario, and for each use."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.fields[title]}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}", style="dim"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        for run in plan.runs:
            for trial in run.trials:
                title = f"{run.scenario.name} · {run.resource} · {trial.arm}"
                self._tasks[trial.settings.name] = self._progress.add_task("starting", total=EVENTS, title=title)
        for use in plan.uses:
            self._tasks[use.use.name] = self._progress.add_task(
                "waits for its turn", total=USE_EVENTS, title=use.use.name
            )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def heard(self, trial: Trial, event: Event) -> None:
        self._progress.update(self._tasks[trial.settings.name], advance=1, description=_words(event))

    def heard_of_use(self, run: UseRun, event: of_uses.Event) -> None:
        self._progress.update(self._tasks[run.use.name], advance=1, description=_words_of_use(event))


def _words_of_use(event: of_uses.Event) -> str:
    match event:
        case of_uses.Killed():
            return f"{event.actor} is killed"
        case Paused():
            return f"{event.actor} is stopped with the lock in its hands"
        case Resumed():
            return f"{event.actor} goes on"
        case of_uses.Touched(accepted=False):
            return f"a write of {event.actor} was refused"
    return f"{event.actor} works"


def _words(event: Event) -> str:
    match event:
        case Ready():
            return "everybody gets ready"
        case Granted():
            return f"{event.actor} has the lock"
        case Paused():
            return f"{event.actor} is stopped; B waits for the lease to run out"
        case Resumed():
            return f"{event.actor} goes on"
        case Wrote():
            return f"{event.actor} wrote {event.update}" if event.acknowledged else f"{event.update} was refused"
    return "done" if event.actor == "B" else "reads"
