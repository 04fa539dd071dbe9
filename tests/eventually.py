"""Waiting for what must come to hold, however busy the machine is."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

PATIENCE_S = 30.0


async def eventually(condition: Callable[[], bool | Awaitable[bool]], within_s: float = PATIENCE_S) -> None:
    """Until `condition` holds; fails when that takes too long."""
    end = time.monotonic() + within_s
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        assert time.monotonic() < end, f"still not so after {within_s} s"
        await asyncio.sleep(0.01)


def eventually_sync(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"still not so after {within_s} s"
        time.sleep(0.01)
