"""Messages of etcd's API (`rpc.proto`, `kv.proto`) as bytes: as few of them, and of their fields, as are needed.

A field is a tag, which is its number and kind, and then a varint, or a length and as many bytes. What is not known is
stepped over.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class KeyValue(NamedTuple):
    key: bytes
    value: bytes
    mod_revision: int


class Range(NamedTuple):
    """What a question for keys found."""

    kvs: list[KeyValue]
    more: bool
    revision: int


class Txn(NamedTuple):
    """What became of a transaction: of its parts only ranges and transactions tell anything; else None."""

    succeeded: bool
    responses: "list[Range | Txn | None]"


class Watched(NamedTuple):
    """One message of a watch."""

    events: list[KeyValue]
    canceled: bool
    compact_revision: int
    reason: str


# --- writing ---------------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


class _Sizes(dict[int, bytes]):
    """Lengths as varints: the short ones are at hand."""

    def __missing__(self, size: int) -> bytes:
        return varint(size)


_SIZES = _Sizes((size, varint(size)) for size in range(4096))


def chunk(tag: bytes, payload: bytes) -> bytes:
    """A field that is bytes, text or a message; `tag` is its number * 8 + 2."""
    return tag + _SIZES[len(payload)] + payload


# Comparisons and operations are fields of a transaction already, where operations are those for its success. Those that
# every commit has are each put together at once, from the inside out by their lengths: a commit is mostly these.


def absent(key: bytes) -> bytes:
    """Compare: there is no such key (its version is 0)."""
    named = _SIZES[len(key)]
    return b"\x0a%b\x10\x00\x1a%b%b\x20\x00" % (_SIZES[len(named) + len(key) + 5], named, key)


def equals(key: bytes, value: bytes) -> bytes:
    return chunk(b"\x0a", b"\x10\x03" + chunk(b"\x1a", key) + chunk(b"\x3a", value))


def starts_with_line(key: bytes, line: bytes) -> bytes:
    """Compare twice: the value lies above this line, and below the line with the character after a line feed."""
    size, named = len(line), b"\x10\x03\x1a%b%b\x3a" % (_SIZES[len(key)], key)
    low, high = _SIZES[size], _SIZES[size + 1]
    return b"\x0a%b\x08\x01%b%b%b\x0a%b\x08\x02%b%b%b\x0b" % (
        _SIZES[2 + len(named) + len(low) + size],
        named,
        low,
        line,
        _SIZES[2 + len(named) + len(high) + size + 1],
        named,
        high,
        line,
    )


def read(first: bytes, end: bytes = b"") -> bytes:
    return _operation(b"\x0a", range_of(first, end))


def put(key: bytes, value: bytes) -> bytes:
    named, valued = _SIZES[len(key)], _SIZES[len(value)]
    size = 2 + len(named) + len(key) + len(valued) + len(value)
    sized = _SIZES[size]
    return b"\x12%b\x12%b\x0a%b%b\x12%b%b" % (_SIZES[1 + len(sized) + size], sized, named, key, valued, value)


def delete(first: bytes, end: bytes = b"") -> bytes:
    return _operation(b"\x1a", range_of(first, end))


def nested(compares: Iterable[bytes], success: Iterable[bytes], failure: Iterable[bytes] = ()) -> bytes:
    return _operation(b"\x22", txn(compares, success, failure))


def _operation(tag: bytes, request: bytes) -> bytes:
    return chunk(b"\x12", chunk(tag, request))


def txn(compares: Iterable[bytes], success: Iterable[bytes], failure: Iterable[bytes] = ()) -> bytes:
    """A transaction of comparisons and operations, as they are made above."""
    return b"".join((*compares, *success, *(b"\x1a" + operation[1:] for operation in failure)))


def range_of(first: bytes, end: bytes = b"", limit: int = 0) -> bytes:
    """Keys from `first` to before `end`, or just `first`."""
    found = chunk(b"\x0a", first)
    if end:
        found += chunk(b"\x12", end)
    return found + (b"\x18" + varint(limit) if limit else b"")


def at(revision: int) -> bytes:
    """After a range: as it was at this revision."""
    return b"\x20" + varint(revision)


NEWEST_FIRST = b"\x28\x02\x30\x03\x40\x01"
"""After a range: only keys, in the order of their last change, the latest first."""


def watch(first: bytes, end: bytes, start: int) -> bytes:
    """What is put to these keys from this revision on."""
    return chunk(b"\x0a", range_of(first, end, start) + chunk(b"\x2a", b"\x01"))


def compaction(revision: int) -> bytes:
    return b"\x08" + varint(revision)


# --- reading ---------------------------------------------------------------------------------------------------------


class Malformed(ValueError):
    """That is no such message."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers of fields, and what is in them."""
    at, end = 0, len(data)
    try:
        while at < end:
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = _varint(data, at - 1)
            kind = tag & 7
            if kind == 2:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = _varint(data, at - 1)
                if at + size > end:
                    raise Malformed("it is cut short")
                yield tag >> 3, data[at : at + size]
                at += size
            elif kind == 0:
                number, at = _varint(data, at)
                yield tag >> 3, number
            else:
                at += {1: 8, 5: 4}[kind]
    except (IndexError, KeyError):
        raise Malformed("it can't be read") from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[at]) > 127:
        number |= (byte & 127) << shift
        shift += 7
        at += 1
    return number | byte << shift, at + 1


def parse(data: bytes) -> dict[int, list[int | bytes]]:
    found: dict[int, list[int | bytes]] = {}
    for number, value in fields(data):
        found.setdefault(number, []).append(value)
    return found


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise Malformed("a number stands where bytes should")
    return value


def key_value(data: bytes) -> KeyValue:
    key = value = b""
    revision = 0
    for number, found in fields(data):
        if number == 1:
            key = _bytes(found)
        elif number == 5:
            value = _bytes(found)
        elif number == 3 and isinstance(found, int):
            revision = found
    return KeyValue(key, value, revision)


def range_answer(data: bytes) -> Range:
    kvs = []
    more = False
    revision = 0
    for number, found in fields(data):
        if number == 2:
            kvs.append(key_value(_bytes(found)))
        elif number == 3:
            more = bool(found)
        elif number == 1:
            revision = next((int(part) for at, part in fields(_bytes(found)) if at == 3), 0)
    return Range(kvs, more, revision)


def txn_answer(data: bytes) -> Txn:
    succeeded = False
    responses: list[Range | Txn | None] = []
    for number, found in fields(data):
        if number == 2:
            succeeded = bool(found)
        elif number == 3:
            responses.append(_response(_bytes(found)))
    return Txn(succeeded, responses)


def succeeded(data: bytes) -> bool:
    """Whether a transaction did."""
    return any(number == 2 and found for number, found in _answered(data))


def verdicts(data: bytes) -> tuple[bool, list[bool]]:
    """Of a transaction of transactions: whether it succeeded, and which of them did."""
    succeeded = False
    parts: list[bool] = []
    for number, found in _answered(data):
        if number == 2:
            succeeded = bool(found)
        elif number == 3:
            parts.append(any(_succeeded(_bytes(part)) for at, part in fields(_bytes(found)) if at == 4))
    return succeeded, parts


def _answered(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    if data[:1] != b"\x0a":  # every answer begins with what etcd says of itself
        raise Malformed("it says nothing")
    return fields(data)


def _succeeded(data: bytes) -> bool:
    for number, found in fields(data):
        if number > 1:  # what follows is what became of its operations
            return number == 2 and bool(found)
    return False


def _response(data: bytes) -> Range | Txn | None:
    for number, found in fields(data):
        if number == 1:
            return range_answer(_bytes(found))
        if number == 4:
            return txn_answer(_bytes(found))
    return None


EVENT = 11
"""The field of a message of a watch that has one of its events."""


def watched(data: bytes) -> Watched:
    found = parse(data)
    parts = [part for event in found.get(EVENT, []) for number, part in fields(_bytes(event)) if number == 2]
    events = [key_value(_bytes(part)) for part in parts]
    compacted, reason = found.get(5, [0])[0], found.get(6, [b""])[0]
    return Watched(events, bool(found.get(4)), int(compacted), _bytes(reason).decode(errors="replace"))


def nothing(_data: bytes) -> None:
    """An answer that does not matter."""
