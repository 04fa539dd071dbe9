"""Header blocks of HTTP/2 (RFC 7541), as far as gRPC with etcd needs them.

We tell the server to keep no table, so every header is spelled out or one of the standard's list. Text may be in the
standard's Huffman code, whose codes of one length are consecutive numbers in the order of the characters.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

_STATIC = {
    8: (b":status", b"200"),
    **dict.fromkeys(range(9, 15), (b":status", b"")),
    31: (b"content-type", b""),
}
"""Of the standard's list, what an answer of gRPC may refer to and we look at."""
_STATIC_SIZE = 61
_HUFFMAN = (
    (5, 0x0, b"012aceiost"),
    (6, 0x14, b" %-./3456789=A_bdfghlmnpru"),
    (7, 0x5C, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, 0xF8, b"&*,;XZ"),
    (10, 0x3F8, b'!"()?'),
    (11, 0x7FA, b"'+|"),
    (12, 0xFFA, b"#>"),
    (13, 0x1FF9, b"$@[]~"),
    (14, 0x3FFC, b"^}"),
    (15, 0x7FFC, b"<`{"),
)
_CODES = {(length, first + number): char for length, first, chars in _HUFFMAN for number, char in enumerate(chars)}


class BadHeaders(ValueError):
    """A header block that can't be read."""


def encoded(name: bytes, value: bytes) -> bytes:
    """A header that neither side is to remember."""
    return b"\x00" + _sized(name) + _sized(value)


def encoded_at(number: int, value: bytes) -> bytes:
    """The same, with a name of the standard's list."""
    return bytes((number,)) + _sized(value)


@lru_cache(maxsize=256)  # those of one server are nearly always the same two
def decode(block: bytes) -> Mapping[bytes, bytes]:
    try:
        return dict(_headers(block))
    except IndexError:
        raise BadHeaders("it is cut short") from None


def _headers(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:
            number, at = _number(block, at, 7)
            if not 0 < number <= _STATIC_SIZE:
                raise BadHeaders("it refers to a table that we don't keep")
            yield _STATIC.get(number, (b"", b""))
        elif first & 0xE0 == 0x20:
            _, at = _number(block, at, 5)
        else:
            number, at = _number(block, at, 6 if first & 0x40 else 4)
            if number > _STATIC_SIZE:
                raise BadHeaders("it refers to a table that we don't keep")
            name = _STATIC.get(number, (b"", b""))[0]
            if number == 0:
                name, at = _text(block, at)
            value, at = _text(block, at)
            yield name, value


def _sized(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    found = bytearray((127,))
    size -= 127
    while size > 127:
        found.append(size & 127 | 128)
        size >>= 7
    found.append(size)
    return bytes(found) + text


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    number = block[at] & most
    at += 1
    if number < most:
        return number, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        number += (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at
        if shift > 28:
            raise BadHeaders("a number in it is too large")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    huffman = block[at] & 0x80
    size, at = _number(block, at, 7)
    if at + size > len(block):
        raise BadHeaders("it is cut short")
    raw = block[at : at + size]
    return (_plain(raw) if huffman else raw), at + size


def _plain(raw: bytes) -> bytes:
    """Printable characters; what comes after any other is left out."""
    found = bytearray()
    code = length = 0
    for byte in raw:
        for bit in range(7, -1, -1):
            code, length = code << 1 | byte >> bit & 1, length + 1
            char = _CODES.get((length, code))
            if char is not None:
                found.append(char)
                code = length = 0
    return bytes(found)
