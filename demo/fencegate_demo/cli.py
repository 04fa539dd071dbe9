"""What `fencegate demo` does: plan, perform, show. Returns the exit code: 0 proved, 1 not."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fencegate.core.errors import InvalidInput
from fencegate.web.json import dumps
from fencegate_demo import report, terminal
from fencegate_demo.footprint import traceless
from fencegate_demo.plan import Plan, make_plan
from fencegate_demo.progress import Watch
from fencegate_demo.scenarios import SCENARIOS
from fencegate_demo.stage import Result, perform
from fencegate_demo.trials.registry import USES
from fencegate_demo.trials.stage import UseResult
from fencegate_demo.trials.stage import perform as perform_uses
from fencegate_lockservice.routes import is_routes


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

    scenario: str | None
    store: str | None
    resource: str | None
    everything: bool
    report: Path | None
    json: bool


def run(wanted: Wanted) -> int:
    """Run what was asked for, say what came of it, and leave nothing behind."""
    if wanted.report is not None and not wanted.report.absolute().parent.is_dir():
        raise InvalidInput("report", f"there is no folder {wanted.report.parent}")
    if wanted.store is not None and is_routes(wanted.store):
        raise InvalidInput(
            "store", "must be the URL of one store, such as redis://HOST:PORT/DB; the demo needs no more"
        )
    with tempfile.TemporaryDirectory(prefix="fencegate-demo-") as folder:
        plan = make_plan(wanted.scenario, wanted.store, wanted.resource, wanted.everything, Path(folder))
        results, remarks = _perform(plan, wanted.store or f"sqlite:///{folder}/locks.db", Path(folder))
    for remark in remarks:
        Console(stderr=True).print(f"[yellow]note[/]  {escape(remark)}", highlight=False, soft_wrap=True)
    if wanted.report is not None:
        _write(wanted.report, report.page(results, plan.store))
    if wanted.json:
        print(dumps(_as_json(results, plan.store, several=wanted.everything)).decode())
    else:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that can't show a sign still shows the rest
        terminal.show(Console(), results)
    return 0 if all(result.proved for result in results) else 1


def _perform(plan: Plan, store: str, folder: Path) -> tuple[list[Result | UseResult], list[str]]:
    """What came of it, and what is to be said about the store."""

    async def performed() -> tuple[list[Result | UseResult], list[str]]:
        # SIGTERM as Ctrl-C: what was started is continued, ended and cleaned up before we go.
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with Watch(plan, Console(stderr=True)) as watch:
            async with traceless(plan, store) as remarks:
                scenarios = await perform(plan, store, folder, watch.heard) if plan.runs else []
                uses = await perform_uses(plan.uses, store, folder, watch.heard_of_use) if plan.uses else []
            return [*scenarios, *uses], remarks

    try:
        return asyncio.run(performed())
    except BaseExceptionGroup as group:  # whatever else failed, failed because of the first
        raise _first(group) from None
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _as_json(results: Sequence[Result | UseResult], store: str, *, several: bool) -> dict[str, Any]:
    found = [
        {
            **_named(result, store),
            "fenced": result.fenced.verdict.as_json(),
            "unfenced": result.unfenced.verdict.as_json(),
            "proved": result.proved,
        }
        for result in results
    ]
    return {"scenarios": found, "proved": all(result.proved for result in results)} if several else found[0]


def _named(result: Result | UseResult, store: str) -> dict[str, str]:
    if isinstance(result, UseResult):
        return {"scenario": result.run.use.name, "store": store, "resource": result.run.use.resource}
    return {"scenario": result.run.scenario.name, "store": store, "resource": result.run.resource}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput("report", f"{path} can't be written: {error.strerror}") from None
