"""What is going on, on stderr, while a person waits at a terminal; silent otherwise."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fencegate_demo.events import Event, Granted, Paused, Ready, Released, Resumed, Wrote
from fencegate_demo.plan import Plan, Run, Trial, Wishes
from fencegate_demo.startable.here import RESOURCES, STORES
from fencegate_demo.trials import events as of_uses
from fencegate_demo.trials.use import UseRun

MANY = 12
EVENTS = 15
"""About as many as a trial has."""
USE_EVENTS = 70
"""About as many as both arms of a use have."""


class Watch:
    """A line with a bar for each trial of a scenario, and for each use; where there are many, only for those under
    way, below one for all."""

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
        self._many = len(plan.runs) + len(plan.uses) > MANY
        total = len(plan.trials) * EVENTS + len(plan.uses) * USE_EVENTS
        self._all = self._progress.add_task("", total=total, title="everything", visible=self._many)
        self._tasks: dict[str, TaskID] = {}
        for run in plan.runs:
            for trial in run.trials:
                title = f"{run.scenario.name} · {run.resource} · {trial.arm}"
                if self._many:
                    title = f"{title} · locks in {run.store.name}"
                self._tasks[trial.settings.name] = self._add("starting", EVENTS, title)
        for use in plan.uses:
            self._tasks[use.use.name] = self._add("waits for its turn", USE_EVENTS, use.use.name)

    def _add(self, description: str, events: int, title: str) -> TaskID:
        return self._progress.add_task(description, total=events, title=title, visible=not self._many)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def heard(self, trial: Trial, event: Event) -> None:
        over = isinstance(event, Released)  # by B, at the very end
        self._advance(self._tasks[trial.settings.name], _words(event), over=over)

    def heard_of_use(self, run: UseRun, event: of_uses.Event) -> None:
        over = isinstance(event, of_uses.Done) and event.actor == "A"
        self._advance(self._tasks[run.use.name], _words_of_use(event), over=over)

    def give_up(self, run: Run) -> None:
        for trial in run.trials:
            self._progress.update(self._tasks[trial.settings.name], visible=not self._many, description="broke off")

    def _advance(self, task: TaskID, words: str, *, over: bool) -> None:
        visible = not over if self._many else None
        self._progress.update(task, advance=1, description=words, visible=visible)
        self._progress.update(self._all, advance=1)


@contextmanager
def starting(console: Console, wishes: Wishes) -> Iterator[None]:
    """While servers are started, which takes some seconds."""
    names = [name for name in dict.fromkeys([*wishes.stores, *wishes.resources]) if name in (*STORES, *RESOURCES)]
    if not names or not console.is_terminal:
        yield
        return
    with console.status(f"starting {', '.join(names)}"):
        yield


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
