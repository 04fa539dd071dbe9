"""The bytes of an object that was found, in pieces."""

import asyncio
import os
from collections.abc import AsyncIterator
from io import FileIO

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.objects.folder import Found

PIECE_BYTES = 256 * 1024


async def nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def whole(data: bytes) -> AsyncIterator[bytes]:
    yield data


def stream(found: Found, byte_range: tuple[int, int] | None) -> AsyncIterator[bytes]:
    """The body, or the bytes from the first to the last of the range, as far as they exist.

    Blocks for the first piece: most objects are no longer than that, and then their file is closed already.
    """
    first, last = byte_range or (0, found.header.size - 1)
    at = found.body_at + first
    end = found.body_at + min(last + 1, found.header.size)
    piece = _read(found.file, at, end)
    if at + len(piece) >= end:
        found.file.close()
    return _pieces(found.file, piece, at, end)


async def _pieces(file: FileIO, piece: bytes, at: int, end: int) -> AsyncIterator[bytes]:
    try:
        while piece:
            yield piece
            at += len(piece)
            piece = await asyncio.to_thread(_read, file, at, end) if at < end else b""
    finally:
        file.close()


def _read(file: FileIO, at: int, end: int) -> bytes:
    if at >= end:
        return b""
    try:
        piece = os.pread(file.fileno(), min(PIECE_BYTES, end - at), at)
    except OSError as error:
        raise ResourceUnavailable(f"the object can't be read to its end: {error.strerror}") from error
    if not piece:
        raise ResourceUnavailable("the object is cut off: its file was changed from outside")
    return piece
