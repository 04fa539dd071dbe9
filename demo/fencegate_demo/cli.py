"""What `fencegate demo` does: plan, perform, show. Returns the exit code: 0 proved, 1 not."""

import asyncio
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fencegate.core.errors import FencegateError, InvalidInput, ResourceUnavailable
from fencegate.web.json import dumps
from fencegate_demo import report, terminal
from fencegate_demo.footprint import traceless
from fencegate_demo.plan import NotRun, Plan, Run, Wishes, make_plan
from fencegate_demo.progress import Watch, starting
from fencegate_demo.scenarios import SCENARIOS
from fencegate_demo.stage import Result, perform
from fencegate_demo.startable.here import running
from fencegate_demo.trials.registry import USES
from fencegate_demo.trials.stage import UseResult
from fencegate_demo.trials.stage import perform as perform_uses


def list_scenarios(as_json: bool) -> None:
    """The scenarios, and then the uses, each of which is also a file to copy."""
    found = [{"name": each.name, "summary": each.summary} for each in SCENARIOS.values()]
    found += [{"name": use.name, "summary": use.summary, "program": str(use.program)} for use in USES.values()]
    if as_json:
        print(dumps({"scenarios": found}).decode())
        return
    for each in found:
        print(f"{each['name']:<16}{each['summary']}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command line."""

    wishes: Wishes
    report: Path | None = None
    json: bool = False


@dataclass(slots=True)
class Came:
    """What came of it all."""

    plan: Plan
    results: list[Result | UseResult] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """About the user's own store."""

    @property
    def proved(self) -> bool:
        return all(result.proved for result in self.results) and not any(each.bad for each in self.not_run)


def run(wanted: Wanted) -> int:
    """Run what was asked for, say what came of it, and leave nothing behind."""
    if wanted.report is not None and not wanted.report.absolute().parent.is_dir():
        raise InvalidInput("report", f"there is no folder {wanted.report.parent}")
    wanted.wishes.check()
    with tempfile.TemporaryDirectory(prefix="fencegate-demo-") as folder:
        came = _perform(wanted.wishes, Path(folder))
    for remark in came.remarks:
        Console(stderr=True).print(f"[yellow]note[/]  {escape(remark)}", highlight=False, soft_wrap=True)
    if wanted.report is not None:
        _write(wanted.report, report.page(came.results, came.not_run))
    if wanted.json:
        print(dumps(_as_json(came, several=wanted.wishes.everything)).decode())
    else:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that can't show a sign still shows the rest
        terminal.show(Console(), came.results, came.not_run)
    return 0 if came.proved else 1


def _perform(wishes: Wishes, folder: Path) -> Came:
    async def performed() -> Came:
        # SIGTERM as Ctrl-C: what was started is continued, ended and cleaned up before we go.
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        console = Console(stderr=True)
        async with AsyncExitStack() as stack:
            with starting(console, wishes):
                here = await stack.enter_async_context(running(wishes.stores, wishes.resources, folder))
            plan = make_plan(wishes, folder, here)
            if not plan.runs and not plan.uses:
                raise ResourceUnavailable("; ".join(f"{each.what}: {each.why}" for each in plan.not_run))
            return await _played(plan, folder, console, wishes.everything)

    try:
        return asyncio.run(performed())
    except BaseExceptionGroup as group:  # whatever else failed, failed because of the first
        raise _first(group) from None
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _played(plan: Plan, folder: Path, console: Console, goes_on: bool) -> Came:
    """With `goes_on` a run that breaks off is a line among the verdicts, and the others are run all the same."""
    came = Came(plan, not_run=list(plan.not_run))

    def failed(run: Run, error: FencegateError) -> None:
        came.not_run.append(
            NotRun(f"{run.scenario.name} over {run.resource}, locks in {run.store.name}", error.detail, True)
        )
        watch.give_up(run)

    with Watch(plan, console) as watch:
        async with traceless(plan) as came.remarks:
            if plan.runs:
                came.results += await perform(plan, folder, watch.heard, failed if goes_on else None)
            if plan.uses:
                came.results += await perform_uses(plan.uses, plan.store.url, folder, watch.heard_of_use)
    return came


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _as_json(came: Came, *, several: bool) -> dict[str, Any]:
    found = [
        {
            **_named(result, came.plan),
            "fenced": result.fenced.verdict.as_json(),
            "unfenced": result.unfenced.verdict.as_json(),
            "proved": result.proved,
        }
        for result in came.results
    ]
    if not several:
        return found[0]
    not_run = [{"what": each.what, "why": each.why, "failed": each.bad} for each in came.not_run]
    return {"scenarios": found, "notRun": not_run, "proved": came.proved}


def _named(result: Result | UseResult, plan: Plan) -> dict[str, str]:
    if isinstance(result, UseResult):
        return {"scenario": result.run.use.name, "store": plan.store.name, "resource": result.run.use.resource}
    return {"scenario": result.run.scenario.name, "store": result.run.store.name, "resource": result.run.resource}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput("report", f"{path} can't be written: {error.strerror}") from None
