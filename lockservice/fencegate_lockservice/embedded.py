"""The lock calls in this process, without a server: an engine over the store that a URL names."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from fencegate.clock import SYSTEM, Clock
from fencegate.core.model import Limits
from fencegate.core.ports import Store
from fencegate.engine import Engine
from fencegate.env import setting
from fencegate_lockservice.answers import Answer
from fencegate_lockservice.api import LockApi
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.history import History
from fencegate_lockservice.stores import close_store, open_store
from fencegate_lockservice.watch import Wanted, Watch


class EmbeddedApi(LockApi):
    """A `LockApi` that owns its engine, and its share in the store."""

    def __init__(self, engine: Engine, store: Store, settings: LockSettings) -> None:
        super().__init__(engine, settings.lock_delay_us)
        self._store = store
        self._history = History.over(engine, settings.history_us)

    async def watch(self, query: Mapping[str, str]) -> AsyncGenerator[tuple[int, str, bytes], None]:
        """What `/v1/watch` tells: the id, kind and data of each event; no kind when only the place has moved."""
        async with aclosing(Watch(self._store).follow(Wanted.of(query))) as batches:
            async for batch in batches:
                for told in batch.told:
                    yield told.id, told.kind, told.data
                yield batch.place, "", b""

    async def history(self, lock_key: str, *, limit: int = 100, cursor: str = "") -> Answer:
        """What `/v1/history` tells. Without a server it is written when it is read, from the store's change log: so it
        is whole as long as that reaches back to the last time."""
        return await self._history.of(lock_key, limit=limit, cursor=cursor)

    async def close(self) -> None:
        await super().close()
        await close_store(self._store)


async def open_api(url: str, clock: Clock = SYSTEM) -> EmbeddedApi:
    """Open the store behind `url` (shared within the process) and an engine of its own over it, in this event loop."""
    settings = LockSettings.of(None, setting)
    store = await open_store(url, clock)
    engine = Engine(store, clock, Limits(max_waiters=settings.max_waiters))
    await engine.start()
    return EmbeddedApi(engine, store, settings)
