"""What is kept of an object beside its bytes: Content-Type and X-Meta-* headers, bounded."""

import re
from collections.abc import Mapping

from fencegate.core.errors import InvalidInput
from fencegate.web.asgi import Headers, Request

DEFAULT_CONTENT_TYPE = "application/octet-stream"
MAX_CONTENT_TYPE_BYTES = 256
MAX_ENTRIES = 32
MAX_METADATA_BYTES = 8 * 1024

_PREFIX = b"x-meta-"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_PRINTABLE = re.compile(r"[\x20-\x7e]*")


def given_content_type(request: Request) -> str:
    values = request.headers(b"content-type")
    if not values or values == [""]:
        return DEFAULT_CONTENT_TYPE
    if len(values) > 1:
        raise InvalidInput("Content-Type", "is given twice")
    if len(values[0]) > MAX_CONTENT_TYPE_BYTES or _PRINTABLE.fullmatch(values[0]) is None:
        raise InvalidInput("Content-Type", f"must be at most {MAX_CONTENT_TYPE_BYTES} printable ASCII characters")
    return values[0]


def given_metadata(request: Request) -> dict[str, str]:
    """The X-Meta-* headers, by what follows the prefix, in lower case."""
    found: dict[str, str] = {}
    for raw_name, raw_value in request.all_headers():
        if not raw_name.startswith(_PREFIX):
            continue
        name, value = raw_name.removeprefix(_PREFIX).decode("latin-1"), raw_value.decode("latin-1")
        if _NAME.fullmatch(name) is None:
            raise InvalidInput("X-Meta", "names are 1 to 64 of a-z, 0-9, '-', '_' and '.'")
        if _PRINTABLE.fullmatch(value) is None:
            raise InvalidInput(f"X-Meta-{name}", "must be printable ASCII")
        if name in found:
            raise InvalidInput(f"X-Meta-{name}", "is given twice")
        found[name] = value
    if len(found) > MAX_ENTRIES or sum(len(name) + len(value) for name, value in found.items()) > MAX_METADATA_BYTES:
        raise InvalidInput("X-Meta", f"at most {MAX_ENTRIES} entries and {MAX_METADATA_BYTES} bytes of them are kept")
    return found


def metadata_headers(metadata: Mapping[str, str]) -> Headers:
    return [(_PREFIX + name.encode("ascii"), value.encode("ascii")) for name, value in metadata.items()]
