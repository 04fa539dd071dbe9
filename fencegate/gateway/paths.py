"""What a raw path names: an area, a resource, and the segments of a key."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from fencegate.core.errors import InvalidInput
from fencegate.core.names import MAX_LOCK_KEY_BYTES, check_path, check_text
from fencegate.web.asgi import decode_name

PREFIXES = (b"/v1/resources/", b"/v1/fences/")

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Target(NamedTuple):
    """`segments` stay raw: only there can a verb be told from a key that spells it with `%`."""

    area: bytes
    resource: str
    segments: tuple[bytes, ...]


def parse(raw_path: bytes) -> Target:
    """Take a path of one of the `PREFIXES` apart."""
    _, _, area, raw_resource, *segments = raw_path.split(b"/")
    return Target(area, check_text("resource", _decode(raw_resource, "resource")), tuple(segments))


def names(segments: Sequence[bytes]) -> tuple[str, ...]:
    """The decoded segments of a key."""
    if sum(map(len, segments)) > 3 * MAX_LOCK_KEY_BYTES:  # nothing of this length decodes to a key
        raise InvalidInput("key", f"must be at most {MAX_LOCK_KEY_BYTES} bytes")
    return tuple(_decode(segment, "key") for segment in segments)


def check_key(segments: Sequence[str], field: str = "key") -> tuple[str, ...]:
    """The segments of a key, none of which can climb, hide or be mistaken for another."""
    for segment in segments:
        check_path(field, segment)
    check_text(field, "/".join(segments), MAX_LOCK_KEY_BYTES)
    return tuple(segments)


def _decode(raw: bytes, field: str) -> str:
    if _BROKEN_ESCAPE.search(raw) is not None:
        raise InvalidInput(field, "has a '%' that is no escape; write it as %25")
    return decode_name(raw, field)
