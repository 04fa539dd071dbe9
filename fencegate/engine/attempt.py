"""A fold on its way to the store: the commit that it asks for, on condition that all it saw is unchanged."""

from collections.abc import Mapping, Sequence

import msgspec

from fencegate.core.model import LOCKS, SESSIONS, Done, Record
from fencegate.core.ports import Change, Interval
from fencegate.engine.codec import RECENT, encode, encode_line
from fencegate.engine.fold import Fold
from fencegate.engine.known import ABSENT, Known
from fencegate.engine.lane import Lane

LAND_WITHIN_US = 10_000_000

_new = tuple.__new__  # as `Change(…)`, but for a call of Python


class Attempt(msgspec.Struct, eq=False, gc=False):
    """See the head of this file."""

    result: Fold
    entry: str
    """One of the entries that are written: its commits tell whether this one landed."""
    before: Known
    after: dict[str, Known]
    """What was written, as it is when the commit has landed."""
    commit_id: str
    changes: list[Change]
    log: list[tuple[str, bytes]]
    not_after_us: int
    written_us: int

    @property
    def largest(self) -> int:
        """The bytes of the largest value."""
        return max([len(change.value) for change in self.changes if change.value is not None], default=0)


def attempt(
    lanes: Sequence[Lane], result: Fold, now: Interval, commit_id: str, replica: str, watched: bool = False
) -> Attempt:
    """`watched`: the store has no clock, so others have to be told which version they see, and when it was written."""
    seen, writes = result.seen, result.writes
    changes: list[Change] = []
    if len(seen) > len(writes):
        changes += [Change(name, known.version, "", None, True) for name, known in seen.items() if name not in writes]
    after: dict[str, Known] = {}
    written_us = now.latest if watched else 0
    for name, record in writes.items():
        before = seen[name]
        if type(record) is Done:  # which nobody rests on: it is asked for by its name, from the store
            value = encode(record)
            changes.append(_new(Change, (name, before.version, commit_id, value, False, record.until_us)))
        elif record is None:
            changes.append(Change(name, before.version, commit_id))
            after[name] = ABSENT
        else:
            commits = (commit_id, *before.commits[: RECENT - 1])
            value = encode(record, commits, written_us)
            changes.append(_new(Change, (name, before.version, commit_id, value, False, None)))
            after[name] = Known(commit_id, record, commits)
    entry = lanes[0].entry
    if writes.get(entry) is None:
        entry = _witness(lanes, writes)
    version = commit_id if watched else ""
    lines = [(LOCKS + event.lock_key, encode_line(replica, event, version)) for event in result.events]
    if not lines or watched or len(lanes) > 1:
        told = {name for name, _ in lines}
        moved = _moving(writes) if watched else _moved(lanes, writes)
        lines += [(name, encode_line(replica, None, version)) for name in moved if name not in told]
    by_us = now.latest + LAND_WITHIN_US
    not_after_us = by_us if result.not_after_us is None else min(result.not_after_us, by_us)
    return Attempt(result, entry, seen.get(entry, ABSENT), after, commit_id, changes, lines, not_after_us, written_us)


def _moved(lanes: Sequence[Lane], writes: Mapping[str, Record | None]) -> list[str]:
    """The locks that were written: others have to hear of it, also when only the queue moved."""
    return [lane.entry for lane in lanes if lane.entry in writes and lane.entry.startswith(LOCKS)]


def _moving(writes: Mapping[str, Record | None]) -> list[str]:
    """All that was written and will end by itself: whoever watches it counts from when it hears of it."""
    return [name for name, record in writes.items() if record is not None and name.startswith((LOCKS, SESSIONS))]


def _witness(lanes: Sequence[Lane], writes: Mapping[str, Record | None]) -> str:
    for lane in lanes:
        if writes.get(lane.entry) is not None:
            return lane.entry
    return next(
        (name for name, record in writes.items() if record is not None and name.startswith((LOCKS, SESSIONS))),
        lanes[0].entry,
    )
