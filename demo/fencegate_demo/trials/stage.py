"""Puts the uses on: one lock service with gateway for all, and for each arm a crew of workers."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fencegate.clock import SYSTEM
from fencegate_demo.servers import Server, serving
from fencegate_demo.trials.crew import Nursery, Worker, nursery
from fencegate_demo.trials.events import Event, Touched, only
from fencegate_demo.trials.use import Place, Role, Use, UseRun
from fencegate_demo.trials.verdict import Verdict, is_proved, judge
from fencegate_demo.trials.worker import Part

AT_ONCE = 4
"""So many uses at a time: more would only wait for a processor."""
SHORT_S, LONG_S = 1.2, 60.0
"""The leases of those that stop, and of the others: only those that are meant to run out can, however slow we are."""
LEASES = 1.4
"""A pause lasts at least so many times the lease."""
ROLES: dict[str, Role] = {"A": "stopped", "K": "killed", "B": "free", "C": "free"}


@dataclass(frozen=True, slots=True)
class UseOutcome:
    """What happened in one arm, and what it comes to."""

    place: Place
    events: tuple[Event, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class UseResult:
    """A run with its two arms."""

    run: UseRun
    fenced: UseOutcome
    unfenced: UseOutcome

    @property
    def outcomes(self) -> tuple[UseOutcome, UseOutcome]:
        return self.fenced, self.unfenced

    @property
    def proved(self) -> bool:
        return is_proved(self.fenced.verdict, self.unfenced.verdict)


Heard = Callable[[UseRun, Event], None]
"""Is told of every event as it happens."""


async def perform(runs: Sequence[UseRun], store: str, folder: Path, heard: Heard) -> list[UseResult]:
    """Some runs at a time: each arm has locks, a resource and workers of its own, so none disturbs another."""
    for place in (place for run in runs for place in run.places):
        place.path.mkdir()
    settings = [place.settings for run in runs for place in run.places if run.use.resource != "database"]
    async with nursery(folder) as born_at, serving("lock service", settings, folder, store=store) as server:
        await born_at.ready()
        stage = _Stage(server, born_at, heard, asyncio.Semaphore(AT_ONCE))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(stage.put_on(run)) for run in runs]
    return [task.result() for task in tasks]


@dataclass(frozen=True, slots=True)
class _Stage:
    server: Server
    nursery: Nursery
    heard: Heard
    turn: asyncio.Semaphore

    async def put_on(self, run: UseRun) -> UseResult:
        async with self.turn, asyncio.TaskGroup() as group:
            fenced, unfenced = (group.create_task(self._arm(run, place)) for place in run.places)
        return UseResult(run, fenced.result(), unfenced.result())

    async def _arm(self, run: UseRun, place: Place) -> UseOutcome:
        events: list[Event] = []

        def heard(event: Event) -> None:
            events.append(event)
            self.heard(run, event)

        run.use.prepare(place)
        parts = [self._part(name, role, run.use, place) for name, role in ROLES.items()]
        async with self.nursery.crew(parts, heard) as (a, k, *others):
            await _play(a, k, others, lambda: run.use.meanwhile(place))
            findings = await run.use.examine(place, only(Touched, events))
        return UseOutcome(place, tuple(events), judge(events, findings))

    def _part(self, name: str, role: Role, use: Use, place: Place) -> Part:
        return Part(name, use.name, role, LONG_S if role == "free" else SHORT_S, self.server.url, place)


async def _play(a: Worker, k: Worker, others: Sequence[Worker], meanwhile: Callable[[], None]) -> None:
    """A stops with the lock in its hands, K is killed with it; the others do the work at once; then A goes on."""
    a.go()
    await a.stops()
    began_us = SYSTEM.monotonic_us()
    meanwhile()
    k.go()
    await k.stops()
    await k.kill()
    for other in others:
        other.go()
    for other in others:
        await other.done()
    end_us = began_us + int(LEASES * SHORT_S * 1_000_000)
    await asyncio.sleep(max(0, end_us - SYSTEM.monotonic_us()) / 1_000_000)
    a.resume()
    await a.done()
