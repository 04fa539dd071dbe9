"""Times that PostgreSQL keeps and Python has none for: infinity, years before 1 and after 9999, and the hour 24.

They travel as the text that PostgreSQL has for them, those with a zone in UTC, and are written by the same text.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import types
from sqlalchemy.types import TypeEngine

from fencegate_adapters.sql.codec import Codec

_ZONED = re.compile(r"(\d+)(-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d+))?([-+]\d\d(?::\d\d){0,2})( BC)?", re.ASCII)
_CYCLE = 400
"""After so many years the calendar repeats itself, to the day."""


def tell_far_times(driver: Any, _: object = None) -> None:
    """On this connection of psycopg, a value that can't be one of Python's is its text, and no error: the rest of its
    row is as good as any other."""
    from psycopg import DataError
    from psycopg.adapt import Loader
    from psycopg.pq import Format

    def telling(usual: type[Any], in_utc: Callable[[Any], Any], far: Callable[[str], Any]) -> type[Any]:
        class Telling(Loader):
            def __init__(self, oid: int, context: Any = None) -> None:
                super().__init__(oid, context)
                self._usual = usual(oid, context)

            def load(self, data: Any) -> Any:
                try:
                    return in_utc(self._usual.load(data))
                except (DataError, OverflowError):
                    return far(bytes(data).decode())

        return Telling

    for name in ("date", "time", "timestamp", "timestamptz"):
        oid = driver.adapters.types[name].oid
        usual = driver.adapters.get_loader(oid, Format.TEXT)
        # The zone of the session may itself be what leads beyond the last year, or back from there.
        ways = (lambda value: value.astimezone(UTC), _far_in_utc) if name == "timestamptz" else (_same, _same)
        driver.adapters.register_loader(oid, telling(usual, *ways))


def _far_in_utc(text: str) -> str | datetime:
    found = _ZONED.fullmatch(text)
    if found is None:
        return text  # infinity
    year, rest, fraction, zone, before_christ = found.groups()
    cycles, place = divmod(1 - int(year) if before_christ else int(year), _CYCLE)
    near = datetime.fromisoformat(f"{2000 + place}{rest}{zone}").astimezone(UTC)
    there = near.year - 2000 + cycles * _CYCLE
    if 1 <= there <= 9999:
        return near.replace(year=there, microsecond=int((fraction or "0").ljust(6, "0")))
    digits = f".{fraction}" if fraction else ""
    told = f"{near:-%m-%d %H:%M:%S}{digits}+00"
    return f"{there:04}{told}" if there > 0 else f"{1 - there:04}{told} BC"


def taking_far_times(kind: TypeEngine[Any], codec: Codec) -> Codec:
    """The codec of a column of PostgreSQL that may hold such a time: what was read can be written."""
    pattern = _pattern(kind)
    if pattern is None:
        return codec

    def decode(value: Any) -> Any:
        if isinstance(value, str) and pattern.fullmatch(value):
            return value  # whether there is such a day, PostgreSQL says
        return codec.decode(value)

    return codec._replace(decode=decode)


def _pattern(kind: TypeEngine[Any]) -> re.Pattern[str] | None:
    if isinstance(kind, types.Time):
        return re.compile("24:00:00")
    if isinstance(kind, types.DateTime):
        precision = getattr(kind, "precision", None)
        digits = 6 if precision is None else int(precision)  # more would be rounded
        fraction = rf"(\.\d{{1,{digits}}})?" if digits else ""
        clock = rf" ([01]\d|2[0-3]):[0-5]\d:[0-5]\d{fraction}" + (r"\+00" if kind.timezone else "")
    elif isinstance(kind, types.Date):
        clock = ""
    else:
        return None
    after, before = rf"[1-9]\d{{4,6}}-\d\d-\d\d{clock}", rf"\d{{4,7}}-\d\d-\d\d{clock} BC"
    return re.compile(f"-?infinity|{after}|{before}", re.ASCII)


def _same(value: Any) -> Any:
    return value
