"""One command being judged: the entries that it is shown, and the effects gathered so far."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fencegate.core.commands import HandOverAll, Outcome, Step
from fencegate.core.model import Ending, Event, Limits, Record, Session, session_entry
from fencegate.core.ports import Interval

if TYPE_CHECKING:
    from fencegate.core.machine.lock import LockTurn

_new = tuple.__new__  # as `Step(…)`, but for a call of Python


class Missing(Exception):
    """The command can't be decided without these entries."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        super().__init__(entries)
        self.entries = entries


class Turn:
    """See the head of this file. What was not shown and has to be known is `Missing`."""

    __slots__ = ("events", "limits", "next", "not_after", "now", "records", "shaken", "writes")

    def __init__(self, records: Mapping[str, Record | None], now: Interval, limits: Limits) -> None:
        self.records = records
        self.now = now
        self.limits = limits
        self.writes: dict[str, Record | None] = {}
        self.events: list[Event] = []
        self.not_after: int | None = None
        self.next: list[HandOverAll] = []
        self.shaken = False

    def read(self, entry: str) -> Record | None:
        """An entry as this turn has left it."""
        if entry in self.writes:
            return self.writes[entry]
        try:
            return self.records[entry]  # which may find it at this very moment, so it is not asked whether it is there
        except KeyError:
            raise Missing((entry,)) from None

    def require(self, entries: Iterable[str]) -> None:
        """Ask for all that is missing of these at once, rather than one after the other."""
        missing = tuple([entry for entry in entries if entry not in self.records and entry not in self.writes])
        if missing:
            raise Missing(missing)

    def session(self, session_id: str) -> Session | None:
        """A session as it is now: one that has run out ends here, by a write on its own record."""
        entry = session_entry(session_id)
        found = self.read(entry)
        if not isinstance(found, Session):
            return None
        if found.ended is None and found.expires_us <= self.now.earliest:
            found = replace(found, ended=Ending.EXPIRED, ended_us=found.expires_us, revoked=())
            self.writes[entry] = found
        return found

    def must_land_before(self, us: int) -> None:
        self.not_after = us - 1 if self.not_after is None else min(self.not_after, us - 1)

    def step(self, outcome: Outcome, *locks: "LockTurn") -> Step:
        """All that came of it, with what became of these locks. (They are not kept here: a turn and its locks that knew
        each other would be garbage in a ring, for each command.)"""
        for lock in locks:
            lock.write()
        return _new(Step, (outcome, self.writes, tuple(self.events), self.not_after, tuple(self.next), self.shaken))

    def nothing_but(self, outcome: Outcome) -> Step:
        """The outcome, with whatever else was under way left undone."""
        return Step(outcome)
