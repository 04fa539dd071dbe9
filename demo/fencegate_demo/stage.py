"""Puts the plan on: for each store a lock service with gateway, and for each trial its holders, many at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from fencegate.core.errors import FencegateError
from fencegate.gateway.resources import ResourceSettings, UpstreamSettings
from fencegate_demo.cast import Cast, Holder
from fencegate_demo.contents import load
from fencegate_demo.events import Event
from fencegate_demo.holder import Part
from fencegate_demo.holdings import read_back
from fencegate_demo.plan import KEY, Plan, Run, Trial
from fencegate_demo.processes import started
from fencegate_demo.servers import Server, serving
from fencegate_demo.venues import StoreVenue
from fencegate_demo.verdict import Verdict, is_proved, judge

T = TypeVar("T")

TTL_MS = {"A": 1_500, "B": 30_000}
RUNS_AT_ONCE = 8
STARTS_AT_ONCE = 4
"""More would only wait for a processor, and slow those that play."""
SEND_FAILPOINT = "upstream.send=stop@3"
GIVES_UP = "10s"

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


async def perform(
    plan: Plan, folder: Path, heard: Heard, failed: Callable[[Run, FencegateError], None] | None = None
) -> list[Result]:
    """Each trial has a lock, a resource and holders of its own, so none disturbs another. A run that breaks off is told
    to `failed`; without it, nothing goes on."""
    for trial in plan.trials:
        load(trial.settings)
    stage = _Stage(folder, heard, failed, len(plan.trials))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stage.in_store(store, plan)) for store in plan.stores]
    results = {id(result.run): result for task in tasks for result in task.result()}
    return [results[id(run)] for run in plan.runs if id(run) in results]


class _Stage:
    def __init__(
        self, folder: Path, heard: Heard, failed: Callable[[Run, FencegateError], None] | None, trials: int
    ) -> None:
        self._folder = folder
        self._heard = heard
        self._failed = failed
        self._places = asyncio.Semaphore(RUNS_AT_ONCE)
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        # Starting processes slows those that play already: where there are few, all start first. Not where a run may
        # break off and the others go on: they would wait for it.
        self._everyone = asyncio.Barrier(trials) if failed is None and trials <= 2 * RUNS_AT_ONCE else None

    async def in_store(self, store: StoreVenue, plan: Plan) -> list[Result]:
        """All runs whose locks are in this store."""
        runs = [run for run in plan.runs if run.store.url == store.url]
        resources = [trial.settings for run in runs for trial in run.trials]
        folder = self._folder / f"locks-in-{store.slug}"
        folder.mkdir()
        try:
            async with AsyncExitStack() as stack:
                async with self._starting:
                    serve = serving("lock service", resources, folder, store=store.url)
                    main = await stack.enter_async_context(serve)
                return [result for result in await _all(self._run(run, main) for run in runs) if result is not None]
        except FencegateError as error:
            for run in runs:
                self._give_up(run, error)
            return []

    async def _run(self, run: Run, main: Server) -> Result | None:
        try:
            async with self._places:
                fenced, unfenced = await _all(self._put_on(trial, main) for trial in run.trials)
        except FencegateError as error:
            self._give_up(run, error)
            return None
        return Result(run, fenced, unfenced)

    def _give_up(self, run: Run, error: FencegateError) -> None:
        if self._failed is None:
            raise error
        self._failed(run, error)

    async def _put_on(self, trial: Trial, main: Server) -> Outcome:
        folder = self._folder / trial.settings.name
        folder.mkdir()
        async with self._cast(trial, main, folder) as cast:
            if self._everyone is not None:
                await self._everyone.wait()
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
            async with self._starting:
                gateway = main
                if trial.scenario.failpoint is not None:
                    own = serving("gateway 1", [_first_gateways(trial)], folder, failpoint=_failpoint(trial))
                    gateway = await stack.enter_async_context(own)
                a = await stack.enter_async_context(started("A", _part("A", trial, main, gateway), folder))
                b = await stack.enter_async_context(started("B", _part("B", trial, main, main), folder))
                cast = Cast(Holder(a, heard), Holder(b, heard), gateway.process, events, heard)
                await asyncio.gather(cast.a.answers(1), cast.b.answers(1))
            yield cast


def _first_gateways(trial: Trial) -> ResourceSettings:
    """What a stopped gateway had sent to a service, or not, is awaited until it would have given up."""
    if isinstance(trial.settings, UpstreamSettings) and trial.settings.mode == "enforce":
        return msgspec.structs.replace(trial.settings, total_timeout=GIVES_UP)
    return trial.settings


def _failpoint(trial: Trial) -> str | None:
    # What a gateway sends to a service is a write or a read; A has read before its first write.
    return SEND_FAILPOINT if trial.settings.kind == "upstream" else trial.scenario.failpoint


async def _all(parts: Iterable[Awaitable[T]]) -> list[T]:
    """What comes of all of them; when one fails the others are ended, and its error is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_awaited(part)) for part in parts]
    except BaseExceptionGroup as broken:
        ours = broken.subgroup(FencegateError)
        if ours is None:
            raise
        raise _first(ours) from None
    return [task.result() for task in tasks]


async def _awaited(part: Awaitable[T]) -> T:
    return await part


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _part(name: str, trial: Trial, lock_service: Server, gateway: Server) -> tuple[str, ...]:
    """The arguments that make a process this holder."""
    data = gateway.address(trial.settings.name, KEY)
    about_claims = trial.scenario.is_about_claims
    claims = about_claims and trial.arm == "fenced"
    part = Part(name, lock_service.url, trial.lock_key, TTL_MS[name], data, claims, not about_claims)
    return "-m", "fencegate_demo.holder", msgspec.json.encode(part).decode()
