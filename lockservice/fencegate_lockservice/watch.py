"""Following locks: the change log of a store in the words of CONTRACT, filtered, and resumable at every event.

A place in the log is one number, `revision * 65536 + line`, since a commit may have several lines. The id of an event
is its own place. After a whole revision the place is its last conceivable line, so that a watcher of few locks moves on
with the log, whatever others do.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import msgspec

from fencegate.core.errors import InvalidInput
from fencegate.core.names import check_lock_key, check_text
from fencegate.core.ports import Changes, LogEntry, Store, Unavailable
from fencegate.engine.codec import decode_line

LINES = 1 << 16
LAST_LINE = LINES - 1
RESET = "reset"
LOOK_AGAIN_S = 0.5
MAX_DIGITS = 24

_WHY_RESET = "the log no longer reaches back to that place, or never had it: look at what you follow, then go on"

log = logging.getLogger("fencegate.watch")

_encode = msgspec.json.Encoder().encode


class Told(NamedTuple):
    """What a watcher hears: an event, or `reset`. `data` is JSON."""

    id: int
    kind: str
    lock_key: str
    data: bytes


class Batch(NamedTuple):
    """What comes together; `place` is where the log was read to, also when nothing of it was for this watcher."""

    place: int
    told: Sequence[Told] = ()
    lines: int = 0
    """How much of the log it is."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which locks are watched, all of them by default, and from which place on: None is from now on."""

    key: str | None = None
    prefix: str = ""
    since: int | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            check_lock_key(self.key, "key")
            if self.prefix:
                raise InvalidInput("prefix", "can't be given beside a key")
        if self.prefix:
            check_text("prefix", self.prefix, 1024)

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Wanted":
        """What the parameters `key`, `prefix` and `since` ask for."""
        since = place_of(query["since"], "since") if "since" in query else None
        return cls(query.get("key"), query.get("prefix", ""), since)

    def covers(self, lock_key: str) -> bool:
        return lock_key == self.key if self.key is not None else lock_key.startswith(self.prefix)


def place_of(text: str, field: str) -> int:
    """A place as it comes from outside."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise InvalidInput(field, "must be the id of an event: a whole number")
    return int(text)


class Watch:
    """The locks of a store, followed by any number of watchers. A slow one costs nobody anything: it reads on later."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def follow(self, wanted: Wanted) -> AsyncGenerator[Batch, None]:
        """Everything that was wanted, for ever, once each and in order; the first batch says where it begins."""
        place = wanted.since
        replays = self._store.capabilities.replays
        while True:
            try:
                async with aclosing(self._store.changes(_whole_before(place) if replays else None)) as stream:
                    lost = place is not None and not replays  # what came before can't be had again
                    async for changes in stream:
                        told = None if lost else _unseen(changes, place)
                        lost = False
                        place = changes.revision * LINES + LAST_LINE
                        if told is None:
                            yield Batch(place, [Told(place, RESET, "", _encode({"reason": _WHY_RESET}))])
                        else:
                            covered = [one for one in told if wanted.covers(one.lock_key)]
                            yield Batch(place, covered, len(changes.entries))
            except Unavailable as error:
                log.warning("the change stream broke, and is taken up again: %s", error)
            await asyncio.sleep(LOOK_AGAIN_S)


def _whole_before(place: int | None) -> int | None:
    """The last revision of which everything lies before this place, or at it."""
    if place is None:
        return None
    revision, line = divmod(place, LINES)
    return revision if line == LAST_LINE or revision == 0 else revision - 1


def _unseen(changes: Changes, place: int | None) -> list[Told] | None:
    """What lies behind this place; None when the place itself is not where it should be."""
    if changes.reset:
        return None
    told = [one for one in map(_told, changes.entries) if one is not None]
    if place is None:
        return told
    revision, line = divmod(place, LINES)
    if line == LAST_LINE or revision == 0:
        return told
    # In the middle of a revision: it comes again, as a whole. If it doesn't, it is of another log than this one.
    if not changes.entries or changes.entries[0].revision != revision:
        return None
    return [one for one in told if one.id > place]


@lru_cache(maxsize=4096)
def _told(entry: LogEntry) -> Told | None:
    """A line of the log, as all watchers hear it; None when it tells of no event (the queue moved, say)."""
    try:
        event = decode_line(entry.event).event
    except msgspec.MsgspecError:
        log.warning("line %d of revision %d can't be read; it was left out", entry.line, entry.revision)
        return None
    if event is None:
        return None
    data: dict[str, str | int] = {"lockKey": event.lock_key, "ownerId": event.owner_id}
    if event.token:
        data["fencingToken"] = str(event.token)
    data["at"] = event.at_us // 1000
    if event.reason is not None:
        data["reason"] = event.reason
    place = entry.revision * LINES + min(entry.line, LAST_LINE)
    return Told(place, event.kind, event.lock_key, _encode(data))
