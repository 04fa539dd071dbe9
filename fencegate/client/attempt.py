"""One attempt at a call, bounded in time, and the pause before the next one."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from fencegate.clock import Clock
from fencegate.core.errors import (
    FencegateError,
    OutcomeUnknown,
    RateLimited,
    ShuttingDown,
    StoreUnavailable,
    TooManyWaiters,
)

T = TypeVar("T")

WORTH_REPEATING: Final[tuple[type[FencegateError], ...]] = (
    StoreUnavailable,
    ShuttingDown,
    RateLimited,
    TooManyWaiters,
    OutcomeUnknown,
)
"""A later attempt may fare better; and all of our calls may be repeated, since an acquire carries its requestId."""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


async def within(call: Coroutine[Any, Any, T], limit_s: float) -> T:
    """The call's answer; OutcomeUnknown when it takes longer than that, for it may have been done."""
    try:
        async with asyncio.timeout(limit_s):
            return await call
    except TimeoutError:
        raise OutcomeUnknown(f"no answer within {limit_s:.3g} s; it may have been done all the same") from None


def pause_s(failures: int, clock: Clock, longest_s: float = _LONGEST_PAUSE_S) -> float:
    """How long to pause after so many failures in a row: doubling, and spread so that clients don't come in step."""
    return min(longest_s, _FIRST_PAUSE_S * 2.0 ** min(failures, 10)) * (0.5 + clock.jitter() / 2)
