"""An engine that is stopped, or whose loop ends under it."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from fencegate.core.errors import OutcomeUnknown, ShuttingDown
from fencegate.core.model import Hold, Limits
from fencegate.core.ports import Change
from fencegate.engine import Engine
from fencegate.testing.caller import Caller, engines
from fencegate.testing.faulty_store import FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore
from tests.engine.unsure import SlowAndUnsure


async def test_stopping_sends_waiters_away_at_once_and_keeps_only_named_places(store: MemoryStore) -> None:
    async with engines(store, store, limits=Limits()) as (one, two):
        holder = Caller(one, "A")
        await holder.acquire("k")
        unnamed = asyncio.ensure_future(Caller(two, "B").acquire("k", wait_s=20))
        await holder.until_waiting("k", "B")
        named = asyncio.ensure_future(Caller(two, "C").acquire("k", wait_s=20, name="c1"))
        await holder.until_waiting("k", "B", "C")
        async with asyncio.timeout(30):
            await two.close()
            for waiting in (unnamed, named):
                with pytest.raises(ShuttingDown):
                    await waiting
        assert await holder.waiters("k") == ["C"]
        with pytest.raises(ShuttingDown):
            await Caller(two, "D").acquire("k", wait_s=1)


class StuckStore(FaultyStore):
    """Takes commits and never answers."""

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        await asyncio.Event().wait()


async def test_stopping_does_not_wait_for_a_store_that_never_answers(store: MemoryStore) -> None:
    async with asyncio.timeout(60):
        async with engines(StuckStore(store)) as (engine,):
            asking = asyncio.ensure_future(Caller(engine, "A").acquire("k"))
            await asyncio.sleep(0.01)
            asking.cancel()


async def working_slowly(engine: Engine) -> "asyncio.Future[Hold]":
    """An acquire whose work has become a task, which has not begun yet."""
    asking = asyncio.ensure_future(Caller(engine, "A").acquire("k"))
    async with asyncio.timeout(30):
        while not engine._lanes._slow:
            await asyncio.sleep(0)
    return asking


async def test_work_that_is_ended_with_the_process_is_told_as_unknown_and_not_logged_as_an_error(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    unsure = SlowAndUnsure(store)
    async with engines(unsure) as (engine,):
        unsure.slow = True
        asking = await working_slowly(engine)
        await asyncio.sleep(0.01)
        for task in engine._lanes._slow:  # as the loop does with what is left when it ends
            task.cancel()
        with pytest.raises(OutcomeUnknown, match="stopping"):
            await asking
        unsure.slow = False
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("begun", [False, True], ids=["before it began", "under way"])
async def test_work_that_is_ended_with_the_loop_is_told_and_whoever_asks_next_is_served(
    store: MemoryStore, begun: bool
) -> None:
    """At its end a loop cancels all tasks, ours too; and those of the application may want to release."""
    unsure = SlowAndUnsure(store)
    async with engines(unsure) as (engine,):
        unsure.slow = True
        asking = await working_slowly(engine)
        async with asyncio.timeout(30):
            if begun:
                await asyncio.sleep(0.01)
            for task in list(engine._lanes._slow):
                task.cancel()
            unsure.slow = False
            with pytest.raises(OutcomeUnknown, match="stopping"):
                await asking
            await Caller(engine, "B").acquire("k", wait_s=20)
