"""A call and its repeats, with growing, spread pauses between them."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import stamina

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

# stamina tells each retry to its own logger; where nobody set logging up, that would be a bare line on stderr.
logging.getLogger("stamina").addHandler(logging.NullHandler())


async def repeated(
    call: Callable[[], Awaitable[T]], again: Callable[[Exception], bool], longest_s: float = _LONGEST_PAUSE_S
) -> T:
    """The answer of `call`, which is made again while `again` says so of its error.

    The pauses double, up to `longest_s`, and are spread, so that clients don't come in step. When to stop is for
    `again` to say: it knows the deadline, and the clock that this is on.
    """
    try:
        return await call()  # most succeed at once, and setting up what a repeat needs costs more than the call
    except Exception as error:
        failed = error
    return await repeated_after(failed, call, again, longest_s)


async def repeated_after(
    failed: Exception,
    call: Callable[[], Awaitable[T]],
    again: Callable[[Exception], bool],
    longest_s: float = _LONGEST_PAUSE_S,
) -> T:
    """The same, for whoever made the first call, which `failed`."""
    if not stamina.is_active() or not again(failed):
        raise failed
    retrying = stamina.AsyncRetryingCaller(
        attempts=None,
        timeout=None,
        wait_initial=min(_FIRST_PAUSE_S, longest_s),
        wait_max=longest_s,
        wait_jitter=min(_FIRST_PAUSE_S * 2, longest_s),
    )
    unreported: Exception | None = failed

    async def after_a_pause() -> T:
        """The failure that was seen above is told as the first of them, so that it is waited after, and logged."""
        nonlocal unreported
        if unreported is not None:
            error, unreported = unreported, None
            raise error
        return await call()

    return await retrying(again, after_a_pause)


def worth_repeating(error: BaseException) -> bool:
    return isinstance(error, WORTH_REPEATING)


def pause_s(failures: int, clock: Clock, longest_s: float = _LONGEST_PAUSE_S) -> float:
    """The same pause for a loop of another shape: after so many failures in a row, doubling and spread."""
    return min(longest_s, _FIRST_PAUSE_S * 2.0 ** min(failures, 10)) * (0.5 + clock.jitter() / 2)
