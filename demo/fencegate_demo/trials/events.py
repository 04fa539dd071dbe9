"""What happened in the trial of a use, as data: workers say it as JSON lines, and everything shown later is made of it.

All times are microseconds of the machine's monotonic clock, which its processes share.
"""

from collections.abc import Iterable
from typing import Literal, TypeVar

import msgspec

from fencegate_demo.events import Paused, Resumed


class Born(msgspec.Struct, frozen=True, tag="born"):
    """A worker's process runs, and waits to be told to go."""

    at_us: int
    actor: str
    pid: int


class Began(msgspec.Struct, frozen=True, tag="began"):
    at_us: int
    actor: str


class Touched(msgspec.Struct, frozen=True, tag="touched"):
    """The resource answered: it did as it was asked, or refused the token as stale. Nothing else is an answer."""

    at_us: int
    actor: str
    lock_key: str
    token: int
    kind: Literal["read", "write"]
    accepted: bool


class Done(msgspec.Struct, frozen=True, tag="done"):
    at_us: int
    actor: str


class Stumbled(msgspec.Struct, frozen=True, tag="stumbled"):
    """A worker's program failed for another reason than a stale token or a lost lock."""

    at_us: int
    actor: str
    why: str


class Killed(msgspec.Struct, frozen=True, tag="killed"):
    """The process got a SIGKILL, and is gone."""

    at_us: int
    actor: str


Told = Born | Began | Touched | Done | Stumbled
"""What workers say."""

Event = Told | Killed | Paused | Resumed
E = TypeVar("E", bound=Event)


def only(kind: type[E], events: Iterable[Event], actor: str | None = None) -> list[E]:
    """The events of one kind (and of one actor), in the order in which they happened."""
    found = [event for event in events if isinstance(event, kind) and actor in (None, event.actor)]
    return sorted(found, key=lambda event: event.at_us)
