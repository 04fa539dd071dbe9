"""Removes bodies that nothing points to, and nothing ever will.

Two kinds are safe to remove. One is a body whose frame was replaced: a frame that points to it could only be written on
a version that is gone for good. The other is a body that no frame points to and whose token is below the mark: its
writer is refused from now on. A body that nobody points to under a token that still counts may be about to be.
"""

import asyncio
from contextlib import suppress

from fencegate.clock import Clock
from fencegate.core.errors import FencegateError
from fencegate_adapters.objects.bucket.blobs import Blobs
from fencegate_adapters.objects.bucket.frames import Frames
from fencegate_adapters.objects.bucket.keys import Place, bodies_of, body_token
from fencegate_adapters.objects.bucket.standing import standing_of
from fencegate_adapters.objects.record import Mode

READERS_S = 60.0
"""How long a body stays after it was replaced, for those who are reading it."""
MAX_WAITING = 10_000
MAX_REMOVED = 1_000


class Janitor:
    """One task, which goes on where it was when the next body is replaced."""

    def __init__(self, blobs: Blobs, frames: Frames, mode: Mode, clock: Clock, readers_s: float = READERS_S) -> None:
        self._blobs = blobs
        self._frames = frames
        self._mode = mode
        self._clock = clock
        self._readers_s = readers_s
        self._waiting: dict[str, tuple[int, Place]] = {}
        self._at_work: asyncio.Task[None] | None = None

    def replaced(self, place: Place, body: str) -> None:
        """The frame of this body, if it had one, was replaced by ours."""
        if len(self._waiting) < MAX_WAITING:
            due_us = self._clock.monotonic_us() + int(self._readers_s * 1_000_000)
            self._waiting[body or place.key] = (due_us, place)
        if self._at_work is None or self._at_work.done():
            self._at_work = asyncio.create_task(self._work())

    async def close(self) -> None:
        """What is left is found when the object is next replaced."""
        if self._at_work is not None:
            self._at_work.cancel()
            with suppress(asyncio.CancelledError):
                await self._at_work

    async def _work(self) -> None:
        while self._waiting:
            body, (due_us, place) = next(iter(self._waiting.items()))
            await asyncio.sleep(max(0.0, (due_us - self._clock.monotonic_us()) / 1_000_000))
            del self._waiting[body]
            with suppress(FencegateError):  # it is found again
                await self.clean(place, body)

    async def clean(self, place: Place, replaced: str = "") -> int:
        """Remove what can be removed of the bodies of one object; how many they were."""
        # What is listed here are also the bodies of objects whose names go on from this one.
        found = {
            key: token
            async for key in self._blobs.keys(bodies_of(place.name))
            if (token := body_token(place.name, key)) is not None
        }
        now = await self._frames.load(place)
        if now is None:
            return 0
        standing = standing_of(now.header)
        # In shadow mode a lower token is let through, so it says nothing.
        mark = standing.mark if self._mode == "enforce" else 0
        removed = 0
        for key, token in found.items():
            if removed < MAX_REMOVED and key != standing.body and (token < mark or key == replaced):
                await self._blobs.delete(key)
                removed += 1
        return removed
