"""Frozen values that are cheap to make: the type checker sees to it that nobody changes one.

To have Python see to it as well makes an object of eight fields cost six times as much, and a lock that is taken and
given back takes a dozen of them.
"""

from collections.abc import Callable
from dataclasses import dataclass as _dataclass
from typing import TypeVar

T = TypeVar("T")


def dataclass(*, frozen: bool, slots: bool) -> Callable[[type[T]], type[T]]:
    """In place of that of `dataclasses`, where values are made by the thousand."""
    return _dataclass(slots=slots, unsafe_hash=frozen)
