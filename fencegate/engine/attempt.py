"""A fold on its way to the store: the commit that it asks for, on condition that all it saw is unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass

from fencegate.core.model import LOCKS, SESSIONS, Done, Record
from fencegate.core.ports import Change, Interval
from fencegate.engine.codec import RECENT, encode, encode_line
from fencegate.engine.fold import Fold
from fencegate.engine.known import ABSENT, Known
from fencegate.engine.lane import Lane

LAND_WITHIN_US = 10_000_000


@dataclass(slots=True, eq=False)
class Attempt:
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


def attempt(lanes: Sequence[Lane], result: Fold, now: Interval, commit_id: str, replica: str) -> Attempt:
    seen, writes = result.seen, result.writes
    changes = [Change(name, known.version, compare_only=True) for name, known in seen.items() if name not in writes]
    after: dict[str, Known] = {}
    for name, record in writes.items():
        before = seen.get(name, ABSENT)
        commits = (commit_id, *before.commits[: RECENT - 1])
        value = encode(record, commits) if record is not None else None
        keep_until_us = record.until_us if type(record) is Done else None
        changes.append(Change(name, before.version, commit_id, value, False, keep_until_us))
        after[name] = Known(commit_id, record, commits) if record is not None else ABSENT
    entry = _witness(lanes, writes)
    lines = [(LOCKS + event.lock_key, encode_line(replica, event)) for event in result.events]
    if not lines or len(lanes) > 1:
        told = {name for name, _ in lines}
        lines += [(name, encode_line(replica, None)) for name in _moved(lanes, writes) if name not in told]
    by_us = now.latest + LAND_WITHIN_US
    not_after_us = by_us if result.not_after_us is None else min(result.not_after_us, by_us)
    return Attempt(result, entry, seen.get(entry, ABSENT), after, commit_id, changes, lines, not_after_us)


def _moved(lanes: Sequence[Lane], writes: dict[str, Record | None]) -> list[str]:
    """The locks that were written: others have to hear of it, also when only the queue moved."""
    return [lane.entry for lane in lanes if lane.entry in writes and lane.entry.startswith(LOCKS)]


def _witness(lanes: Sequence[Lane], writes: dict[str, Record | None]) -> str:
    for lane in lanes:
        if writes.get(lane.entry) is not None:
            return lane.entry
    return next(
        (name for name, record in writes.items() if record is not None and name.startswith((LOCKS, SESSIONS))),
        lanes[0].entry,
    )
