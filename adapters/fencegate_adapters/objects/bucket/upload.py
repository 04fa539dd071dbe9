"""A body on its way into an object of its own, in parts of which a few are in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from fencegate.core.errors import FencegateError
from fencegate_adapters.objects.bucket.blobs import Blobs

ABORT_WITHIN_S = 5.0


class _GivenUp(Exception):
    """The sender broke off."""


class Upload:
    """In one piece when the body is short, else in parts, as they come. Call `finish`, or `abort`."""

    def __init__(self, blobs: Blobs, key: str, content_type: str, part_bytes: int) -> None:
        self._blobs = blobs
        self._key = key
        self._content_type = content_type
        self._part_bytes = part_bytes
        self._waiting = bytearray()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._sending: asyncio.Task[None] | None = None
        self._aborted = False

    async def append(self, part: bytes) -> None:
        self._waiting += part
        if len(self._waiting) >= self._part_bytes:
            await self._hand_over(bytes(self._waiting))
            self._waiting = bytearray()

    async def finish(self) -> None:
        if self._sending is None:
            await self._blobs.upload(self._key, bytes(self._waiting), self._content_type, self._part_bytes)
            return
        if self._waiting:
            await self._hand_over(bytes(self._waiting))
        await self._hand_over(None)
        await self._sending

    async def abort(self) -> None:
        """End the parts that are under way, so that the server does not keep them for ever."""
        self._aborted = True
        if self._sending is None or self._sending.done():
            return
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)
        with suppress(TimeoutError, FencegateError, _GivenUp):
            await asyncio.wait_for(self._sending, ABORT_WITHIN_S)

    async def _hand_over(self, part: bytes | None) -> None:
        if self._sending is None:
            self._sending = asyncio.create_task(
                self._blobs.upload(self._key, self._parts(), self._content_type, self._part_bytes)
            )
        putting = asyncio.ensure_future(self._queue.put(part))
        try:
            await asyncio.wait({putting, self._sending}, return_when=asyncio.FIRST_COMPLETED)
            if not putting.done():  # the upload failed, and nobody takes parts any more
                await self._sending
        finally:
            putting.cancel()

    async def _parts(self) -> AsyncIterator[bytes]:
        while (part := await self._queue.get()) is not None:
            yield part
        if self._aborted:
            raise _GivenUp
