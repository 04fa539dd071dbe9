"""Durations: seconds in code, "30s" where people write them. The one place that reads either."""

import math
import re

from fencegate.core.errors import InvalidInput

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_WRITTEN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(ms|s|m|h|d|)", re.ASCII)
_EXAMPLES = '"500ms", "30s", "10m", "1h", "7d", or a number of seconds'


def seconds(value: object, name: str = "duration") -> float:
    """A length of time as a setting or an option gives it; InvalidInput names it `name`.

    >>> seconds("500ms"), seconds("10m"), seconds("7d"), seconds("1.5"), seconds(3)
    (0.5, 600.0, 604800.0, 1.5, 3.0)
    """
    if not isinstance(value, str):
        return number_of_seconds(value, name)
    written = _WRITTEN.fullmatch(value.strip())
    if written is None:
        raise InvalidInput(name, f"{value[:40]!r} is not a duration; write {_EXAMPLES}")
    number, unit = written.groups()
    # By division: 0.001 is no exact number, and 500 times it need not be half a second.
    return float(number) / 1000 if unit == "ms" else float(number) * _UNITS_S[unit]


def number_of_seconds(value: object, name: str = "duration") -> float:
    """A length of time as code gives it: a number, 0 or more. Infinity is one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value < 0:
        raise InvalidInput(name, "must be a number of seconds, 0 or more")
    return float(value)
