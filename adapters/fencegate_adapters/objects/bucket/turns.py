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


class _Turn:
    __slots__ = ("_place", "_turns")

    def __init__(self, turns: Turns, place: Place) -> None:
        self._turns = turns
        self._place = place

    async def __aenter__(self) -> None:
        taken, key = self._turns.taken, self._place.key
        if key in taken:
            await self._wait()
        else:
            taken[key] = None

    async def __aexit__(self, *_: object) -> None:
        self._end()

    async def _wait(self) -> None:
        queue = self._turns.taken[self._place.key]
        if queue is None:
            queue = self._turns.taken[self._place.key] = deque()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(self._turns.wait_s):
                await turn
        except BaseException as error:
            if not turn.done():
                queue.remove(turn)
            elif not turn.cancelled():  # it came at the moment at which we gave up
                self._end()
            if not isinstance(error, TimeoutError):
                raise
            raise ResourceUnavailable(
                f"resource {self._turns.resource!r}: other writes to {self._place.name!r} take too long; nothing was "
                "written"
            ) from None

    def _end(self) -> None:
        """Hand the turn over, so that nobody comes in between; only when nobody waits is the key free."""
        queue = self._turns.taken[self._place.key]
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._turns.taken[self._place.key]
