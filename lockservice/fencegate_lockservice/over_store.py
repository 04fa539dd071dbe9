"""The lock calls over one store, with all that goes with them: its engine, its change log, and its history."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from fencegate.core.errors import NotSupported, StoreUnavailable
from fencegate.engine import Engine
from fencegate_lockservice.answers import Answer
from fencegate_lockservice.api import LockApi
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.history import DEFAULT_LIMIT, History
from fencegate_lockservice.stores import close_store
from fencegate_lockservice.watch import Batch, Wanted, Watch

Heard = tuple[int, str, bytes]


class StoreApi(LockApi):
    """A `LockApi` that owns its engine, and its share in the store."""

    def __init__(self, engine: Engine, settings: LockSettings) -> None:
        super().__init__(engine, settings.lock_delay_us)
        self.store = engine.store
        self._watch = Watch(engine.store)
        self._history = History.over(engine, settings.history_us) if _has_history(engine) else None
        self._keeper: asyncio.Task[None] | None = None

    def follow(self, wanted: Wanted) -> AsyncGenerator[Batch, None]:
        """What happens to these locks, as `/v1/watch` tells it."""
        return self._watch.follow(wanted)

    def watch(self, query: Mapping[str, str]) -> AsyncGenerator[Heard, None]:
        """The same, for clients without a server."""
        return heard(self.follow(Wanted.of(query)))

    async def history(self, lock_key: str, *, limit: int = DEFAULT_LIMIT, cursor: str = "") -> Answer:
        """What `/v1/history` tells. Unless `write_history` was called, it is written when it is read, from the store's
        change log: so it is whole as long as that reaches back to the last time."""
        if self._history is None:
            raise NotSupported(
                f"the store {self.store.name} keeps no history: it can't read its change log again, or commit more "
                "than one lock at a time",
                feature="history",
                store=self.store.name,
            )
        return await self._history.of(lock_key, limit=limit, cursor=cursor)

    def write_history(self) -> None:
        """From now on, in the background."""
        if self._history is not None:
            self._history.start()

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Have this run until the store is closed."""
        self._keeper = asyncio.get_running_loop().create_task(work)

    async def stop_waiting(self) -> None:
        """Send every waiter away."""
        await self._engine.stop_waiting()

    async def unavailable(self) -> Mapping[str, str]:
        """Why the store can't serve now, by its name; nothing when it can."""
        try:
            await self._engine.look("fencegate:readyz")
        except StoreUnavailable as error:
            return {self.store.name: error.detail}
        return {}

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._history is not None:
            await self._history.close()
        await super().close()
        await close_store(self.store)


def _has_history(engine: Engine) -> bool:
    """It is read from the change log, and written in one step with how far that was."""
    able = engine.store.capabilities
    return able.several_keys and able.replays


async def heard(batches: AsyncGenerator[Batch, None]) -> AsyncGenerator[Heard, None]:
    """The id, kind and data of each event; no kind when only the place has moved."""
    async with aclosing(batches):
        async for batch in batches:
            for told in batch.told:
                yield told.id, told.kind, told.data
            yield batch.place, "", b""
