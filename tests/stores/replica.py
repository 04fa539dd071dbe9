"""A lock service process and its client, and a look into the store behind it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from fencegate.core.model import Waiter, lock_entry
from fencegate.engine import Engine
from fencegate_lockservice.stores import close_store, open_store
from tests.eventually import eventually
from tests.servers import Server
from tests.watching import Told, events

Json = dict[str, Any]
LONG_MS = 60_000
"""Longer than any test takes: no lease and no wait that ends explains what happened."""


@dataclass(frozen=True)
class Replica:
    """A lock service, and a client of it."""

    server: Server
    http: httpx.AsyncClient

    async def ask(self, lock_key: str, **body: Any) -> httpx.Response:
        body = {"ttlMillis": LONG_MS, **body}
        return await self.http.post(f"/v1/locks/{lock_key}/acquire", json=body)

    async def acquire(self, lock_key: str, **body: Any) -> Json:
        answer = await self.ask(lock_key, **body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def wait_for(self, lock_key: str, **body: Any) -> Json:
        return await self.acquire(lock_key, waitMillis=LONG_MS, **body)

    async def release(self, grant: Json) -> None:
        body = {"lockToken": grant["lockToken"]}
        answer = await self.http.post(f"/v1/locks/{grant['lockKey']}/release", json=body)
        assert answer.status_code == 200, answer.text

    async def waiters(self, lock_key: str) -> int:
        answer = await self.http.get(f"/v1/locks/{lock_key}")
        return int(answer.json().get("waiters", 0))

    async def until_waiting(self, lock_key: str, number: int) -> None:
        async def wait() -> bool:
            return await self.waiters(lock_key) == number

        await eventually(wait)


def until_acquired(stream: Iterator[Told], owner: str) -> list[Told]:
    """All events up to the grant of this owner."""
    found: list[Told] = []
    while not found or (found[-1].kind, found[-1].data["ownerId"]) != ("acquired", owner):
        found += events(stream, 1)
    return found


@asynccontextmanager
async def looking(store_url: str, lock_key: str) -> AsyncIterator[Callable[[], Awaitable[tuple[Waiter, ...]]]]:
    """Gives what tells the queue of a lock, as it is in the store."""
    store = await open_store(store_url)
    engine = Engine(store)

    async def queue() -> tuple[Waiter, ...]:
        record = (await engine.look(lock_key)).record
        assert record is not None
        return record.queue

    try:
        yield queue
    finally:
        await close_store(store)


@asynccontextmanager
async def demo_locks(store_url: str) -> AsyncIterator[Callable[[], Awaitable[set[str]]]]:
    """Gives what tells the locks of demos that are in the store now."""
    store = await open_store(store_url)

    async def found() -> set[str]:
        return {key for key, _ in await store.scan(lock_entry("demo-"), "", 1000)}

    try:
        yield found
    finally:
        await close_store(store)
