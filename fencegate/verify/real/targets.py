"""Whom a fault is done to: one at a time for each, and of a pair one is left alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Target(Protocol):
    busy: bool


T = TypeVar("T", bound=Target)


@contextmanager
def busy(target: Target) -> Iterator[None]:
    """While a fault is being done to it."""
    target.busy = True
    try:
        yield
    finally:
        target.busy = False


def pick(among: Sequence[T], which: int) -> T | None:
    """One of them; but of a pair (replicas, gateways) one is left alone, or nothing would be tried meanwhile."""
    able = [each for each in among if not each.busy]
    if not able or (len(among) == 2 and len(able) == 1):
        return None
    return able[which % len(able)]
