"""The frame of an object: a small header before the body, which makes every write unlike every other.

The nonce is the ETag. Identical bytes would otherwise bring an old ETag back, and a paused writer's `If-Match` would
succeed. The length of a header doesn't depend on the size of the body, so a body of unknown length can be streamed
behind the place where its header will go.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

MAGIC = b"\x89FGOBJ\r\n"
VERSION = 1
MAX_TEXT_BYTES = 32 * 1024

_TOMBSTONE = 1
_FIXED = struct.Struct(">8sHHIQQQ16s")  # magic, version, flags, length of the text, token, size, modified_us, nonce
_CRC = struct.Struct(">I")  # of everything before and after it, up to the body
_TEXT_AT = _FIXED.size + _CRC.size

MAX_HEADER_BYTES = _TEXT_AT + MAX_TEXT_BYTES


class BadFrame(Exception):
    """These bytes are not a whole frame; the text says why."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a frame says about its body. `nonce` is 32 hexadecimal digits, new for each write."""

    key: str
    token: int
    nonce: str
    size: int = 0
    modified_us: int = 0
    content_type: str = "application/octet-stream"
    metadata: Mapping[str, str] = field(default_factory=dict)
    tombstone: bool = False


def encode(header: Header) -> bytes:
    """The header as it stands before the body; ValueError when key, type and metadata are too long together."""
    text = json.dumps([header.key, header.content_type, dict(header.metadata)], separators=(",", ":")).encode()
    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"key, content type and metadata need {len(text)} bytes, over {MAX_TEXT_BYTES}")
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        _TOMBSTONE if header.tombstone else 0,
        len(text),
        header.token,
        header.size,
        header.modified_us,
        bytes.fromhex(header.nonce),
    )
    return fixed + _CRC.pack(zlib.crc32(text, zlib.crc32(fixed))) + text


def decode(start: bytes, total_bytes: int) -> tuple[Header, int]:
    """The header at the `start` of a frame of `total_bytes`, and where its body begins.

    `start` is the whole frame, or at least its first MAX_HEADER_BYTES.
    """
    if len(start) < _TEXT_AT:
        raise BadFrame(f"cut off after {len(start)} bytes, in the header")
    magic, version, flags, text_bytes, token, size, modified_us, nonce = _FIXED.unpack_from(start)
    if magic != MAGIC:
        raise BadFrame("not a framed object")
    if version != VERSION or flags & ~_TOMBSTONE:
        raise BadFrame(f"format {version} (flags {flags}) is not known here: a newer Fencegate wrote it")
    body_at = _TEXT_AT + text_bytes
    if len(start) < body_at:
        raise BadFrame("cut off in the header")
    text = start[_TEXT_AT:body_at]
    if zlib.crc32(text, zlib.crc32(start[: _FIXED.size])) != _CRC.unpack_from(start, _FIXED.size)[0]:
        raise BadFrame("the checksum of the header is wrong")
    if total_bytes != body_at + size:
        raise BadFrame(f"{total_bytes - body_at} bytes of body instead of {size}")
    try:
        key, content_type, metadata = json.loads(text)
    except ValueError:
        raise BadFrame("the text of the header can't be read") from None
    tombstone = bool(flags & _TOMBSTONE)
    return Header(key, token, nonce.hex(), size, modified_us, content_type, metadata, tombstone), body_at
