"""Group commit, beside what the stores that use it show."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from fencegate_lockservice.stores.grouping import Groups, Waiting


async def test_a_group_that_was_cancelled_before_it_began_does_not_keep_a_store_from_closing() -> None:
    """At the end of an event loop all its tasks are cancelled, and one of them may be about to close the store."""
    begun: list[Coroutine[Any, Any, None]] = []

    def send(group: Sequence[Waiting[str]]) -> Coroutine[Any, Any, None]:
        begun.append(settle(group))
        return begun[-1]

    async def settle(group: Sequence[Waiting[str]]) -> None:
        for waiting in group:
            waiting.done()

    groups: Groups[str] = Groups(send, enough=1)
    groups.add("a")
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    async with asyncio.timeout(5):
        await groups.close()
    for sending in begun:
        sending.close()


async def test_a_group_that_was_cancelled_before_it_began_is_carried_out_and_so_is_the_next() -> None:
    """The tasks of the application that are cancelled with it may still have something to say to the store."""
    sent: list[str] = []

    async def send(group: Sequence[Waiting[str]]) -> None:
        for waiting in group:
            sent.append(waiting.item)
            waiting.done()

    groups: Groups[str] = Groups(send, enough=1)
    first = groups.add("a")
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    async with asyncio.timeout(5):
        await first
        await groups.add("b")
        await groups.close()
    assert sent == ["a", "b"]
