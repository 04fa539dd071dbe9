"""The two layouts: where the bytes of a new value go.

Framed: behind the header, in one object. It is written with one request, so it is held in memory until then, and a
claim writes it again. Pointer: in an object of their own that never changes, and the frame only points there; bodies of
any length stream into it in parts, and a claim writes a few hundred bytes.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, TooLarge, UnsafeConfiguration
from fencegate.core.ports import Body
from fencegate_adapters.objects.body import whole
from fencegate_adapters.objects.bucket.blobs import MAX_PARTS, PART_BYTES, Blobs
from fencegate_adapters.objects.bucket.keys import Place, body_key
from fencegate_adapters.objects.bucket.upload import Upload

MAX_FRAMED_BYTES = 64 * 1024 * 1024


class Received(msgspec.Struct, frozen=True, gc=False):
    """A body that came: its size, and where its bytes are: in `parts`, for the frame, or uploaded under `key`."""

    size: int
    parts: Sequence[bytes] = ()
    key: str = ""


class Layout(Protocol):
    """How values are received."""

    def at_hand(self, body: Body) -> Received | None:
        """A body that needs not be received, for it is here already and goes into the frame."""

    async def receive(self, place: Place, token: int, content_type: str, body: Body) -> Received:
        """Take the whole body; TooLarge over the limit."""

    async def discard(self, received: Received) -> None:
        """Remove what was received, and will never be pointed to."""


class Framed:
    """See the head of this file."""

    def __init__(self, resource: str, max_bytes: int) -> None:
        if max_bytes > MAX_FRAMED_BYTES:
            raise UnsafeConfiguration(
                f"resource {resource!r}: max_bytes is {max_bytes}, but framed objects are written with one request, "
                f'from memory, and have at most {MAX_FRAMED_BYTES} bytes. For larger ones set layout = "pointer".'
            )
        self._max_bytes = max_bytes

    def at_hand(self, body: Body) -> Received | None:
        if not isinstance(body, bytes) or len(body) > self._max_bytes:
            return None
        return Received(len(body), (body,))

    async def receive(self, place: Place, token: int, content_type: str, body: Body) -> Received:
        parts, size = [], 0  # joined once, right before they are sent
        async for part in whole(body) if isinstance(body, bytes) else body:
            parts.append(part)
            size = self._bounded(size + len(part))
        return Received(size, parts)

    def _bounded(self, size: int) -> int:
        if size > self._max_bytes:
            raise TooLarge(
                f"an object has at most {self._max_bytes} bytes here; max_bytes can be raised to "
                f'{MAX_FRAMED_BYTES}, and with layout = "pointer" beyond that',
                maxBytes=self._max_bytes,
            )
        return size

    async def discard(self, received: Received) -> None:
        return


class Pointer:
    """See the head of this file."""

    def __init__(self, blobs: Blobs, max_bytes: int, clock: Clock) -> None:
        self._blobs = blobs
        self._clock = clock
        self._max_bytes = max_bytes
        self._part_bytes = max(PART_BYTES, -(-max_bytes // MAX_PARTS))

    def at_hand(self, body: Body) -> Received | None:
        return None

    async def receive(self, place: Place, token: int, content_type: str, body: Body) -> Received:
        key = body_key(place.name, token, self._clock.random_id(16))
        upload = Upload(self._blobs, key, content_type, self._part_bytes)
        size = 0
        try:
            async for part in whole(body) if isinstance(body, bytes) else body:
                size += len(part)
                if size > self._max_bytes:
                    raise TooLarge(f"an object has at most {self._max_bytes} bytes here", maxBytes=self._max_bytes)
                await upload.append(part)
            await upload.finish()
        except BaseException:
            await asyncio.shield(upload.abort())
            raise
        return Received(size, key=key)

    async def discard(self, received: Received) -> None:
        with suppress(FencegateError):
            await self._blobs.delete(received.key)
