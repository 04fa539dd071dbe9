"""A poll under way, and by how much two of them overlap."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from fencegate.core.errors import OutcomeUnknown

if TYPE_CHECKING:
    import asyncio

G = TypeVar("G")

_LONGEST_OVERLAP_MS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Poll(Generic[G]):
    """Begun at `started_us`, and waits for `ms`."""

    started_us: int
    ms: int
    answer: "asyncio.Task[G]"

    def error(self) -> BaseException | None:
        """What it failed with, if it did, once it is over; asked for, so that asyncio does not tell of it."""
        return OutcomeUnknown("a poll was cancelled") if self.answer.cancelled() else self.answer.exception()


def overlap_ms(poll_ms: int) -> int:
    """How long before the end of a poll the next one begins: long enough to find its place on a busy day, and few
    enough polls more."""
    return min(poll_ms // 4, _LONGEST_OVERLAP_MS)
