"""JSON as it comes from outside: strict, and with duplicate keys refused."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from fencegate.core.errors import InvalidInput

T = TypeVar("T")

dumps = msgspec.json.Encoder().encode


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        again = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InvalidInput(again[:64].encode(errors="replace").decode(), "is given twice")
    return found


def _no_constants(text: str) -> Any:
    raise InvalidInput("body", f"{text} is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constants)


def loads(body: bytes) -> Any:
    """Decode a body, whatever its Content-Type said."""
    try:
        return _decoder.decode(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidInput("body", "is not UTF-8") from None
    except RecursionError:
        raise InvalidInput("body", "is nested too deeply") from None
    except ValueError as error:  # also an integer of more than 4,300 digits
        raise InvalidInput("body", f"is not JSON ({str(error)[:80]})") from None


def convert(body: bytes, to: type[T]) -> T:
    """Decode a body into a msgspec structure; what doesn't fit raises InvalidInput with the field's name."""
    return convert_value(loads(body) if body else {}, to)


def convert_value(data: Any, to: type[T]) -> T:
    """The same for what was decoded already."""
    if not isinstance(data, Mapping):
        raise InvalidInput("body", "must be a JSON object")
    try:
        return msgspec.convert(data, to)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None


def _named(message: str) -> InvalidInput:
    """`Expected `int`, got `str` - at `$.ttlMillis`` names its field at the end, or between backticks when unknown."""
    detail, _, path = message.partition(" - at ")
    path = path.strip("`").removeprefix("$").lstrip(".")
    if not path and "field `" in detail:
        path = detail.split("field `", 1)[1].rstrip("`")
    return InvalidInput(path or "body", detail.replace("`", "'"))
