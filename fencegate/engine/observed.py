"""When this replica first saw what the store holds: how leases end where the store has no clock.

Clocks of two machines can't be compared, but how long something has been watched can be told by one of them alone. So
what is written says when it was written, by the clock of the replica that wrote it, and every other replica notes when
it first saw that very version, by its own. It was written before it was seen: if all its times are moved by the
difference, none comes too early, and each comes as late as the news did. From there on the record is in our time, the
state machine judges it as any other, and what we write is in our time again.

The news come by the change stream, as they happen; a load of something that was not heard of counts from that load.
"""

from itertools import islice

from fencegate.clock import Clock
from fencegate.core.machine import shifted
from fencegate.core.model import Record
from fencegate.core.ports import Interval

MARGIN_US = 50_000
"""By how much two clocks may drift apart within a lease, beside what clients allow for."""
MAX_OBSERVED = 200_000


class Observed:
    """See the head of this file."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, int]] = {}

    def now(self) -> Interval:
        """Our time, in which every record is read here."""
        now_us = self._clock.now_us()
        return Interval(now_us - MARGIN_US, now_us)

    def saw(self, entry: str, version: str, at_us: int | None = None) -> int:
        """This version is there, at the latest since `at_us` (None: now). Gives when it was first seen."""
        at_us = self._clock.now_us() if at_us is None else at_us
        known = self._seen.get(entry)
        if known is not None and known[0] == version:
            if known[1] <= at_us:
                return known[1]
        elif len(self._seen) >= MAX_OBSERVED:  # those seen first; forgetting only makes a lease end later
            for old in list(islice(self._seen, MAX_OBSERVED // 4)):
                del self._seen[old]
        self._seen[entry] = (version, at_us)
        return at_us

    def here(self, entry: str, version: str, record: Record, written_us: int) -> Record:
        """The record in our time."""
        if not written_us:
            return record
        return shifted(record, self.saw(entry, version) - written_us)
