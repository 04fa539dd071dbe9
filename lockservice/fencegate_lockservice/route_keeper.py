"""Keeps the routes that a server runs by in its stores, and notices when they were changed under it.

A store that was emptied remembers nothing, and would be given a new identity by whoever comes next; so a server that
runs has it remember again what it did. Routes that were changed on purpose while a server runs leave it without ground
to stand on: it has to stop.
"""

import asyncio
import logging
from collections.abc import Callable

from fencegate.clock import Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Ambiguous, Conflict, Store, TooLate, Unavailable
from fencegate_lockservice.route_record import Record, put, remembered
from fencegate_lockservice.routes import without_secrets

LOOK_EVERY_S = 10.0

log = logging.getLogger("fencegate.routes")


async def keep_routes(url: str, store: Store, ours: Record, clock: Clock, changed: Callable[[str], None]) -> None:
    """Until the store remembers other routes than ours; then `changed` is told what happened."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S * (0.5 + clock.jitter()))
        try:
            ours = await _look(store, ours, clock)
        except UnsafeConfiguration as error:
            changed(f"{without_secrets(url)}: {error.detail}")
            return
        except (Unavailable, Conflict, TooLate, Ambiguous) as error:  # the next look will tell
            log.debug("the routes in %s could not be looked at: %s", store.name, error)


async def _look(store: Store, ours: Record, clock: Clock) -> Record:
    """What it remembers from now on."""
    found = await remembered(store)
    if found.record is None or not found.record.routes:  # nobody serves by what has no routes yet
        log.warning("the store %s had lost what it remembers of its routes; it was told again", store.name)
        await put(store, found, ours, clock)
        return ours
    if _from_here(found.record) != _from_here(ours):
        raise UnsafeConfiguration("the routes of this store were changed while this server ran by the old ones")
    return found.record


def _from_here(record: Record) -> dict[str, str]:
    """The routes as this store sees them. Its own identity doesn't matter: who came first after it was emptied has
    given it another, and every key is where it was."""
    return {prefix: "here" if store == record.store else store for prefix, store in record.routes.items()}
