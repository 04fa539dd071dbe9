"""The Range header: one range of bytes."""

import re

from fencegate.core.errors import InvalidInput, RangeNotSatisfiable
from fencegate.core.ports import ObjectInfo
from fencegate.gateway.conditions import quoted
from fencegate.web.asgi import Request

_ONE = re.compile(r"bytes=\s*([0-9]{0,99})-([0-9]{0,99})\s*", re.ASCII | re.IGNORECASE)
"""Some clients write the end as 2^63-1 or 2^64-1."""


def wanted_range(request: Request, info: ObjectInfo) -> tuple[int, int] | None:
    """First and last byte, inclusive, of what is asked for; None for the whole object.

    Another unit, several ranges, and a range of a value that If-Range doesn't know are answered with the whole, as
    RFC 9110 allows.
    """
    value = request.header(b"range")
    if value is None or value[:6].lower() != "bytes=" or "," in value:
        return None
    if_range = request.header(b"if-range")
    if if_range is not None and if_range.encode("latin-1") != quoted(info.etag):
        return None
    found = _ONE.fullmatch(value)
    if found is None or not (found[1] or found[2]) or (found[1] and found[2] and int(found[1]) > int(found[2])):
        raise InvalidInput("Range", "must be like bytes=0-99, bytes=100- or bytes=-100")
    if not found[1]:
        first, last = max(0, info.size - int(found[2])), info.size - 1
    else:
        first, last = int(found[1]), min(int(found[2] or info.size), info.size - 1)
    if first > last:
        raise RangeNotSatisfiable(info.size)
    return first, last
