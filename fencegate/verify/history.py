"""What callers did and were told: the ground on which a judge decides. Times are microseconds of one true clock."""

from dataclasses import dataclass, field
from typing import Literal

Told = Literal["done", "refused", "unknown"]


@dataclass(slots=True)
class Hold:
    """One acquire that was granted."""

    client: str
    lock_key: str
    token: int
    asked_us: int
    granted_us: int
    believed_until_us: int
    """When its holder stopped believing in it: it began to release it, or its own deadline passed."""
    shared: bool = False
    """Whether others may hold it too, who share it."""


@dataclass(slots=True)
class Write:
    """One update under a token: read all that is there, add one's own, write it back."""

    client: str
    lock_key: str
    token: int
    update: str
    begun_us: int
    ended_us: int | None = None
    told: Told = "unknown"
    value: tuple[str, ...] | None = None
    """All that is there after it (nothing: deleted); None when the update was added to what its client had read."""
    group: tuple[str, ...] = ()
    """The keys that it was written to in one step, if it was more than one: there is a `Write` for each."""


@dataclass(slots=True)
class Read:
    """What a holder was shown."""

    client: str
    lock_key: str
    token: int | None
    begun_us: int
    ended_us: int | None = None
    updates: tuple[str, ...] | None = None
    """None when no answer came: its token may have been shown to the resource all the same. (With an end: a claim,
    which shows nothing.)"""


@dataclass(slots=True)
class InVain:
    """One acquire that waited, and was told that the lock is held."""

    client: str
    lock_key: str
    asked_us: int
    ended_us: int


@dataclass(slots=True)
class History:
    """All of a run, and what the resource holds at its end."""

    holds: list[Hold] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    in_vain: list[InVain] = field(default_factory=list)
    final: dict[str, tuple[str, ...]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    """Callers who were still waiting when they should not have been."""
    clocks_moved: bool = False
    commits_lost: bool = False
    """Whether the store forgot what it had acknowledged: then a lease may be given twice, but never a token."""
    came_back: list[str] = field(default_factory=list)
    """Commits that landed after an engine had said that they never will."""
    counters: tuple[str, ...] = ()
    """Keys under which one number is kept, to which each write adds one."""
    calm_from_us: int | None = None
    """From when on nothing went wrong, if that is known: then nobody waits in vain for what is free."""
    in_turn: bool = False
    """Whether nothing went wrong at all, so that those who wait come in the order in which they asked."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What must never happen, and did."""

    invariant: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what}"
