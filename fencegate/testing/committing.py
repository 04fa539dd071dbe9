"""Commits and change logs in few words, for the suites of stores."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from fencegate.clock import SYSTEM
from fencegate.core.ports import Change, Changes, LogEntry, Store

OpenStore = Callable[[], Awaitable[Store]]
"""Opens the same data again at each call."""

MINUTE_US = 60_000_000


def by(store: Store, within_us: int = MINUTE_US) -> int:
    """A `not_after` that leaves enough time."""
    now = store.now()
    return (now.latest if now is not None else SYSTEM.now_us()) + within_us


def is_past(store: Store, time_us: int) -> bool:
    """Whether that time is over for the store, however wide the interval in which its clock is known to be."""
    now = store.now()
    return (now.earliest if now is not None else SYSTEM.now_us()) > time_us


def put(key: str, expected: str | None = None, value: bytes = b"{}", keep_until_us: int | None = None) -> Change:
    return Change(key, expected, SYSTEM.random_id(), value, keep_until_us=keep_until_us)


async def write(store: Store, *changes: Change, events: int = 1) -> None:
    """Commit, and log so many events."""
    log = [(changes[0].key, b'{"n":%d}' % number) for number in range(events)]
    await store.commit(changes, log, by(store))


async def gather_log(stream: AsyncIterator[Changes], count: int) -> list[LogEntry]:
    """The next `count` lines; fails when the past is gone, or they don't come."""
    found: list[LogEntry] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            changes = await anext(stream)
            assert not changes.reset
            found += changes.entries
            assert not changes.entries or changes.revision == changes.entries[-1].revision
    return found


def in_thread(work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    """Run `work` in an event loop of its own, in another thread."""
    return asyncio.to_thread(asyncio.run, work)
