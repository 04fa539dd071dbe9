"""Asking several nodes at once, and going on as soon as enough of them have answered."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Enough = Callable[[Mapping[int, Any]], bool]


async def poll(
    asked: Mapping[int, "asyncio.Future[Any]"], within_s: float, enough: Enough | None = None
) -> dict[int, Any]:
    """The answers of those that gave one: when `enough` says so, all have answered or failed, or it is late."""
    answers: dict[int, Any] = {}
    if not asked:
        return answers
    waiting = len(asked)
    done = asyncio.get_running_loop().create_future()

    def heard(number: int, future: "asyncio.Future[Any]") -> None:
        nonlocal waiting
        waiting -= 1
        if not future.cancelled() and future.exception() is None and not done.done():
            answers[number] = future.result()
        if not done.done() and (not waiting or (enough is not None and enough(answers))):
            done.set_result(None)

    for number, future in asked.items():
        future.add_done_callback(partial(heard, number))
    try:
        async with asyncio.timeout(within_s):
            await done
    except TimeoutError:
        pass
    return answers
