"""Durations: seconds in code, whole milliseconds on the wire, microseconds on the clock."""

import math

from fencegate.core.errors import InvalidInput

MIN_TTL_S = 1.0
MAX_TTL_S = 3600.0


def ttl_millis(ttl_s: float) -> int:
    """A time to live as the wire has it; InvalidInput when the lock service would refuse it."""
    if not _is_number(ttl_s) or not MIN_TTL_S <= ttl_s <= MAX_TTL_S:
        raise InvalidInput("ttl", f"must be {MIN_TTL_S:g} to {MAX_TTL_S:g} seconds")
    return round(ttl_s * 1000)


def wait_seconds(wait_s: float | None) -> float:
    """How long to wait: 0 when not at all, infinity for as long as it takes."""
    if wait_s is None:
        return 0.0
    if not _is_number(wait_s) or wait_s < 0:
        raise InvalidInput("wait", "must be seconds, 0 or more, or None for not at all")
    return float(wait_s)


def timeout_seconds(timeout_s: float) -> float:
    if not _is_number(timeout_s) or not 0 < timeout_s < math.inf:
        raise InvalidInput("timeout", "must be seconds, more than 0")
    return float(timeout_s)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
