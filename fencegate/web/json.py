"""JSON as it comes from outside: strict, and with duplicate keys refused."""

import json
import math
import re
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
        raise InvalidInput(again.encode(errors="replace").decode(), "is given twice")
    return found


def _no_constants(text: str) -> Any:
    raise InvalidInput("body", f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise InvalidInput("body", f"{text[:32]} is beyond what a number can be")
    return number


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constants, parse_float=_finite)
_HALF = re.compile("[\ud800-\udfff]")


def loads(body: bytes) -> Any:
    """Decode a body, whatever its Content-Type said."""
    try:
        data = _decoder.decode(body.decode("utf-8"))
        if b"\\ud" in body or b"\\uD" in body:
            _refuse_halves(data)
        return data
    except UnicodeDecodeError:
        raise InvalidInput("body", "is not UTF-8") from None
    except RecursionError:
        raise InvalidInput("body", "is nested too deeply") from None
    except ValueError as error:  # also an integer of more than 4,300 digits
        raise InvalidInput("body", f"is not JSON ({str(error)[:80]})") from None


def _refuse_halves(data: Any) -> None:
    """JSON can spell half of a surrogate pair, which is no text, and which neither a store nor an answer can hold."""
    for name, value in data.items() if isinstance(data, dict) else (("body", data),):
        if _HALF.search(name) is not None:
            raise InvalidInput("body", "the name of a member is not text: it holds half of a surrogate pair")
        if _HALF.search(json.dumps(value, ensure_ascii=False)) is not None:
            raise InvalidInput(name, "is not text: it holds half of a surrogate pair")


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
    except UnicodeEncodeError:
        raise InvalidInput("body", "is not text: it holds half of a surrogate pair") from None


def _named(message: str) -> InvalidInput:
    """`Expected `int`, got `str` - at `$.ttlMillis`` names its field at the end, or between backticks when unknown."""
    detail, _, path = message.partition(" - at ")
    path = path.strip("`").removeprefix("$").lstrip(".")
    if not path and "field `" in detail:
        path = detail.split("field `", 1)[1].rstrip("`")
    return InvalidInput(path or "body", detail.replace("`", "'"))
