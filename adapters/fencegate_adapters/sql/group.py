"""Calls that share one transaction, and how each of them is judged in it."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from fencegate.core.errors import InvalidInput, NotFound, PreconditionFailed, StaleToken, TooLarge
from fencegate.core.ports import NO_CONDITIONS, Key, Row, RowWrite, Seen, ShadowRefusal
from fencegate_adapters.sql import fences
from fencegate_adapters.sql.marks import Marks
from fencegate_adapters.sql.shape import Change, Shape, Unsure, etag_of
from fencegate_adapters.sql.work import Done, Outcome, Work

Refused = (PreconditionFailed, NotFound, InvalidInput, TooLarge)
"""What refuses a write after its token was admitted: the mark stays raised."""


class Admitted(NamedTuple):
    """A call whose token passed, and the keys that it is about."""

    work: Work
    seen: Seen
    keys: list[Key]


class Planned(NamedTuple):
    """What it will do."""

    admitted: Admitted
    changes: list[Change]
    old: list[Row | None]


class Alone(Exception):
    """This call can't be judged in company."""


class Group:
    """One group in one transaction. Its outcomes count when that has committed; `left` are to be done alone."""

    def __init__(self, shape: Shape, marks: Marks, record: fences.Record) -> None:
        self._shape = shape
        self._marks = marks
        self._record = record
        self.outcomes: dict[Work, Outcome] = {}
        self.left: list[Work] = []

    def run(self, connection: Connection, works: Sequence[Work], wait_ms: int) -> None:
        passed = self._pass(connection, works, wait_ms)
        reads = [one for one in passed if one.work.reads is not None]
        writes = [one for one in passed if one.work.writes]
        self.outcomes.update((one.work, Done([], one.seen)) for one in passed if not one.keys)
        if reads:
            self._read(reads, self._fetch(connection, reads))
        if writes:
            self._write(connection, self._plan_blindly(writes) + self._plan_seeing(connection, writes))

    def _pass(self, connection: Connection, works: Sequence[Work], wait_ms: int) -> list[Admitted]:
        claims = {work.fence: work.token for work in works}
        marks, floor = self._marks.raise_free(connection, claims, wait_ms=wait_ms)
        passed = []
        for work in works:
            mark = marks.get(work.fence)
            if mark is None:
                self.left.append(work)
                continue
            try:
                seen = admitted(work.token, mark, floor, self._record.mode)
                passed.append(Admitted(work, seen, [self._shape.checked(key) for key in work.keys]))
            except (StaleToken, InvalidInput) as refusal:
                self.outcomes[work] = refusal
        return passed

    def _fetch(self, connection: Connection, some: Sequence[Admitted], *, lock: bool = False) -> dict[Key, Row]:
        keys = [key for one in some for key in one.keys]
        self._ambiguous = len(keys) > 1 and not self._shape.exact_keys
        return self._shape.fetch(connection, keys, lock=lock)

    def _read(self, reads: Sequence[Admitted], rows: dict[Key, Row]) -> None:
        for work, seen, (key,) in reads:
            row = rows.get(key)
            if row is None and self._ambiguous:
                self.left.append(work)
            else:
                self.outcomes[work] = Done([row], Seen(seen.mark, etag_of(row), shadow=seen.shadow))

    def _blind(self, one: Admitted) -> bool:
        return len(one.keys) == 1 and self._shape.blind(one.work.writes[0])

    def _plan_blindly(self, writes: Sequence[Admitted]) -> list[Planned]:
        """Without a look at the rows: it shows when they are written whether they are there."""
        blind = [one for one in writes if self._blind(one)]
        return self._plan(blind, {key: {} for one in blind for key in one.keys})

    def _plan_seeing(self, connection: Connection, writes: Sequence[Admitted]) -> list[Planned]:
        seeing = [one for one in writes if not self._blind(one)]
        return self._plan(seeing, self._fetch(connection, seeing, lock=True)) if seeing else []

    def _plan(self, writes: Sequence[Admitted], rows: dict[Key, Row]) -> list[Planned]:
        planned = []
        for one in writes:
            old = [rows.get(key) for key in one.keys]
            try:
                planned.append(Planned(one, self._changes(one, old), old))
            except Refused as refusal:
                self.outcomes[one.work] = refusal
            except Alone:
                self.left.append(one.work)
        return planned

    def _changes(self, one: Admitted, old: Sequence[Row | None]) -> list[Change]:
        changes = []
        for write, key, row in zip(one.work.writes, one.keys, old, strict=True):
            if row is None and write.op != "put" and self._ambiguous:
                raise Alone
            changes.append(decide(self._shape, write, key, row, one.work.token))
        return changes

    def _write(self, connection: Connection, planned: Sequence[Planned]) -> None:
        changes = [change for one in planned for change in one.changes]
        rows = self._shape.apply(connection, changes)
        untold = [change for change in changes if not change.known and change.key not in rows]
        missing = {change.key for change in untold if change.kind == "update" and self._shape.tells_updates}
        unknown = [change.key for change in untold if change.key not in missing]
        if unknown:
            rows |= self._shape.fetch(connection, unknown)
        for (work, seen, _), some, old in planned:
            if any(change.key in missing for change in some):
                if len(some) > 1:
                    raise Unsure
                self.left.append(work)  # it changed nothing, and it is told why when it is alone
                continue
            new = [row_after(change, rows, self._shape) for change in some]
            created = old[-1] is None and new[-1] is not None
            self.outcomes[work] = Done(new, Seen(seen.mark, etag_of(new[-1]), created=created, shadow=seen.shadow))


def admitted(token: int, mark: int, floor: int, mode: str) -> Seen:
    """Judged under the locks of the transaction. Shadow mode tells of what it would have refused."""
    try:
        return Seen(fences.admit(token, mark, floor))
    except StaleToken as stale:
        if mode == "enforce":
            raise
        return Seen(stale.highest, shadow=ShadowRefusal(token, stale.highest))


def decide(shape: Shape, write: RowWrite, key: Key, old: Row | None, token: int) -> Change:
    """What the write does, or one of `Refused`."""
    if write.conditions is not NO_CONDITIONS and not write.conditions.hold(etag_of(old)):
        raise PreconditionFailed("your own If-Match or If-None-Match did not hold: read again, then decide")
    if old is None and write.op != "put":
        name = "/".join(write.key)
        raise NotFound(f"there is nothing under {name}", key=name)
    return shape.change(write.op, key, old, write.value, token)


def row_after(change: Change, rows: dict[Key, Row], shape: Shape) -> Row | None:
    """The row after the change."""
    if change.known:
        return change.row
    row = rows.get(change.key)
    if row is None:
        raise Unsure  # something outside removed it, or gave it another key: a trigger, perhaps
    shape.check_kept(change, row)
    return row
