"""What `fencegate doctor` looks at: settings, each lock store and each resource, for what makes them unsafe."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import (
    FencegateError,
    InvalidInput,
    ResourceUnavailable,
    StoreUnavailable,
    UnsafeConfiguration,
)
from fencegate.core.ports import Capabilities, Finding, Guarantee, Resource, Store, Unavailable
from fencegate.gateway.resources import FolderSettings, ResourceSettings, SqlSettings, UpstreamSettings, build
from fencegate.settings import Settings
from fencegate_lockservice.opening import reach
from fencegate_lockservice.route_record import ENTRY, Remembered, check, check_distinct, remembered, table_of
from fencegate_lockservice.routes import EVERYTHING, Routes, without_secrets
from fencegate_lockservice.stores import check_supported, close_store

Level = Literal["fine", "warning", "unsafe", "unreachable"]
LEVELS: tuple[Level, ...] = ("fine", "warning", "unsafe", "unreachable")
ROUND_TRIPS = 5
REACH_WITHIN_S = 30.0
ANSWER_WITHIN_S = 10.0

NOT_THERE_YET = "is not there yet; `fencegate serve` makes it"
_SOME_LOCK = "fencegate-doctor"
"""The lock key of a fence that nobody raises."""
_CANT: Mapping[str, str] = {
    "clock": "has no clock for leases: one ends when a replica has watched it unchanged for long enough",
    "several_keys": "commits one lock at a time: no multi, no sessions, no hierarchical locks, no history",
    "several_processes": "is for one server process",
    "durable": "forgets everything when its process ends",
    "forgets": "keeps the records of idle locks for good",
    "replays": "can't read its change log again: a watch that comes back begins with a reset, and there is no history",
}


@dataclass(slots=True)
class Examined:
    """What was found of one thing: a store, a resource, or the settings."""

    kind: str
    name: str
    what_for: str = ""
    """Which locks a store keeps, or which guard a resource has."""
    facts: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unreachable: str | None = None

    @property
    def level(self) -> Level:
        if self.unreachable is not None:
            return "unreachable"
        return max((finding.level for finding in self.findings), key=LEVELS.index, default="fine")

    def found(self, level: Literal["fine", "warning", "unsafe"], what: str, advice: str = "") -> None:
        self.findings.append(Finding(level, what, advice))

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        found["findings"] = [finding._asdict() for finding in self.findings]
        found["for"] = found.pop("what_for")
        return {"level": self.level, **found}


def worst(examined: Sequence[Examined]) -> Level:
    return max((each.level for each in examined), key=LEVELS.index, default="fine")


async def examine(settings: Settings, clock: Clock = SYSTEM) -> list[Examined]:
    """Everything that these settings name. What is embedded and not there is not made; the rest is opened."""
    found = [_settings(settings)]
    if settings.role != "gateway":
        found += await _stores(settings.store, clock)
    if settings.role != "lockservice":
        found += await asyncio.gather(*(_resource(resource, clock) for resource in settings.resources.values()))
    return found


def _settings(settings: Settings) -> Examined:
    examined = Examined("settings", f"role {settings.role}", f"listening on {settings.host}:{settings.port}")
    if settings.host not in ("127.0.0.1", "::1", "localhost"):
        examined.found(
            "warning",
            f"{settings.host} can be reached from other machines, and whoever reaches it may take and force any lock",
            "let only those reach it who may: a private network, or a proxy that asks who they are",
        )
    if settings.locks.allow_unsafe_store:
        examined.found("warning", "allow_unsafe_store is set: unsafe stores are used all the same", "unset it")
    if "" not in settings.store.urls:
        examined.found("warning", "no store is for '*': other lock keys are refused, and there are no sessions")
    if not examined.findings:
        examined.found("fine", "nothing unsafe in them")
    return examined


# --- stores ---


async def _stores(routes: Routes, clock: Clock) -> list[Examined]:
    examined = {}
    known: dict[str, Remembered] = {}
    for url in routes.stores:
        prefixes = ", ".join(prefix or EVERYTHING for prefix in routes.prefixes_of(url))
        examined[url] = Examined("store", without_secrets(url), "every lock" if prefixes == EVERYTHING else prefixes)
        found = await _store(url, examined[url], clock)
        if found is not None:
            known[url] = found
    if len(known) == len(examined) and all(each.record is not None for each in known.values()):
        _compare(examined, known, routes)
    return list(examined.values())


def _compare(examined: Mapping[str, Examined], known: Mapping[str, Remembered], routes: Routes) -> None:
    try:
        check_distinct(known)
        check(known, table_of(known, routes))
    except UnsafeConfiguration as error:
        next(iter(examined.values())).found("unsafe", error.detail)
        return
    for each in examined.values():
        each.found("fine", "remembers the routes that are configured")


async def _store(url: str, examined: Examined, clock: Clock) -> Remembered | None:
    """What it remembers of its routes; None when that can't be known."""
    try:
        check_supported(url)
        if _missing_file(url):
            examined.found("fine", NOT_THERE_YET)
            return None
        async with asyncio.timeout(REACH_WITHIN_S):
            began_us = clock.monotonic_us()
            store = await reach(url, clock)
            examined.facts["reached in"] = f"{(clock.monotonic_us() - began_us) / 1000:.1f} ms"
    except TimeoutError:
        examined.unreachable = f"it did not answer within {REACH_WITHIN_S:g} s"
        return None
    except StoreUnavailable as error:
        examined.unreachable = error.detail
        return None
    except UnsafeConfiguration as error:
        served = "in use by another process" in error.detail
        examined.found("warning" if served else "unsafe", error.detail)
        return None
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await _opened(store, examined, clock)
    except (Unavailable, TimeoutError) as error:
        examined.unreachable = str(error) or f"it did not answer within {ANSWER_WITHIN_S:g} s"
        return None
    except UnsafeConfiguration as error:
        examined.found("unsafe", error.detail)
        return None
    finally:
        await close_store(store)


async def _opened(store: Store, examined: Examined, clock: Clock) -> Remembered:
    trips = []
    for _ in range(ROUND_TRIPS):
        began_us = clock.monotonic_us()
        await store.load([ENTRY])
        trips.append(clock.monotonic_us() - began_us)
    examined.facts["round trip"] = f"{median(trips) / 1000:.2f} ms"
    _look_at_clock(store, examined, clock)
    examined.findings += await store.inspect()
    examined.facts |= _limits_of(store.capabilities)
    return await remembered(store)


def _look_at_clock(store: Store, examined: Examined, clock: Clock) -> None:
    try:
        now = store.now()
    except Unavailable as error:
        examined.found("unsafe", str(error), "set both clocks right; nothing is granted before")
        return
    if now is not None:
        offset_us = (now.earliest + now.latest) // 2 - clock.now_us()
        width_us = (now.latest - now.earliest) / 2
        examined.facts["clock"] = f"{offset_us / 1000:+.1f} ms from ours (± {width_us / 1000:.1f} ms)"


def _limits_of(able: Capabilities) -> dict[str, str]:
    cant = [text for name, text in _CANT.items() if not getattr(able, name)]
    facts = {"limits:": "; ".join(cant)} if cant else {}
    return facts | ({"notes:": "; ".join(able.notes)} if able.notes else {})


def _missing_file(url: str) -> bool:
    path = Path(url.removeprefix("sqlite:///").partition("?")[0])
    return url.startswith("sqlite:///") and not path.exists()


# --- resources ---


def _guards(settings: ResourceSettings) -> str:
    guards = settings.guards if isinstance(settings, UpstreamSettings) else (settings.guard,)
    return f"guard {', '.join(guards)}"


async def _resource(settings: ResourceSettings, clock: Clock) -> Examined:
    examined = Examined("resource", f"{settings.name}  {without_secrets(settings.url)}", _guards(settings))
    if settings.origin:
        examined.facts["configured in"] = settings.origin
    if _missing_file(settings.url) or (isinstance(settings, FolderSettings) and not settings.folder.exists()):
        examined.found("fine", NOT_THERE_YET)
        _look_at_mode(settings, examined)
        return examined
    try:
        resource = build(settings)
    except UnsafeConfiguration as error:
        examined.found("unsafe", error.detail)
        return examined
    try:
        async with asyncio.timeout(REACH_WITHIN_S):
            await _opened_resource(settings, resource, examined, clock)
    except UnsafeConfiguration as error:
        examined.found("unsafe", error.detail)
    except (ResourceUnavailable, TimeoutError) as error:
        detail = error.detail if isinstance(error, FencegateError) else f"no answer within {REACH_WITHIN_S:g} s"
        examined.unreachable = detail
    finally:
        with suppress(FencegateError):
            await resource.close()
    return examined


async def _opened_resource(settings: ResourceSettings, resource: Resource, examined: Examined, clock: Clock) -> None:
    """It is opened as by `serve`, with all that this checks: durability, eviction, conditions that are honoured."""
    began_us = clock.monotonic_us()
    if isinstance(settings, UpstreamSettings):
        await settings.reach()
        if _missing_file(settings.fence or ""):
            examined.facts["its fence"] = NOT_THERE_YET
            _look_at_guarantee(settings, examined, resource.guarantee)
            return
    await resource.open()
    examined.facts["reached in"] = f"{(clock.monotonic_us() - began_us) / 1000:.1f} ms"
    trips = []
    with suppress(InvalidInput):  # a key column of a kind of which we know no key
        for _ in range(ROUND_TRIPS):
            began_us = clock.monotonic_us()
            await resource.mark(_some_lock(settings))
            trips.append(clock.monotonic_us() - began_us)
        examined.facts["round trip"] = f"{median(trips) / 1000:.2f} ms"
    _look_at_guarantee(settings, examined, resource.guarantee)


def _some_lock(settings: ResourceSettings) -> str:
    if isinstance(settings, SqlSettings) and settings.token_column is not None:  # only locks of rows have a place there
        return settings.guard_rule.lock_key(("1",) * len(settings.columns))
    return _SOME_LOCK


def _look_at_guarantee(settings: ResourceSettings, examined: Examined, guarantee: Guarantee) -> None:
    if guarantee.kind == "atomic":
        level: Literal["fine", "warning"] = "warning" if "WARNING" in guarantee.durability else "fine"
        examined.found(level, f"check and write are one step; marks: {guarantee.durability}")
    else:
        examined.found("warning", f"best effort: a stale write may slip through; marks: {guarantee.durability}")
    if isinstance(settings, UpstreamSettings):
        for path, before in settings.unreached():
            what = f"the route {path!r} is never reached, nor its guard: {before!r} before it takes all of its paths"
            examined.found("warning", what, "put it first, or leave it out")
    _look_at_mode(settings, examined)
    if not settings.issuer:
        examined.facts["tokens"] = "any issuer's (issuer = true refuses those far beyond now)"


def _look_at_mode(settings: ResourceSettings, examined: Examined) -> None:
    if settings.mode == "shadow":
        examined.found("warning", "shadow mode: stale writes are counted, not refused", "mode = 'enforce' refuses them")
