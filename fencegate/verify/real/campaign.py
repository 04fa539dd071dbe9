"""The campaign over real processes: which cells there are, one after the other, each for its share of the time."""

import asyncio
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fencegate.core.errors import InvalidInput
from fencegate.verify.real.cast import Entries
from fencegate.verify.real.cell import STORM_S, Live, Plan, run_cell
from fencegate.verify.real.outcome import Outcome
from fencegate_demo.startable.here import RESOURCES, STORES
from fencegate_demo.venues import ResourceVenue, StoreVenue

EMBEDDED = ("rows", "objects")
SHORT_OF_TIME_S = 15.0
SHORT_STORM_S = 6.0


@dataclass(frozen=True, slots=True)
class Cells:
    """What the command line asks for."""

    store: str | None = None
    resource: str | None = None
    everything: bool = False

    def check(self) -> None:
        """Bad usage is said before anything is begun."""
        if self.store is not None and self.store not in ("sqlite", *STORES):
            if "://" not in self.store:
                raise InvalidInput("store", f"{self.store!r} is neither sqlite, {', '.join(STORES)} nor a URL")
            StoreVenue.of(self.store)
            if self.store.startswith("memory:"):
                raise InvalidInput("store", "what is in memory can't be shared by processes")
        if self.resource is not None and self.resource not in (*EMBEDDED, *RESOURCES):
            if "://" not in self.resource:
                known = ", ".join((*EMBEDDED, *RESOURCES))
                raise InvalidInput("resource", f"{self.resource!r} is neither one of {known}, nor a URL")
            ResourceVenue.of(self.resource)

    @property
    def asked(self) -> bool:
        return self.everything or self.store is not None or self.resource is not None

    def pairs(self) -> list[tuple[str, str]]:
        """Every resource with the first store, and every other store with the first resource: what a store gives to a
        resource is a number, so all pairs would only take longer."""
        stores = [self.store] if self.store else ["sqlite", *(STORES if self.everything else ())]
        if self.resource:
            resources = [self.resource]
        elif self.store and not self.everything:
            resources = ["rows"]
        else:
            resources = [*EMBEDDED, *(RESOURCES if self.everything else ())]
        return [(stores[0], over) for over in resources] + [(store, resources[0]) for store in stores[1:]]


@dataclass(slots=True)
class Campaign:
    """What came of all cells."""

    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: bool = False


Watch = Callable[[Plan, Live], None]


def run_cells(plans: Sequence[Plan], watch: Watch) -> Campaign:
    """One cell after the other. The first Ctrl-C lets the episode under way come to its end, the second one doesn't."""
    campaign = Campaign()

    async def played(folder: Path) -> None:
        stop = asyncio.Event()
        task = asyncio.current_task()
        assert task is not None

        def interrupted() -> None:
            if stop.is_set():
                task.cancel()
            campaign.interrupted = True
            stop.set()

        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, interrupted)
        for number, plan in enumerate(plans):
            if stop.is_set():
                return
            outcome = Outcome(plan.store, plan.resource, asked_s=plan.seconds)
            campaign.outcomes.append(outcome)
            await run_cell(plan, folder / str(number), outcome, stop, partial(watch, plan))

    with tempfile.TemporaryDirectory(prefix="fencegate-verify-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user, who reads the clock that is moved
        with suppress(asyncio.CancelledError):
            asyncio.run(played(Path(folder)))
    return campaign


def plans(cells: Cells, seconds: float, seed: int, entries: Entries) -> list[Plan]:
    """The plan of each cell; where there is little time for each, an episode is short. What nobody asked for is begun
    only if there is time for an episode of it."""
    pairs = cells.pairs()
    if not cells.asked:
        pairs = pairs[: max(1, int(seconds / SHORT_STORM_S))]
    each_s = seconds / len(pairs)
    storm_s = STORM_S if each_s >= SHORT_OF_TIME_S else SHORT_STORM_S
    return [Plan(store, resource, seed, each_s, entries, storm_s) for store, resource in pairs]
