"""The model of a fenced register: a list of updates under a mark. What holders read and wrote, as its operations."""

from collections import defaultdict
from dataclasses import dataclass

from fencegate.verify.history import History
from fencegate.verify.linearizable import Operation

State = tuple[int, tuple[str, ...]]
"""The mark, and the updates."""
EMPTY: State = (0, ())


def _state(state: tuple[()] | State) -> State:
    return state or EMPTY


@dataclass(frozen=True, slots=True)
class ReadOf:
    """A read that showed these updates; with a token it claims."""

    client: str
    token: int | None
    begun_us: int
    ended_us: int | None
    updates: tuple[str, ...] | None

    def apply(self, state: tuple[()] | State) -> State | None:
        mark, updates = _state(state)
        if (self.updates is not None and updates != self.updates) or (self.token is not None and self.token < mark):
            return None
        return max(mark, self.token or 0), updates

    def rests_on(self, other: object) -> bool:
        """On the write that it saw."""
        return isinstance(other, WriteOf) and self.updates == other.updates

    def __str__(self) -> str:
        seen = "something" if self.updates is None else list(self.updates)
        return f"{self.client} ({self.token}) read {seen} at {self.begun_us}…{self.ended_us}"


@dataclass(frozen=True, slots=True)
class WriteOf:
    """A write of these updates that was accepted, or may have been."""

    client: str
    token: int
    begun_us: int
    ended_us: int | None
    updates: tuple[str, ...]

    def apply(self, state: tuple[()] | State) -> State | None:
        mark, _ = _state(state)
        return None if self.token < mark else (self.token, self.updates)

    def __str__(self) -> str:
        return f"{self.client} ({self.token}) wrote {list(self.updates)} at {self.begun_us}…{self.ended_us}"


@dataclass(frozen=True, slots=True)
class RefusedOf:
    """A write that was refused as stale: the mark was above it."""

    client: str
    token: int
    begun_us: int
    ended_us: int | None

    def apply(self, state: tuple[()] | State) -> State | None:
        mark, updates = _state(state)
        return (mark, updates) if self.token < mark else None

    def rests_on(self, other: object) -> bool:
        """On whoever raised the mark above it."""
        return isinstance(other, ReadOf | WriteOf) and (other.token or 0) > self.token

    def __str__(self) -> str:
        return f"{self.client} ({self.token}) was refused at {self.begun_us}…{self.ended_us}"


def operations(history: History) -> dict[str, list[Operation]]:
    """The operations on each key. A write is what its holder had read, and its own update, unless it says otherwise."""
    found: dict[str, list[Operation]] = defaultdict(list)
    shown: dict[tuple[str, int, str], tuple[str, ...]] = {}
    for read in history.reads:
        found[read.lock_key].append(ReadOf(read.client, read.token, read.begun_us, read.ended_us, read.updates))
    for write in history.writes:
        updates = write.value
        if updates is None:
            base = shown.get((write.client, write.token, write.lock_key))
            updates = (
                *(_base(history, write.client, write.lock_key, write.begun_us) if base is None else base),
                write.update,
            )
        if write.told == "refused":
            if write.group:  # it may have been refused for another key's sake
                continue
            found[write.lock_key].append(RefusedOf(write.client, write.token, write.begun_us, write.ended_us))
            continue
        ended_us = write.ended_us if write.told == "done" else None
        found[write.lock_key].append(WriteOf(write.client, write.token, write.begun_us, ended_us, updates))
        shown[write.client, write.token, write.lock_key] = updates
    return found


def _base(history: History, client: str, lock_key: str, before_us: int) -> tuple[str, ...]:
    """What this client was last shown before it wrote."""
    reads = [
        read
        for read in history.reads
        if read.client == client
        and read.lock_key == lock_key
        and read.ended_us is not None
        and read.ended_us <= before_us
    ]
    return (max(reads, key=lambda read: read.ended_us or 0).updates or ()) if reads else ()
