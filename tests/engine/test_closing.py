"""An engine that is closed while its store does not answer."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from fencegate.core.errors import OutcomeUnknown
from fencegate.core.model import lock_entry
from fencegate.core.ports import Ambiguous, Change, Entry, Landed
from fencegate.engine import Engine
from fencegate.engine import engine as engine_module
from fencegate.testing.caller import Caller
from fencegate.testing.faulty_store import FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore


class Stuck(FaultyStore):
    """No answer comes to what is asked from some time on."""

    loads_are_stuck = commits_are_stuck = False

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        if self.loads_are_stuck:
            await asyncio.Event().wait()
        return await super().load(keys)

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        if self.commits_are_stuck:
            await asyncio.Event().wait()
        await super().commit(changes, log, not_after_us)


class StuckCalls(Stuck):
    """The same, of one that tells of commits by calls: of those that are stuck, when it is closed."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self._unheard: list[Landed] = []

    def commit_then(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int, landed: Landed
    ) -> None:
        if self.commits_are_stuck:
            self._unheard.append(landed)
        else:
            asyncio.ensure_future(self.commit(changes, log, not_after_us)).add_done_callback(lambda _: landed(None))

    async def close(self) -> None:
        for landed in self._unheard:
            landed(Ambiguous("it was closed"))


@pytest.mark.parametrize("stuck", ["loads", "commits"])
@pytest.mark.parametrize("store", [Stuck(MemoryStore()), StuckCalls()], ids=["awaited", "called"])
async def test_no_task_is_left_behind(store: Stuck, stuck: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of an event loop each would be told of as an error: destroyed, but pending."""
    monkeypatch.setattr(engine_module, "FINISH_WITHIN_S", 0.01)
    before = asyncio.all_tasks()
    engine = Engine(store)
    await engine.start()
    await Caller(engine, "A").acquire(stuck)
    waiting = asyncio.ensure_future(Caller(engine, "B").acquire(stuck, wait_s=60))
    await Caller(engine, "A").until_waiting(stuck, "B")
    engine._lanes.known.forget([lock_entry(stuck)])
    monkeypatch.setattr(store, f"{stuck}_are_stuck", True)
    asking = [asyncio.ensure_future(Caller(engine, "C").acquire(f"{stuck}:{number % 2}")) for number in range(4)]
    waiting.cancel()
    async with asyncio.timeout(10):
        await engine.close()
        await store.close()
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.wait([waiting])
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == before
    assert OutcomeUnknown in map(type, outcomes)
