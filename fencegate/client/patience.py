"""The limit of a lock call: an answer that does not come leaves open what became of it."""

from collections.abc import Awaitable
from typing import TypeVar

from fencegate import limits
from fencegate.core.errors import OutcomeUnknown

T = TypeVar("T")


async def within(call: Awaitable[T], limit_s: float) -> T:
    """The answer of a call; OutcomeUnknown when it takes longer than that, for it may have been done."""
    try:
        return await limits.within(call, limit_s)
    except TimeoutError:
        raise OutcomeUnknown(f"no answer within {limit_s:.3g} s; it may have been done all the same") from None
