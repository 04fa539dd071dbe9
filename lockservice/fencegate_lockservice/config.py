"""The `[locks]` table of the configuration, and the variables that go before it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fencegate.core.durations import seconds
from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate.core.model import DEFAULT_LIMITS

DAY_US = 86_400_000_000
MAX_HISTORY_US = 3650 * DAY_US
MAX_LOCK_DELAY_US = 3_600_000_000
MAX_WAITERS = 10_000

_OFF = ("off", "none", "false")
_KNOWN = ("history", "lock_delay", "max_waiters", "allow_unsafe_store")
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


_DEFAULT_HISTORY_US = 7 * DAY_US


@dataclass(frozen=True, slots=True)
class LockSettings:
    """How the lock service is set up, beside where its locks are kept."""

    history_us: int = _DEFAULT_HISTORY_US
    """How long the history remembers a hold after its end; 0: no history is written."""
    lock_delay_us: int = 0
    """The lock-delay of an acquire that names none."""
    max_waiters: int = DEFAULT_LIMITS.max_waiters
    """How many may wait for one lock."""
    allow_unsafe_store: bool = False
    """Whether a store is used whose settings were found to be unsafe."""

    @classmethod
    def of(cls, table: Any, variable: Callable[[str], str | None]) -> "LockSettings":
        """From the table, where no `variable` of that name is set; UnsafeConfiguration names what is wrong."""
        if table is None:
            table = {}
        if not isinstance(table, Mapping):
            raise UnsafeConfiguration("locks: must be a table: [locks]")
        unknown = sorted(set(table) - set(_KNOWN))
        if unknown:
            raise UnsafeConfiguration(f"locks.{unknown[0]}: is not a setting; there are {', '.join(_KNOWN)}")

        def given(name: str) -> Any:
            value = variable(name)
            return table.get(name) if value is None else value

        return cls(
            history_us=_history_us(given("history")),
            lock_delay_us=_duration_us("locks.lock_delay", given("lock_delay"), 0, MAX_LOCK_DELAY_US),
            max_waiters=_max_waiters(given("max_waiters")),
            allow_unsafe_store=_yes_or_no("locks.allow_unsafe_store", given("allow_unsafe_store")),
        )


def _history_us(value: Any) -> int:
    if value is False or value in _OFF:
        return 0
    return _duration_us("locks.history", value, _DEFAULT_HISTORY_US, MAX_HISTORY_US)


def _duration_us(name: str, value: Any, default_us: int, most_us: int) -> int:
    if value is None:
        return default_us
    try:
        length_us = seconds(value, name) * 1_000_000
    except InvalidInput as error:
        raise UnsafeConfiguration(error.detail) from None
    if length_us > most_us:
        raise UnsafeConfiguration(f"{name}: must be at most {most_us // 1_000_000} seconds")
    return round(length_us)


def _yes_or_no(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value is None or (isinstance(value, str) and value.lower() in _NO):
        return False
    if isinstance(value, str) and value.lower() in _YES:
        return True
    raise UnsafeConfiguration(f"{name}: must be true or false")


def _max_waiters(value: Any) -> int:
    if value is None:
        return DEFAULT_LIMITS.max_waiters
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 6:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_WAITERS:
        raise UnsafeConfiguration(f"locks.max_waiters: must be a whole number from 1 to {MAX_WAITERS}")
    return value
