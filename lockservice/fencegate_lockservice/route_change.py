"""Changing the routes on purpose: what moves to another store must be free, and its tokens must lie in the past.

Nobody may serve meanwhile: a replica that runs can't be seen from here.
"""

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, StoreUnavailable, UnsafeConfiguration
from fencegate.core.machine import live_holds
from fencegate.core.ports import Ambiguous, Conflict, Store, TooLate, Unavailable
from fencegate.engine import Engine
from fencegate_lockservice.route_record import Remembered, Stores, identified, table_of, unknown_stores, write
from fencegate_lockservice.routes import EVERYTHING, Routes, without_secrets

PAGE = 500
MARGIN_US = 10_000_000
"""As far as two clocks may be apart before replicas refuse to grant."""
WATCH_AT_MOST_S = 300.0
MAX_NAMED = 5


class RoutesNotAccepted(FencegateError):
    """The routes can't be changed now; the detail says why, and what to do."""

    code = "ROUTES_NOT_ACCEPTED"


class _Misplaced(NamedTuple):
    """What a store has of locks that will belong to another."""

    held: list[str]
    highest: int
    until_us: int = 0
    """When the last of those that are held runs out, as far as is known."""


async def accept(
    stores: Stores, routes: Routes, clock: Clock, *, retired: Stores | None = None, gone: Collection[str] = ()
) -> dict[str, str]:
    """Have all stores remember these routes; gives the table that they remember then.

    `retired` are stores that had routes and lose them all; `gone` are identities of stores that are no more.
    """
    # Those that lose their routes are told first: were this killed in between, nobody can start by the old routes while
    # others do by the new ones.
    everything = {**(retired or {}), **stores}
    try:
        found = await identified(everything, clock)
        _check_known(found, gone)
        table = table_of({url: found[url] for url in stores}, routes)
        ids = {url: each.record.store for url, each in found.items() if each.record is not None}
        for url, store in everything.items():
            misplaced = await _watched(Engine(store, clock), ids[url], table)
            _check_free(url, misplaced)
            for other in stores.values():
                _check_past(url, misplaced, other, clock)
        await write(everything, table, clock)
    except (Conflict, TooLate, Ambiguous):
        raise RoutesNotAccepted("somebody else uses these stores: stop every replica, then try again") from None
    except Unavailable as error:
        raise StoreUnavailable(f"a store can't be reached: {error}") from None
    return table


def _check_known(found: dict[str, Remembered], gone: Collection[str]) -> None:
    """A store that had a route and isn't looked at may have locks that are held."""
    unknown = unknown_stores(found, gone)
    if unknown:
        raise UnsafeConfiguration(
            f"routes lead to stores that were not given: {', '.join(sorted(unknown))}. Locks may be held there: name "
            "each by --retired URL, or by --gone ID if it is no more and nobody can hold a lock in it"
        )


async def _watched(engine: Engine, store: str, table: dict[str, str]) -> _Misplaced:
    """Where the store has no clock, what ran out long ago looks as if it were held until it was watched."""
    misplaced = await _misplaced(engine, store, table)
    if misplaced.held and not engine.store.capabilities.clock:
        wait_s = (misplaced.until_us - engine.now().earliest) / 1_000_000
        if wait_s <= WATCH_AT_MOST_S:
            await asyncio.sleep(max(0.0, wait_s) + 0.1)
            misplaced = await _misplaced(engine, store, table)
    return misplaced


async def _misplaced(engine: Engine, store: str, table: dict[str, str]) -> _Misplaced:
    held: list[str] = []
    highest, until_us, after = 0, 0, ""
    while page := await engine.scan("", after, PAGE):
        after = page[-1][0]
        moved = [(lock_key, record) for lock_key, record in page if _home(lock_key, table) != store]
        sessions = await engine.sessions([record for _, record in moved])
        now = engine.now()
        for lock_key, record in moved:
            if holds := live_holds(record, now, sessions):
                held.append(lock_key)
                until_us = max([until_us, *(hold.expires_us for hold in holds)])
        highest = max([highest, *(record.last_token for _, record in moved)])
    return _Misplaced(held, highest, until_us)


def _home(lock_key: str, table: dict[str, str]) -> str | None:
    """The identity of its store; None when it has none any more, and so can't be held twice."""
    fitting = [prefix for prefix in table if prefix != EVERYTHING and lock_key.startswith(prefix)]
    return table[max(fitting, key=len)] if fitting else table.get(EVERYTHING)


def _check_free(url: str, misplaced: _Misplaced) -> None:
    if misplaced.held:
        named = ", ".join(map(repr, misplaced.held[:MAX_NAMED]))
        more = f" and {len(misplaced.held) - MAX_NAMED} more" if len(misplaced.held) > MAX_NAMED else ""
        raise RoutesNotAccepted(
            f"{without_secrets(url)}: {named}{more} would move to another store while it is held. Wait until it is "
            "released or has run out, or take it with `fencegate force-release` by the routes that were; then try again"
        )


def _check_past(url: str, misplaced: _Misplaced, other: Store, clock: Clock) -> None:
    """A token is at least the time of its grant: so all that come will be above these, whatever their store."""
    now = other.now()
    now_us = clock.now_us() if now is None else now.earliest
    ahead_us = misplaced.highest + MARGIN_US - now_us
    if ahead_us > 0:
        raise RoutesNotAccepted(
            f"{without_secrets(url)}: the tokens of locks that move are not yet past by the clock of {other.name}; "
            f"try again in {ahead_us // 1_000_000 + 1} seconds"
        )
