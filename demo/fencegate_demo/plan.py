"""What is going to be run: which scenarios and uses, in which stores, over which resources, in two arms each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from fencegate.clock import SYSTEM
from fencegate.core.errors import InvalidInput
from fencegate.gateway.resources import ResourceSettings
from fencegate_demo.scenarios import SCENARIOS, Scenario
from fencegate_demo.startable.here import RESOURCES, STORES, Here
from fencegate_demo.trials.registry import USES
from fencegate_demo.trials.use import Use, UseRun
from fencegate_demo.venues import Mode, ResourceVenue, StoreVenue, embedded

Arm = Literal["fenced", "unfenced"]
EMBEDDED = ("rows", "objects")
KEY = ("counter",)


@dataclass(frozen=True, slots=True)
class Trial:
    """One arm: its own protected resource, which differs from the other arm's by nothing but the check."""

    scenario: Scenario
    arm: Arm
    settings: ResourceSettings
    over: ResourceVenue

    @property
    def lock_key(self) -> str:
        return self.settings.guard_rule.lock_key(KEY)


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario over one resource, with the locks in one store: the same workload, fenced and unfenced."""

    scenario: Scenario
    store: StoreVenue
    over: ResourceVenue
    fenced: Trial
    unfenced: Trial

    @property
    def resource(self) -> str:
        """As the user named it, without secrets."""
        return self.over.name

    @property
    def trials(self) -> tuple[Trial, Trial]:
        return self.fenced, self.unfenced


class NotRun(NamedTuple):
    """A line of the verdicts about what was not run, or did not come to an end."""

    what: str
    why: str
    bad: bool = False
    """Whether it was to run, and something went wrong."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All runs. `prefix` starts every name that the demo uses, and nothing else's."""

    prefix: str
    runs: Sequence[Run]
    uses: Sequence[UseRun] = ()
    store: StoreVenue = field(default_factory=lambda: StoreVenue("sqlite", ""))
    """The store of the uses."""
    not_run: Sequence[NotRun] = ()

    @property
    def trials(self) -> list[Trial]:
        return [trial for run in self.runs for trial in run.trials]

    @property
    def stores(self) -> list[StoreVenue]:
        return list({run.store.url: run.store for run in self.runs}.values() or [self.store])


class Wishes(NamedTuple):
    """What the command line asks for."""

    scenario: str | None = None
    store: str | None = None
    resource: str | None = None
    everything: bool = False
    only_embedded: bool = False

    def check(self) -> None:
        if self.scenario is not None and self.scenario not in (*SCENARIOS, *USES):
            raise InvalidInput("scenario", f"{self.scenario!r} is not one of {', '.join((*SCENARIOS, *USES))}")
        if self.scenario in USES and self.resource is not None:
            detail = f"{self.scenario} brings a resource of its own; {', '.join(SCENARIOS)} run over one of yours"
            raise InvalidInput("resource", detail)
        if self.store is not None and self.store not in ("sqlite", *STORES):
            StoreVenue.of(self.store)
        if self.resource is not None and self.resource not in (*EMBEDDED, *RESOURCES):
            ResourceVenue.of(self.resource)

    @property
    def stores(self) -> list[str]:
        """By name, or by URL; the first goes with every resource."""
        if self.store is not None:
            return [self.store]
        return ["sqlite", *STORES] if self.everything and not self.only_embedded else ["sqlite"]

    @property
    def resources(self) -> list[str]:
        """By name, or by URL; the first goes with every store."""
        if self.scenario in USES:
            return []
        if self.resource is not None:
            return [self.resource]
        if not self.everything:
            return [EMBEDDED[0]]
        return [*EMBEDDED, *(("service",) if self.only_embedded else RESOURCES)]


def make_plan(wishes: Wishes, folder: Path, here: Here | None = None) -> Plan:
    """What was asked for; `everything` is all that was not narrowed down. `folder` is for what is embedded, and `here`
    is what was started."""
    here = here or Here()
    prefix = f"demo-{SYSTEM.random_id(4)}"
    stores = _stores(wishes, here, folder)
    resources = _resources(wishes, here, folder)
    runs = [
        _run(prefix, scenario, store, over, folder)
        for scenario in _scenarios(wishes)
        for store, over in _pairs(list(stores.values()), list(resources.values()))
    ]
    missing = [NotRun(name, here.missing[name]) for name in _all_names(wishes) if name in here.missing]
    uses = [use.run(prefix, folder) for use in _uses(wishes)]
    return Plan(prefix, runs, uses, next(iter(stores.values()), StoreVenue.embedded(folder)), missing)


def _pairs(stores: Sequence[StoreVenue], resources: Sequence[ResourceVenue]) -> list[tuple[StoreVenue, ResourceVenue]]:
    """The first store with every resource, and every other store with the first resource: what a store gives to a
    resource is a number, so all pairs would only take longer."""
    if not stores or not resources:
        return []
    return [(stores[0], over) for over in resources] + [(store, resources[0]) for store in stores[1:]]


def _scenarios(wishes: Wishes) -> list[Scenario]:
    if wishes.scenario in USES:
        return []
    if wishes.scenario is None and wishes.everything:
        return list(SCENARIOS.values())
    return [SCENARIOS[wishes.scenario or "gc-pause"]]


def _uses(wishes: Wishes) -> list[Use]:
    if wishes.scenario is not None and wishes.scenario in USES:
        return [USES[wishes.scenario]]
    narrowed = wishes.scenario is not None or wishes.resource is not None
    return list(USES.values()) if wishes.everything and not narrowed else []


def _stores(wishes: Wishes, here: Here, folder: Path) -> dict[str, StoreVenue]:
    known = {"sqlite": StoreVenue.embedded(folder), **here.stores}
    return {
        name: known[name] if name in known else StoreVenue.of(name)
        for name in wishes.stores
        if name not in here.missing
    }


def _resources(wishes: Wishes, here: Here, folder: Path) -> dict[str, ResourceVenue]:
    known: Mapping[str, ResourceVenue] = {**embedded(folder), **here.resources}
    return {
        name: known[name] if name in known else ResourceVenue.of(name)
        for name in wishes.resources
        if name not in here.missing
    }


def _run(prefix: str, scenario: Scenario, store: StoreVenue, over: ResourceVenue, folder: Path) -> Run:
    place = over.slug if store.name == "sqlite" else f"{over.slug}-{store.slug}"
    name = f"{prefix}-{scenario.name}-{place}"
    without: Mode = "enforce" if scenario.is_about_claims else "shadow"
    fenced = Trial(scenario, "fenced", over.settings(f"{name}-fenced", "enforce", folder), over)
    unfenced = Trial(scenario, "unfenced", over.settings(f"{name}-unfenced", without, folder), over)
    return Run(scenario, store, over, fenced, unfenced)


def _all_names(wishes: Wishes) -> list[str]:
    return list(dict.fromkeys([*wishes.stores, *wishes.resources]))
