"""Locks and sessions as they are: fresh loads, for whoever only looks."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fencegate.core.machine import live_holds, sessions_of
from fencegate.core.model import LOCKS, Floor, Hold, LockRecord, Record, Session, floor_entry, lock_entry, session_entry
from fencegate.core.ports import Interval
from fencegate.engine.records import Records

PAGE = 500


class Seen(NamedTuple):
    """A lock as a fresh load showed it, with the time of that load."""

    record: LockRecord | None
    floor: int
    now: Interval
    holds: list[Hold]
    """Those that count now."""


class Looking:
    """See the head of this file. `begin` is called before each look at what others may change."""

    def __init__(self, records: Records, begin: Callable[[], None]) -> None:
        self._records = records
        self._begin = begin

    async def look(self, lock_key: str) -> Seen:
        """The lock as it is: a fresh load, for whoever only looks."""
        self._begin()
        now = self.now()
        found = await self._records.load([lock_entry(lock_key), floor_entry(lock_key)])
        record, floor = found[lock_entry(lock_key)].record, found[floor_entry(lock_key)].record
        holds: list[Hold] = []
        if isinstance(record, LockRecord):
            holds = live_holds(record, now, await self.sessions([record]))
        return Seen(
            record if isinstance(record, LockRecord) else None,
            floor.token if isinstance(floor, Floor) else 0,
            now,
            holds,
        )

    async def session(self, session_id: str) -> Session | None:
        self._begin()
        found = (await self._records.load([session_entry(session_id)]))[session_entry(session_id)].record
        return found if isinstance(found, Session) else None

    async def sessions(self, records: Sequence[LockRecord]) -> dict[str, Record | None]:
        """The session entries that the holds of these records live by."""
        entries = sorted({entry for record in records for entry in sessions_of(record)})
        found = await self._records.load(entries) if entries else {}
        return {entry: known.record for entry, known in found.items()}

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, LockRecord]]:
        """Lock records by key, `after` a lock key (or '')."""
        self._begin()
        rows = await self._records.scan(LOCKS + prefix, lock_entry(after) if after else "", limit)
        return [(entry.removeprefix(LOCKS), record) for entry, record in rows if isinstance(record, LockRecord)]

    async def count(self, prefix: str) -> int:
        """How many entries of the store begin like this."""
        number, after = 0, ""
        while page := await self._records.scan(prefix, after, PAGE):
            number += len(page)
            after = page[-1][0]
        return number

    def now(self) -> Interval:
        return self._records.now()
