"""Columns as JSON and back: decimals and 64-bit integers as strings, times as RFC 3339, bytes as base64."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any, NamedTuple

from sqlalchemy import types
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,19})", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,200}(\.[0-9]{1,200})?", re.ASCII)
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_TIME = re.compile(r"\d\d:\d\d:\d\d(\.\d{1,6})?", re.ASCII)

_SAFE_INTEGER = 2**53 - 1
_MAX_DIGITS_OF_A_DOUBLE = 15


class Codec(NamedTuple):
    """How the values of one column travel. `decode` raises ValueError with what it expected; null is not its matter."""

    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any]


def codec_of(kind: TypeEngine[Any]) -> Codec | None:
    """The codec of a column type; None when there is none."""
    found = next((codec for base, codec in _CODECS if isinstance(kind, base)), None)
    if found is None or isinstance(kind, _WITHOUT_JSON):
        return None
    if isinstance(kind, types.DateTime | types.Time):
        return _codec_of_time(kind, found)
    if is_decimal(kind):
        scale = getattr(kind, "scale", None)
        return found._replace(encode=_shortest_decimal_json) if scale is None else _codec_of_scale(scale, found)
    if isinstance(kind, types.Enum):
        return found._replace(decode=_one_of(kind.enums))
    if isinstance(kind, mysql.BIGINT) and kind.unsigned:
        return found._replace(decode=_unsigned)
    if isinstance(kind, mysql.TINYINT) and kind.display_width == 1:
        return Codec(_boolean, lambda value: bool(value) if value in (0, 1) else value)
    return found


def is_decimal(kind: TypeEngine[Any]) -> bool:
    """SQLAlchemy 2.0 has floating-point numbers among the decimals."""
    return isinstance(kind, types.Numeric) and not isinstance(kind, types.Float)


def spells_keys(codec: Codec) -> bool:
    """Whether a key, which is text, can name such values."""
    return codec.decode not in (_boolean, _float, _same)


def _codec_of_time(kind: TypeEngine[Any], codec: Codec) -> Codec | None:
    """Some columns keep less than microseconds, and would round what they are given."""
    zoned = isinstance(kind, types.DateTime | types.Time) and kind.timezone
    if isinstance(kind, types.Time) and zoned:
        return None
    digits = getattr(kind, "fsp", None) if isinstance(kind, _MYSQL_TIMES) else getattr(kind, "precision", None)
    if digits is None:
        digits = 0 if isinstance(kind, _MYSQL_TIMES) else 6
    step = 10 ** (6 - int(digits))

    def decode(value: Any) -> Any:
        decoded = codec.decode(value)
        if decoded.microsecond % step:
            raise ValueError(f"would be rounded: it takes {digits} digits of a second")
        return decoded.replace(tzinfo=UTC) if zoned else decoded

    return codec._replace(decode=decode)


def _codec_of_scale(scale: int, codec: Codec) -> Codec:
    step = Decimal(1).scaleb(-scale)
    digits = 500 + abs(scale)  # more than can be sent, and those that the column adds

    def decode(value: Any) -> Any:
        decoded = codec.decode(value)
        with localcontext(prec=digits):
            if decoded != decoded.quantize(step):
                raise ValueError(f"would be rounded to {decoded.quantize(step):f}")
        return decoded

    return codec._replace(decode=decode)


def _one_of(allowed: Sequence[str]) -> Callable[[Any], str]:
    def decode(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}"[:300])
        return value

    return decode


# --- numbers ---------------------------------------------------------------------------------------------------------


def _integer(value: Any) -> int:
    return _whole(value, range(-(2**63), 2**63))


def _unsigned(value: Any) -> int:
    return _whole(value, range(2**64))


def _whole(value: Any, allowed: range) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value) and value != "-0":
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        signed = "" if allowed.start else ", and not negative"
        raise ValueError(f"must be a whole number of at most 64 bits{signed}")
    return value


def _integer_json(value: Any) -> Any:
    return value if isinstance(value, int) and abs(value) <= _SAFE_INTEGER else str(value)


def _decimal(value: Any) -> Decimal:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return Decimal(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _SAFE_INTEGER:
        return Decimal(value)
    if isinstance(value, float):
        exact = _of_float(value)
        if exact is not None:
            return exact
    raise ValueError('must be a decimal number, best as a string: "12.50"')


def _of_float(value: float) -> Decimal | None:
    """The decimal that the sender wrote; None when a double can't tell."""
    try:
        number = Decimal(repr(value))
    except InvalidOperation:
        return None
    fits = number.is_finite() and len(number.as_tuple().digits) <= _MAX_DIGITS_OF_A_DOUBLE
    return number if fits else None


def _decimal_json(value: Any) -> str:
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _shortest_decimal_json(value: Any) -> str:
    """For a column that tells no scale: drivers pad such a value with zeros that nobody wrote."""
    text = _decimal_json(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("is too large for a floating-point number") from None


def _float_json(value: Any) -> Any:
    finite = isinstance(value, int) or (isinstance(value, float) and value - value == 0)
    return value if finite else str(value)


# --- times -----------------------------------------------------------------------------------------------------------


def _parsed(pattern: re.Pattern[str], parse: Callable[[str], Any], expected: str) -> Callable[[Any], Any]:
    def decode(value: Any) -> Any:
        if isinstance(value, str) and pattern.fullmatch(value):
            try:
                return parse(value)
            except (ValueError, OverflowError):
                pass
        raise ValueError(f"must be {expected}")

    return decode


def _utc(text: str) -> datetime:
    """Without a zone, for most columns keep none; `codec_of` puts it back for the ones that do."""
    return datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None)


def _datetime_json(value: Any) -> str:
    if not isinstance(value, datetime):
        return str(value)
    in_utc = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    return f"{in_utc.isoformat()}Z"


def _iso(value: Any) -> str:
    return value.isoformat() if isinstance(value, date | time) else str(value)


_RFC3339 = "a time as in RFC 3339 with its offset: 2030-01-31T12:00:00Z"


# --- the rest --------------------------------------------------------------------------------------------------------


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is not a character") from None
    return value


def _bytes(value: Any) -> bytes:
    try:
        decoded = base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        decoded = None
    if decoded is None or base64.b64encode(decoded).decode() != value:
        raise ValueError("must be bytes in base64")
    return decoded


def _bytes_json(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes | memoryview) else str(value)


def _uuid(value: Any) -> str:
    if not isinstance(value, str) or _UUID.fullmatch(value) is None:
        raise ValueError("must be a UUID in its usual form, in lower case")
    return value


def _scalar(value: Any) -> Any:
    """For a column without a type: SQLite keeps whatever it is given."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a string or a number")
    return _text(value) if isinstance(value, str) else _integer(value) if isinstance(value, int) else value


def _scalar_json(value: Any) -> Any:
    return _bytes_json(value) if isinstance(value, bytes) else _integer_json(value) if isinstance(value, int) else value


def _same(value: Any) -> Any:
    return value


_BINARY = (
    types.LargeBinary, types.BINARY, types.VARBINARY, mysql.TINYBLOB, mysql.MEDIUMBLOB, mysql.LONGBLOB,
)  # fmt: skip
_MYSQL_TIMES = (mysql.DATETIME, mysql.TIMESTAMP, mysql.TIME)
_WITHOUT_JSON = (mysql.SET, mysql.BIT, mysql.YEAR)

# The first that fits counts, so what derives from another stands before it.
_CODECS: tuple[tuple[type[Any], Codec], ...] = (
    (types.Boolean, Codec(_boolean, _same)),
    (types.BigInteger, Codec(_integer, str)),
    (types.Integer, Codec(_integer, _integer_json)),
    (types.Float, Codec(_float, _float_json)),
    (types.Numeric, Codec(_decimal, _decimal_json)),
    (types.Enum, Codec(_text, _same)),
    (types.String, Codec(_text, _same)),
    (types.DateTime, Codec(_parsed(_DATE_TIME, _utc, _RFC3339), _datetime_json)),
    (types.Date, Codec(_parsed(_DATE, date.fromisoformat, "a date: 2030-01-31"), _iso)),
    (types.Time, Codec(_parsed(_TIME, time.fromisoformat, "a time of day: 12:00:00"), _iso)),
    *((base, Codec(_bytes, _bytes_json)) for base in _BINARY),
    (types.Uuid, Codec(_uuid, str)),
    (types.JSON, Codec(_same, _same)),
    (types.NullType, Codec(_scalar, _scalar_json)),
)
