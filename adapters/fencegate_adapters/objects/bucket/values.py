"""The bytes of values, read from where their frames say that they are.

The frame decides, not the layout that is configured: after a change of layout, objects stay as they were written.
"""

from collections.abc import AsyncIterator, Sequence

from fencegate_adapters.objects.bucket.blobs import Blobs
from fencegate_adapters.objects.bucket.frames import Frame
from fencegate_adapters.objects.bucket.keys import Place
from fencegate_adapters.objects.bucket.standing import standing_of


class Values:
    """Reads, of one version or not at all."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def carried(self, place: Place, found: Frame) -> Sequence[bytes]:
        """What has to follow the header when this frame is written again; Moved when it is no longer there."""
        if standing_of(found.header).body:
            return ()
        return [piece async for piece in await self.stream(place, found, 0, found.header.size)]

    async def stream(self, place: Place, found: Frame, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes of the value from `start` up to `end`; Moved when they are no longer there."""
        fetched, body = len(found.start), standing_of(found.header).body
        if start >= end:
            return _at_once(b"")
        if body:
            return await self._blobs.stream(body, start, end)
        if end <= fetched:
            return _at_once(found.start[start:end])
        if start >= fetched:
            return await self._blobs.stream(place.key, found.body_at + start, found.body_at + end, found.version)
        rest = await self._blobs.stream(place.key, found.body_at + fetched, found.body_at + end, found.version)
        return _joined(found.start[start:], rest)


async def _at_once(data: bytes) -> AsyncIterator[bytes]:
    if data:
        yield data


async def _joined(start: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for piece in rest:
        yield piece
