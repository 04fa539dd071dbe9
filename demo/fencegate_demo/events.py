"""What happened in a trial, as data: holders say it as JSON lines, and everything shown later is made from it.

All times are microseconds of the machine's monotonic clock, which its processes share.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A holder's process runs and waits for commands."""

    at_us: int
    actor: str


class Granted(msgspec.Struct, frozen=True, tag="granted"):
    """The lock service gave `actor` the lock, until `until_us`."""

    at_us: int
    actor: str
    token: int
    asked_us: int
    until_us: int
    claimed: bool = False
    """Whether the fence was raised to `token` before `actor` was told of the grant."""


class Read(msgspec.Struct, frozen=True, tag="read"):
    """A read was answered to the holder of `token`; a fenced one has shown that token to the resource."""

    at_us: int
    actor: str
    token: int
    updates: tuple[str, ...]
    fenced: bool = True


class Wrote(msgspec.Struct, frozen=True, tag="wrote"):
    """A write was answered: acknowledged, or refused as stale. Nothing else counts as an answer."""

    at_us: int
    actor: str
    token: int
    sent_us: int
    update: str
    acknowledged: bool


class Released(msgspec.Struct, frozen=True, tag="released"):
    at_us: int
    actor: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A holder can't go on: the trial proves nothing."""

    at_us: int
    actor: str
    why: str


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """The kernel says that the process `actor` is stopped."""

    at_us: int
    actor: str


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    at_us: int
    actor: str


Event = Ready | Granted | Read | Wrote | Released | Failed | Paused | Resumed
E = TypeVar("E", bound=Event)


def only(kind: type[E], events: Iterable[Event], actor: str | None = None) -> list[E]:
    """The events of one kind (and of one actor), in the order in which they happened."""
    found = [event for event in events if isinstance(event, kind) and actor in (None, event.actor)]
    return sorted(found, key=lambda event: event.at_us)
