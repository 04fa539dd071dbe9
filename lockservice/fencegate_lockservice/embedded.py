"""The lock calls in this process, without a server: an engine over the store that a URL names."""

from fencegate.clock import SYSTEM, Clock
from fencegate.core.ports import Store
from fencegate.engine import Engine
from fencegate_lockservice.api import LockApi
from fencegate_lockservice.stores import close_store, open_store


class EmbeddedApi(LockApi):
    """A `LockApi` that owns its engine, and its share in the store."""

    def __init__(self, engine: Engine, store: Store) -> None:
        super().__init__(engine)
        self._store = store

    async def close(self) -> None:
        await super().close()
        await close_store(self._store)


async def open_api(url: str, clock: Clock = SYSTEM) -> LockApi:
    """Open the store behind `url` (shared within the process) and an engine of its own over it, in this event loop."""
    store = open_store(url, clock)
    engine = Engine(store, clock)
    await engine.start()
    return EmbeddedApi(engine, store)
