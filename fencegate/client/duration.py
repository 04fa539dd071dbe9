"""The bounds of the durations that callers give: seconds in code, whole milliseconds on the wire."""

import math

from fencegate.core.durations import number_of_seconds
from fencegate.core.errors import InvalidInput

MIN_TTL_S = 1.0
MAX_TTL_S = 3600.0


def ttl_millis(ttl_s: float) -> int:
    """A time to live as the wire has it; InvalidInput when the lock service would refuse it."""
    return millis("ttl", ttl_s, MIN_TTL_S, MAX_TTL_S)


def millis(name: str, value_s: float, low_s: float, high_s: float) -> int:
    """A duration within bounds as the wire has it; InvalidInput names it `name`."""
    if not low_s <= number_of_seconds(value_s, name) <= high_s:
        raise InvalidInput(name, f"must be {low_s:g} to {high_s:g} seconds")
    return round(value_s * 1000)


def wait_seconds(wait_s: float | None) -> float:
    """How long to wait: 0 when not at all, infinity for as long as it takes."""
    return 0.0 if wait_s is None else number_of_seconds(wait_s, "wait")


def timeout_seconds(timeout_s: float) -> float:
    if not 0 < number_of_seconds(timeout_s, "timeout") < math.inf:
        raise InvalidInput("timeout", "must be seconds, more than 0")
    return float(timeout_s)
