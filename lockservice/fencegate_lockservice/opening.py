"""Opening stores for the lock calls: reached, looked at for what makes them unsafe, and agreed on where each key is."""

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import StoreUnavailable, UnsafeConfiguration
from fencegate.core.model import Limits
from fencegate.core.ports import Finding, Store, Unavailable
from fencegate.engine import Engine
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.over_store import StoreApi
from fencegate_lockservice.route_keeper import keep_routes
from fencegate_lockservice.route_record import agree
from fencegate_lockservice.routed import RoutedApi
from fencegate_lockservice.routes import Routes, without_secrets
from fencegate_lockservice.stores import close_store, open_store

LockService = StoreApi | RoutedApi
"""All lock calls, over one store or over several."""

log = logging.getLogger("fencegate.store")

_said: set[str] = set()
MAX_SAID = 1000


async def open_service(
    routes: Routes, settings: LockSettings, clock: Clock = SYSTEM, changed: Callable[[str], None] | None = None
) -> LockService:
    """All stores of these routes, each with an engine, in this event loop; or none.

    Whoever stays for long gives `changed`, which is called when the routes are changed under it: then it has to stop.
    StoreUnavailable when one can't be reached, UnsafeConfiguration when one is not safe to keep locks in.
    """
    async with AsyncExitStack() as opened:
        stores: dict[str, Store] = {}
        for url in routes.stores:
            stores[url] = await reach(url, clock)
            opened.push_async_callback(close_store, stores[url])
            await _look_at(url, stores[url], settings.allow_unsafe_store)
        records = await agree(stores, routes, clock)
        limits = Limits(max_waiters=settings.max_waiters)
        engines = {url: _engine(store, clock, limits, stays=changed is not None) for url, store in stores.items()}
        for engine in engines.values():
            opened.push_async_callback(engine.close)
            await engine.start()
        opened.pop_all()  # the API closes both
    apis = {url: StoreApi(engine, settings) for url, engine in engines.items()}
    if changed is not None:
        for url, api in apis.items():
            api.keep(keep_routes(url, stores[url], records[url], clock, changed))
    return apis[routes.only] if routes.only is not None else RoutedApi(routes, apis)


def _engine(store: Store, clock: Clock, limits: Limits, *, stays: bool) -> Engine:
    """An embedded store has nobody else to look after it."""
    return Engine(store, clock, limits, visiting=not stays and store.capabilities.several_processes)


async def reach(url: str, clock: Clock = SYSTEM) -> Store:
    """The store behind the URL, open; StoreUnavailable when it can't be reached."""
    try:
        return await open_store(url, clock)
    except Unavailable as error:
        raise StoreUnavailable(f"the lock store {without_secrets(url)} can't be reached: {error}") from None


async def _look_at(url: str, store: Store, allow_unsafe: bool) -> None:
    """Warn of what was found; UnsafeConfiguration when it must not be used as it is."""
    name = without_secrets(url)
    try:
        findings = await store.inspect()
    except Unavailable as error:
        raise StoreUnavailable(f"the lock store {name} can't be looked at: {error}") from None
    unsafe = [finding for finding in findings if finding.level == "unsafe"]
    if unsafe and not allow_unsafe:
        raise UnsafeConfiguration(
            f"the lock store {name} is not safe: {'; '.join(map(told, unsafe))}. To use it all the same, set "
            "allow_unsafe_store = true in [locks], or FENCEGATE_ALLOW_UNSAFE_STORE=1"
        )
    for finding in findings:
        if finding.level != "fine":
            _say_once(f"the lock store {name}: {told(finding)}")


def _say_once(text: str) -> None:
    """A client opens a store for each event loop; once is enough."""
    if text not in _said and len(_said) < MAX_SAID:
        _said.add(text)
        log.warning("%s", text)


def told(finding: Finding) -> str:
    return f"{finding.what} ({finding.advice})" if finding.advice else finding.what
