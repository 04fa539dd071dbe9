"""The frame of an object: a small header before the body, which makes every write unlike every other.

The nonce is the ETag. Identical bytes would otherwise bring an old ETag back, and a paused writer's `If-Match` would
succeed. The length of a header doesn't depend on the size of the body, so a body of unknown length can be streamed
behind the place where its header will go.
"""

import json
import re
import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

MAGIC = b"\x89FGOBJ\r\n"
VERSION = 1
PAST = 16
"""How many nonces a frame remembers."""
MAX_TEXT_BYTES = 32 * 1024

_TOMBSTONE = 1
_STANDING = 2
_FIXED = struct.Struct(">8sHHIQQQ16s")  # magic, version, flags, length of the text, token, size, modified_us, nonce
_CRC = struct.Struct(">I")  # of everything before and after it, up to the body
_TEXT_AT = _FIXED.size + _CRC.size

_ENCODER = msgspec.json.Encoder()  # a frame is encoded for every write, and json takes ten times as long
_NONCE = re.compile("[0-9a-f]{32}")
_BETWEEN = '","'
_PAST_CHARS = PAST * (32 + len(_BETWEEN)) - len(_BETWEEN)

MAX_HEADER_BYTES = _TEXT_AT + MAX_TEXT_BYTES


class BadFrame(Exception):
    """These bytes are not a whole frame; the text says why."""


class Standing(msgspec.Struct, frozen=True, gc=False):
    """What a frame says of its fence, where that has no other place: in a bucket, only a change of the object itself
    can make a paused writer's condition fail."""

    mark: int = 0
    shadow: int = 0
    """The mark of shadow mode."""
    epoch: int = 0
    """The state of the resource's record under which this was written; 0 before it was compared."""
    etag: str = ""
    """Names the value: the nonce of the frame that brought it, which a claim does not change."""
    body: str = ""
    """Where the body is, when it does not follow."""
    past: str = ""
    """The nonces of the frames before this one, latest first, as they stand in the text: every write takes them over,
    and one piece is quicker than many. See `nonces` and `past_after`."""

    @property
    def nonces(self) -> tuple[str, ...]:
        """Those of the frames before this one, latest first: they tell whether a write of unknown fate landed."""
        return tuple(self.past.split(_BETWEEN)) if self.past else ()

    def past_after(self, nonce: str) -> str:
        """The `past` of a frame that comes after this one, which has this nonce."""
        return f"{nonce}{_BETWEEN}{self.past}"[:_PAST_CHARS] if self.past else nonce


class Header(msgspec.Struct, frozen=True, gc=False):
    """What a frame says about its body. `nonce` is 32 hexadecimal digits, new for each write."""

    key: str
    token: int
    nonce: str
    size: int = 0
    modified_us: int = 0
    content_type: str = "application/octet-stream"
    metadata: Mapping[str, str] = {}
    tombstone: bool = False
    standing: Standing | None = None


class Sequel(msgspec.Struct, frozen=True, gc=False):
    """What can be told of the frame after one before its value is known, if that brings its body and leaves the fence
    as it is: its `past`, and the text of its standing around the nonce."""

    past: str
    head: str
    tail: str


def sequel(before: Header) -> Sequel:
    """To be made while there is time: the next write needs it at once."""
    it = before.standing or Standing()
    past = it.past_after(before.nonce)
    return Sequel(past, f',["{it.mark}","{it.shadow}","{it.epoch}","', f'","",["{past}"]]]')


def encode(header: Header, known: Sequel | None = None) -> bytes:
    """The header as it stands before the body; ValueError when key, type and metadata are too long together.

    `known` is what was made ahead of it, if this is the frame that it was made for.
    """
    front = _front(header.key, header.content_type)
    metadata = _json(dict(header.metadata)) if header.metadata else "{}"
    if known is not None:
        text, flags = f"{front}{metadata}{known.head}{header.nonce}{known.tail}".encode(), _STANDING
    else:
        standing = f",{_written(header.standing)}" if header.standing is not None else ""
        text = f"{front}{metadata}{standing}]".encode()
        flags = (_TOMBSTONE if header.tombstone else 0) | (_STANDING if standing else 0)
    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"key, content type and metadata need {len(text)} bytes, over {MAX_TEXT_BYTES}")
    nonce = bytes.fromhex(header.nonce)
    fixed = _FIXED.pack(MAGIC, VERSION, flags, len(text), header.token, header.size, header.modified_us, nonce)
    return fixed + _CRC.pack(zlib.crc32(text, zlib.crc32(fixed))) + text


def length(start: bytes) -> int:
    """How long the header is, of which these are the first bytes; 0 when they are too few to tell."""
    if len(start) < _TEXT_AT or not start.startswith(MAGIC):
        return 0
    return _TEXT_AT + int(_FIXED.unpack_from(start)[3])


def decode(start: bytes, total_bytes: int) -> tuple[Header, int]:
    """The header at the `start` of a frame of `total_bytes`, and where its body begins.

    `start` is the whole frame, or at least its first MAX_HEADER_BYTES.
    """
    if len(start) < _TEXT_AT:
        raise BadFrame(f"cut off after {len(start)} bytes, in the header")
    magic, version, flags, text_bytes, token, size, modified_us, nonce = _FIXED.unpack_from(start)
    if magic != MAGIC:
        raise BadFrame("not a framed object")
    if version != VERSION or flags & ~(_TOMBSTONE | _STANDING):
        raise BadFrame(f"format {version} (flags {flags}) is not known here: a newer Fencegate wrote it")
    body_at = _TEXT_AT + text_bytes
    if len(start) < body_at:
        raise BadFrame("cut off in the header")
    text = start[_TEXT_AT:body_at]
    if zlib.crc32(text, zlib.crc32(start[: _FIXED.size])) != _CRC.unpack_from(start, _FIXED.size)[0]:
        raise BadFrame("the checksum of the header is wrong")
    try:
        key, content_type, metadata, *more = json.loads(text)
        standing = _read(*more) if flags & _STANDING else None
    except (ValueError, TypeError, KeyError):
        raise BadFrame("the text of the header can't be read") from None
    follows = 0 if standing is not None and standing.body else size
    if total_bytes != body_at + follows:
        raise BadFrame(f"{total_bytes - body_at} bytes of body instead of {follows}")
    tombstone = bool(flags & _TOMBSTONE)
    return Header(key, token, nonce.hex(), size, modified_us, content_type, metadata, tombstone, standing), body_at


def _written(it: Standing) -> str:
    """JSON, put together by hand: nonces need no escapes, and every write takes sixteen of them over.

    Numbers of more than 53 bits are strings in it, for whoever reads a frame in another language.
    """
    body = _json(it.body) if it.body else '""'
    past = f'"{it.past}"' if it.past else ""
    return f'["{it.mark}","{it.shadow}","{it.epoch}","{it.etag}",{body},[{past}]]'


@lru_cache(4096)
def _front(key: str, content_type: str) -> str:
    """The text up to the metadata."""
    return f"[{_json(key)},{_json(content_type)},"


def _json(value: object) -> str:
    return _ENCODER.encode(value).decode()


def _read(fields: list[Any]) -> Standing:
    mark, shadow, epoch, etag, body, past = fields
    if not all(_NONCE.fullmatch(nonce) for nonce in (past if etag == "" else (etag, *past))):
        raise ValueError("not a nonce")
    return Standing(int(mark), int(shadow), int(epoch), etag, body, _BETWEEN.join(past))
