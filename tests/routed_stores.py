"""Lock services over several stores in memory, for the tests of routing."""

from contextlib import AsyncExitStack
from typing import Any

from fencegate.clock import SYSTEM
from fencegate.core.model import lock_entry
from fencegate.core.ports import Store
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.opening import LockService, open_service
from fencegate_lockservice.routes import Routes
from fencegate_lockservice.stores import close_store, open_store


class Stores:
    """Memory stores that stay while a test runs, by short names; and services over them."""

    def __init__(self, stack: AsyncExitStack, clock: Any) -> None:
        self._stack = stack
        self._run = SYSTEM.random_id(4)
        self.clock = clock

    def url(self, name: str) -> str:
        return f"memory://{self._run}-{name}"

    def routes(self, **stores: str) -> Routes:
        """`orders="a", all="b"`: by namespace, `all` for every other key."""
        return Routes.in_table({"*" if key == "all" else f"{key}:": self.url(name) for key, name in stores.items()})

    async def store(self, name: str) -> Store:
        store = await open_store(self.url(name), self.clock)
        self._stack.push_async_callback(close_store, store)
        return store

    async def over(self, routes: Routes) -> LockService:
        service = await open_service(routes, LockSettings(), self.clock)
        self.finally_close(service)
        return service

    def finally_close(self, service: LockService) -> None:
        self._stack.push_async_callback(service.close)

    async def serve(self, **stores: str) -> LockService:
        return await self.over(self.routes(**stores))


async def held_in(stores: Stores, name: str, lock_key: str) -> bool:
    store = await stores.store(name)
    return lock_entry(lock_key) in await store.load([lock_entry(lock_key)])
