"""Leaving nothing behind in a user's own lock store, or saying what stays where a store never removes anything."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fencegate.clock import SYSTEM
from fencegate.core.errors import StoreUnavailable
from fencegate.core.model import DEFAULT_LIMITS, DONE, LOCKS
from fencegate.core.ports import Ambiguous, Change, Conflict, Entry, Store, TooLate, Unavailable
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.history_rows import HISTORY
from fencegate_lockservice.history_writer import HistoryWriter
from fencegate_lockservice.opening import reach, told
from fencegate_lockservice.route_record import ENTRY
from fencegate_lockservice.stores import close_store

PAGE = 500
AT_ONCE = 50
TRIES = 10
COMMIT_WITHIN_US = 10_000_000


@asynccontextmanager
async def traceless_store(url: str, prefix: str, remarks: list[str]) -> AsyncIterator[None]:
    """Around whatever uses names with `prefix` in them; `remarks` are for the user."""
    store = await reach(url)
    try:
        new = not await store.load([ENTRY])  # what it is; every lock service writes that
        remarks += [f"the store: {told(each)}" for each in await store.inspect() if each.level == "unsafe"]
    finally:
        await close_store(store)  # an embedded one is for one process at a time
    try:
        yield
    finally:
        store = await reach(url)
        try:
            await _clean(store, prefix, remarks, new=new)
        finally:
            await close_store(store)


async def _clean(store: Store, prefix: str, remarks: list[str], *, new: bool) -> None:
    if not store.capabilities.forgets:
        stay = f"those of the demo stay, with {prefix} in their names"
        remarks.append(f"the store {store.name} never removes the record of a lock: {stay}")
        return
    for attempt in range(TRIES):
        try:
            # The change log stays, so what it tells of us is made history now, and how far it was read stays too: else
            # whoever comes next would write down our locks.
            await HistoryWriter(store, SYSTEM, LockSettings().history_us).catch_up()
            await _forget(store, prefix)
            if new:
                await _remove(store, list((await store.load([ENTRY])).items()))
                remarks.append(f"the store {store.name} itself stays: its tables or keys, empty, and its change log")
            if not store.capabilities.lists_settled:
                minutes = DEFAULT_LIMITS.retention_us // 60_000_000
                remarks.append(f"what became of the demo's requests goes from the store within {minutes} minutes")
            return
        except (Conflict, TooLate, Ambiguous):  # somebody cleans up too, or nobody knows: look again
            await asyncio.sleep(0.05 * 2**attempt)
        except Unavailable as error:
            raise StoreUnavailable(f"what the demo wrote to the store could not be removed: {error}") from None
    remarks.append(f"not all that the demo wrote to the store could be removed; its names have {prefix} in them")


async def _forget(store: Store, prefix: str) -> None:
    """Remove the records of our locks and their history. Tokens needn't be remembered: these names never come again."""
    for entries in (LOCKS, DONE, HISTORY):
        after = ""
        while page := await store.scan(entries, after, PAGE):
            after = page[-1][0]
            await _remove(store, [(key, entry) for key, entry in page if f"{prefix}-" in key])


async def _remove(store: Store, ours: Sequence[tuple[str, Entry]]) -> None:
    now = store.now()
    not_after_us = (SYSTEM.now_us() if now is None else now.latest) + COMMIT_WITHIN_US
    for start in range(0, len(ours), AT_ONCE):
        changes = [Change(key, entry.version) for key, entry in ours[start : start + AT_ONCE]]
        await store.commit(changes, (), not_after_us)
