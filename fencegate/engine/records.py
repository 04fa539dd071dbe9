"""What the store holds, as records: loaded, listed, and judged by one time."""

import logging
from collections.abc import Sequence

import msgspec

from fencegate.clock import Clock
from fencegate.core.errors import StoreUnavailable
from fencegate.core.model import Record
from fencegate.core.ports import Entry, Interval, Store, Unavailable
from fencegate.engine.codec import decode
from fencegate.engine.known import ABSENT, Known
from fencegate.engine.observed import Observed

log = logging.getLogger("fencegate.engine")


class Records:
    """See the head of this file. A store that can't be asked is StoreUnavailable."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self.observed = None if store.capabilities.clock else Observed(clock)

    async def load(self, entries: Sequence[str]) -> dict[str, Known]:
        try:
            found = await self._store.load(entries)
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from None
        seen = {}
        for entry in entries:
            stored = found.get(entry)
            seen[entry] = self._read(entry, stored) if stored is not None else ABSENT
        return seen

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Record]]:
        """Entries by name, decoded."""
        read = [(entry, self._read(entry, stored).record) for entry, stored in await self._rows(prefix, after, limit)]
        return [(entry, record) for entry, record in read if record is not None]

    async def look_over(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Record | None]]:
        """The same for whoever has to go on with the others: None for what can't be read."""
        found: list[tuple[str, Record | None]] = []
        for entry, stored in await self._rows(prefix, after, limit):
            try:
                found.append((entry, self._read(entry, stored).record))
            except msgspec.MsgspecError as error:
                log.warning("the entry %r can't be read, and stays as it is: %s", entry, error)
                found.append((entry, None))
        return found

    async def _rows(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        try:
            return await self._store.scan(prefix, after, limit)
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from None

    def now(self) -> Interval:
        """The time that records are judged by: the store's, or ours where it has none."""
        try:
            interval = self._store.now()
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from None
        if self.observed is not None:
            return self.observed.now()
        if interval is None:
            raise StoreUnavailable(f"the store {self._store.name} can't tell the time")
        return interval

    def _read(self, entry: str, stored: Entry) -> Known:
        record, commits, written_us = decode(entry, stored.value)
        if self.observed is not None:
            record = self.observed.here(entry, stored.version, record, written_us)
        return Known(stored.version, record, commits)
