"""What is going to be run: which scenarios and uses, over which resources, in two arms each, under names of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fencegate.clock import SYSTEM
from fencegate.core.errors import InvalidInput
from fencegate.gateway.resources import ResourceSettings
from fencegate_demo.scenarios import SCENARIOS, Scenario
from fencegate_demo.trials.registry import USES
from fencegate_demo.trials.use import UseRun
from fencegate_lockservice.routes import without_secrets

Arm = Literal["fenced", "unfenced"]
EMBEDDED = ("rows", "objects")
KEY = ("counter",)


@dataclass(frozen=True, slots=True)
class Trial:
    """One arm: its own protected resource, which differs from the other arm's by nothing but the check."""

    scenario: Scenario
    arm: Arm
    settings: ResourceSettings

    @property
    def lock_key(self) -> str:
        return self.settings.guard_rule.lock_key(KEY)


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario over one resource: the same workload, fenced and unfenced."""

    scenario: Scenario
    resource: str
    """As the user named it, without secrets."""
    fenced: Trial
    unfenced: Trial

    @property
    def trials(self) -> tuple[Trial, Trial]:
        return self.fenced, self.unfenced


@dataclass(frozen=True, slots=True)
class Plan:
    """All runs. `prefix` starts every name that the demo uses, and nothing else's."""

    prefix: str
    store: str
    runs: Sequence[Run]
    uses: Sequence[UseRun] = ()

    @property
    def trials(self) -> list[Trial]:
        return [trial for run in self.runs for trial in run.trials]


def make_plan(scenario: str | None, store: str | None, resource: str | None, everything: bool, folder: Path) -> Plan:
    """What was asked for; `everything` is all that was not narrowed down. `folder` is for what is embedded."""
    prefix = f"demo-{SYSTEM.random_id(4)}"
    shown_store = "sqlite" if store is None else without_secrets(store)
    if scenario in USES:
        if resource is not None:
            detail = f"{scenario} brings a resource of its own; {', '.join(SCENARIOS)} run over one of yours"
            raise InvalidInput("resource", detail)
        return Plan(prefix, shown_store, (), [USES[scenario].run(prefix, folder)])
    scenarios = [_scenario(scenario)] if scenario or not everything else list(SCENARIOS.values())
    resources = [resource] if resource else list(EMBEDDED if everything else EMBEDDED[:1])
    runs = [_run(prefix, each, over, folder) for each in scenarios for over in resources]
    uses = USES.values() if everything and scenario is None and resource is None else ()
    return Plan(prefix, shown_store, runs, [use.run(prefix, folder) for use in uses])


def _scenario(name: str | None) -> Scenario:
    try:
        return SCENARIOS[name or "gc-pause"]
    except KeyError:
        raise InvalidInput("scenario", f"{name!r} is not one of {', '.join((*SCENARIOS, *USES))}") from None


def _run(prefix: str, scenario: Scenario, resource: str, folder: Path) -> Run:
    if resource not in EMBEDDED and "://" not in resource:
        raise InvalidInput("resource", f"{resource!r} is neither of {', '.join(EMBEDDED)}, nor a URL")
    fenced, unfenced = (
        Trial(scenario, arm, _settings(f"{prefix}-{scenario.name}-{_kind(resource)}-{arm}", resource, arm, folder))
        for arm in ("fenced", "unfenced")
    )
    return Run(scenario, without_secrets(resource), fenced, unfenced)


def _settings(name: str, resource: str, arm: str, folder: Path) -> ResourceSettings:
    url = {"rows": f"sqlite:///{folder / 'rows.db'}", "objects": f"file://{folder / 'objects'}"}.get(resource, resource)
    if url.startswith("file:"):  # a folder is one resource, so each arm has one of its own inside
        url = f"{url.rstrip('/')}/{name}"
    return ResourceSettings.of(name, {"url": url, "mode": "enforce" if arm == "fenced" else "shadow"})


def _kind(resource: str) -> str:
    return "objects" if resource == "objects" or resource.startswith("file:") else "rows"
