"""Turns: in one process, the changes of one frame are made one after the other, first come, first served.

Only processes contend by conditions. Every write comes here, and mostly nobody is before it: then there is no lock to
be made, and no timer.
"""

import asyncio
from collections import deque

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.objects.bucket.keys import Place


class Turns:
    """`async with turns.of(place)`; ResourceUnavailable when those before us take longer than `wait_s`."""

    def __init__(self, resource: str, wait_s: float) -> None:
        self.resource = resource
        self.wait_s = wait_s
        self.taken: dict[str, deque[asyncio.Future[None]] | None] = {}
        """By key that somebody is at: who comes after, if anybody does."""

    def of(self, place: Place) -> "_Turn":
        return _Turn(self, place)

    def take(self, place: Place) -> bool:
        """Take the turn if nobody is before us; else `wait` for it. Whoever has it must `end` it."""
        if place.key in self.taken:
            return False
        self.taken[place.key] = None
        return True

    async def wait(self, place: Place) -> None:
        """Take the turn when those before us have had theirs."""
        queue = self.taken[place.key]
        if queue is None:
            queue = self.taken[place.key] = deque()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(self.wait_s):
                await turn
        except BaseException as error:
            if not turn.done():
                queue.remove(turn)
            elif not turn.cancelled():  # it came at the moment at which we gave up
                self.end(place)
            if not isinstance(error, TimeoutError):
                raise
            raise ResourceUnavailable(
                f"resource {self.resource!r}: other writes to {place.name!r} take too long; nothing was written"
            ) from None

    def end(self, place: Place) -> None:
        """Hand the turn over, so that nobody comes in between; only when nobody waits is the key free."""
        queue = self.taken[place.key]
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self.taken[place.key]


class _Turn:
    __slots__ = ("_place", "_turns")

    def __init__(self, turns: Turns, place: Place) -> None:
        self._turns = turns
        self._place = place

    async def __aenter__(self) -> None:
        if not self._turns.take(self._place):
            await self._turns.wait(self._place)

    async def __aexit__(self, *_: object) -> None:
        self._turns.end(self._place)
