"""One cell of the campaign, a store and a resource: episode after episode of faults, each judged when it is over."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fencegate.clock import SYSTEM
from fencegate.core.errors import FencegateError
from fencegate.verify.history import Violation
from fencegate.verify.real.cast import Cast, Entries, new_prefix, playing
from fencegate.verify.real.final import read_final
from fencegate.verify.real.footprint import traceless
from fencegate.verify.real.histories import CROSSED, decided
from fencegate.verify.real.nemesis import Nemesis
from fencegate.verify.real.outcome import Broken, Outcome, spells
from fencegate.verify.real.record import ARMS
from fencegate.verify.real.sides import Missing, resource_side, store_side
from fencegate.verify.real.storm import storm
from fencegate.verify.real.worker import Order

PATIENCE_S = 60.0
"""How long after the last fault a worker may take for its last round, on a machine that is busy with other things."""
GRACE_S = 45.0
KEYS = 2
LOOK_EVERY_S = 0.2
STORM_S = 10.0


@dataclass(slots=True)
class Live:
    """What is seen at this moment, for whoever watches."""

    outcome: Outcome
    operations: int = 0
    faults: int = 0
    stale_tried: int = 0
    stale_accepted: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a cell is made of; with the same plan the faults are the same."""

    store: str
    resource: str
    seed: int
    seconds: float
    entries: Entries = field(default_factory=Entries)
    storm_s: float = STORM_S
    """How long faults are begun in an episode."""


Watch = Callable[[Live], None]


async def run_cell(plan: Plan, folder: Path, outcome: Outcome, stop: asyncio.Event, watch: Watch) -> None:
    """Play it until its time is over; what broke it off is told in the outcome."""
    began_us = SYSTEM.monotonic_us()
    prefix = new_prefix()
    try:
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(store_side(plan.store, _made(folder / "store")))
            resource = await stack.enter_async_context(resource_side(plan.resource, _made(folder / "resource")))
            outcome.store, outcome.resource = store.venue.name, resource.venue.name
            found = Cast(prefix, folder, store, resource, f"{plan.seed}/{plan.store}/{plan.resource}", plan.entries)
            await stack.enter_async_context(traceless(found, outcome.remarks))
            await stack.enter_async_context(playing(found))
            await _Cell(plan, found, outcome, stop, watch).play(began_us)
    except* Exception as group:  # the other cells go on
        first = _first(group)
        outcome.error = first if isinstance(first, FencegateError) else None
        outcome.missing = isinstance(first, Missing)
        words = first.detail if isinstance(first, FencegateError) else f"{type(first).__name__}: {first}"
        outcome.failed = f"broke off: {words}" if outcome.episodes else words
    finally:
        outcome.took_s = (SYSTEM.monotonic_us() - began_us) / 1e6


class _Cell:
    def __init__(self, plan: Plan, found: Cast, outcome: Outcome, stop: asyncio.Event, watch: Watch) -> None:
        self._plan = plan
        self._cast = found
        self._outcome = outcome
        self._stop = stop
        self._watch = watch
        self._nemesis = Nemesis(found, stop)
        self._began_us = SYSTEM.monotonic_us()

    async def play(self, begun_us: int) -> None:
        """Until its time is over, of which starting took some; one that has proved nothing by then goes on for a
        while."""
        outcome, number = self._outcome, 0
        while not self._stop.is_set() and not outcome.broken:
            number += 1
            await self._episode(number)
            outcome.seconds = (SYSTEM.monotonic_us() - self._began_us) / 1e6
            about_s = (SYSTEM.monotonic_us() - begun_us) / 1e6 + self._plan.storm_s / 2
            if about_s >= self._plan.seconds + (0 if outcome.proved else GRACE_S):
                return

    async def _episode(self, number: int) -> None:
        found, nemesis = self._cast, self._nemesis
        keys = [f"e{number}{'abcdefgh'[each]}" for each in range(KEYS)]
        crossed = "" if found.settings("fenced").kind == "upstream" else f"e{number}{CROSSED}"
        found.keys += [*keys, f"e{number}{CROSSED}"]
        faults = storm(f"{found.seed}/{number}", nemesis.able(), self._plan.storm_s)
        first = len(nemesis.done)
        watching = asyncio.ensure_future(self._watching(number))
        try:
            found.tell(Order(number, keys, crossed))
            await nemesis.play(faults)
            died = await nemesis.settle()
            found.tell(Order(number, keys, crossed, last=True))
            await self._finished(number)
        finally:
            watching.cancel()
        for arm in ARMS:
            history = found.ledgers.of(number, arm).history
            history.final = await read_final(found.settings(arm), keys, found.resource.venue.database)
            history.faults = [done.words for done in nemesis.done[first:]]
            for each in (history, found.ledgers.of(number, arm).crossed):
                each.clocks_moved, each.commits_lost = nemesis.clocks_moved, nemesis.commits_lost
        self._judge(number, died, first)

    async def _finished(self, number: int) -> None:
        """Until each worker has had its last round in each arm; who hasn't in time is told of."""
        found = self._cast
        names = {found.client(worker) for worker in found.workers}
        until_us = SYSTEM.monotonic_us() + int(PATIENCE_S * 1e6)
        while True:
            found.listen()
            ledgers = {arm: found.ledgers.of(number, arm) for arm in ARMS}
            if all(names <= ledger.finished for ledger in ledgers.values()):
                return
            if SYSTEM.monotonic_us() > until_us:
                for ledger in ledgers.values():
                    ledger.history.unfinished = sorted(names - ledger.finished)
                return
            await asyncio.sleep(0.05)

    def _judge(self, number: int, died: list[Violation], first: int) -> None:
        outcome, ledgers, done = self._outcome, self._cast.ledgers, self._nemesis.done[first:]
        fenced = ledgers.of(number, "fenced").history
        outcome.episodes += 1
        outcome.spells += spells(done, fenced, self._began_us)
        outcome.latencies += [
            ((write.begun_us - self._began_us) / 1e6, (write.ended_us - write.begun_us) / 1e6)
            for write in fenced.writes
            if write.told == "done" and write.ended_us is not None
        ]
        now_s = (SYSTEM.monotonic_us() - self._began_us) / 1e6
        for arm in ARMS:
            ledger = ledgers.of(number, arm)
            outcome.operations += ledger.operations
            outcome.lost[arm].append((now_s, outcome.counts[arm].add(ledger)))
            violations, undecided = decided(ledger, fenced=arm == "fenced")
            if arm == "fenced":
                violations = died + violations
            if violations:
                words = [each.words for each in done]
                outcome.broken.append(Broken(number, arm, violations, ledger.history, words))
            if undecided is not None:
                outcome.remarks.append(f"episode {number}, {arm}: {undecided}: an order was not searched for")
        ledgers.forget(number)

    async def _watching(self, number: int) -> None:
        while True:
            self._cast.listen()
            ledgers = [self._cast.ledgers.of(number, arm) for arm in ARMS]
            outcome = self._outcome
            refused = sum(write.told == "refused" for write in ledgers[0].history.writes)
            self._watch(
                Live(
                    outcome,
                    outcome.operations + sum(ledger.operations for ledger in ledgers),
                    len(self._nemesis.done) + self._nemesis.under_way,
                    outcome.fenced.stale_writes + refused,
                    outcome.fenced.stale_accepted,
                )
            )
            await asyncio.sleep(LOOK_EVERY_S)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
