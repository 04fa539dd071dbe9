"""When this replica first saw what the store holds: how leases end where the store has no clock.

Clocks of two machines can't be compared, but how long something has been watched can be told by one of them alone. So
what is written says when it was written, by the clock of the replica that wrote it, and every other replica notes when
it first saw that very version, by its own. It was written before it was seen: if all its times are moved by the
difference, none comes too early, and each comes as late as the news did. From there on the record is in our time, the
state machine judges it as any other, and what we write is in our time again.

A lease that stays as it is while others write to its record, who queue up say, would end a little later with each of
them. So the end that was once known of it stands for as long as its token and its renewals do.

The news come by the change stream, as they happen; a load of something that was not heard of counts from that load.
"""

from itertools import islice
from typing import NamedTuple

from fencegate.clock import Clock
from fencegate.core.machine import not_later_than, shifted
from fencegate.core.model import LockRecord, Record, Session
from fencegate.core.ports import Interval

MARGIN_US = 50_000
"""By how much two clocks may drift apart within a lease, beside what clients allow for."""
MAX_OBSERVED = 200_000


class _Sight(NamedTuple):
    version: str
    first_us: int
    before: Record | None = None
    """What was last read here, in our time, if something in it ends."""


class Observed:
    """See the head of this file."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, _Sight] = {}

    def now(self) -> Interval:
        """Our time, in which every record is read here."""
        now_us = self._clock.now_us()
        return Interval(now_us - MARGIN_US, now_us)

    def saw(self, entry: str, version: str, at_us: int | None = None) -> int:
        """This version is there, at the latest since `at_us` (None: now). Gives when it was first seen."""
        at_us = self._clock.now_us() if at_us is None else at_us
        known = self._seen.get(entry)
        if known is None:
            self._make_room()
            self._seen[entry] = _Sight(version, at_us)
        elif known.version != version:
            self._seen[entry] = known._replace(version=version, first_us=at_us)
        elif known.first_us > at_us:
            self._seen[entry] = known._replace(first_us=at_us)
        else:
            return known.first_us
        return at_us

    def here(self, entry: str, version: str, record: Record, written_us: int) -> Record:
        """The record in our time."""
        if not written_us:
            return record
        record = shifted(record, self.saw(entry, version) - written_us)
        before = self._seen[entry].before
        if before is not None:
            record = not_later_than(before, record)
        self._remember(entry, record)
        return record

    def wrote(self, entry: str, version: str, record: Record | None, written_us: int) -> None:
        """We wrote this, and it has landed."""
        self.saw(entry, version, written_us)
        self._remember(entry, record)

    def _remember(self, entry: str, record: Record | None) -> None:
        ends = isinstance(record, Session) or (isinstance(record, LockRecord) and record.holds)
        self._seen[entry] = self._seen[entry]._replace(before=record if ends else None)

    def _make_room(self) -> None:
        """Those seen first go; forgetting only makes a lease end later."""
        if len(self._seen) >= MAX_OBSERVED:
            for old in list(islice(self._seen, MAX_OBSERVED // 4)):
                del self._seen[old]
