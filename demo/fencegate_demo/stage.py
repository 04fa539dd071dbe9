"""Puts the plan on: one lock service with gateway for all, and for each trial its holders, all at the same time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fencegate_demo.cast import Cast, Holder
from fencegate_demo.events import Event
from fencegate_demo.holder import Part
from fencegate_demo.holdings import read_back
from fencegate_demo.plan import KEY, Plan, Run, Trial
from fencegate_demo.processes import started
from fencegate_demo.servers import Server, serving
from fencegate_demo.verdict import Verdict, is_proved, judge

TTL_MS = {"A": 1_500, "B": 30_000}

Heard = Callable[[Trial, Event], None]
"""Is told of every event as it happens."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened in one arm, and what it comes to."""

    trial: Trial
    events: tuple[Event, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Result:
    """A run with its two arms."""

    run: Run
    fenced: Outcome
    unfenced: Outcome

    @property
    def outcomes(self) -> tuple[Outcome, Outcome]:
        return self.fenced, self.unfenced

    @property
    def proved(self) -> bool:
        return is_proved(self.fenced.verdict, self.unfenced.verdict)


async def perform(plan: Plan, store: str, folder: Path, heard: Heard) -> list[Result]:
    """All trials at once: each has a lock, a resource and holders of its own, so none disturbs another."""
    stage = _Stage(folder, heard, asyncio.Barrier(len(plan.trials)))
    resources = [trial.settings for trial in plan.trials]
    async with serving("lock service", resources, folder, store=store) as main, asyncio.TaskGroup() as group:
        tasks = {trial.settings.name: group.create_task(stage.put_on(trial, main)) for trial in plan.trials}
    outcomes = {name: task.result() for name, task in tasks.items()}
    return [Result(run, *(outcomes[trial.settings.name] for trial in run.trials)) for run in plan.runs]


class _Stage:
    def __init__(self, folder: Path, heard: Heard, everyone: asyncio.Barrier) -> None:
        self._folder = folder
        self._heard = heard
        self._everyone = everyone

    async def put_on(self, trial: Trial, main: Server) -> Outcome:
        folder = self._folder / trial.settings.name
        folder.mkdir()
        async with self._cast(trial, main, folder) as cast:
            await self._everyone.wait()  # starting so many processes would slow those that play already
            await trial.scenario.play(cast)
            holding = await read_back(trial)
        return Outcome(trial, tuple(cast.events), judge(cast.events, holding))

    @asynccontextmanager
    async def _cast(self, trial: Trial, main: Server, folder: Path) -> AsyncIterator[Cast]:
        events: list[Event] = []

        def heard(event: Event) -> None:
            events.append(event)
            self._heard(trial, event)

        async with AsyncExitStack() as stack:
            gateway = main
            if trial.scenario.failpoint is not None:
                own = serving("gateway 1", [trial.settings], folder, failpoint=trial.scenario.failpoint)
                gateway = await stack.enter_async_context(own)
            a = await stack.enter_async_context(started("A", _part("A", trial, main, gateway), folder))
            b = await stack.enter_async_context(started("B", _part("B", trial, main, main), folder))
            cast = Cast(Holder(a, heard), Holder(b, heard), gateway.process, events, heard)
            await asyncio.gather(cast.a.answers(1), cast.b.answers(1))
            yield cast


def _part(name: str, trial: Trial, lock_service: Server, gateway: Server) -> tuple[str, ...]:
    """The arguments that make a process this holder."""
    data = gateway.address(trial.settings.name, KEY)
    part = Part(name, lock_service.url, trial.lock_key, TTL_MS[name], data)
    return "-m", "fencegate_demo.holder", msgspec.json.encode(part).decode()
