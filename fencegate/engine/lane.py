"""One lock key at work in this replica: what is known of it, what is asked of it, and who waits here."""

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from fencegate.core.errors import FencegateError, OutcomeUnknown, ShuttingDown, StoreUnavailable
from fencegate.core.machine import transition
from fencegate.core.model import (
    Acquire,
    Command,
    Event,
    ForceRelease,
    Granted,
    Limits,
    LockRecord,
    Need,
    Outcome,
    Queued,
    Record,
    Refused,
    Release,
    Renew,
    TakeUp,
    lock_entry,
)
from fencegate.core.ports import Interval


class Known(NamedTuple):
    """An entry as it was last seen: its version (None: absent), what it says, and the commits before it."""

    version: str | None
    record: Record | None
    commits: tuple[str, ...] = ()


ABSENT = Known(None, None)

Asked = tuple[Command, asyncio.Future[Outcome]]


@dataclass(slots=True, eq=False)
class Poll:
    """One caller who waits here: what it asked, to ask again if the place is lost, and where it hears of the grant."""

    command: Acquire
    granted: asyncio.Future[Granted]
    queued: bool = False
    """Whether it was given a place, so that it has to be asked for again when that is gone."""

    def hear(self, outcome: Outcome) -> None:
        """What came of it; a refusal that is not final leaves it waiting, for it will be asked for again."""
        if isinstance(outcome, Queued):
            self.queued = True
        elif self.queued and not self.granted.done():
            if isinstance(outcome, Granted):
                self.granted.set_result(outcome)
            elif isinstance(outcome, Refused) and is_final(outcome.error):
                self.granted.set_exception(outcome.error)


def is_final(error: FencegateError) -> bool:
    """Whether a refusal says for sure that nothing was done, and nothing waits."""
    return not isinstance(error, OutcomeUnknown | StoreUnavailable | ShuttingDown)


class Lane:
    """See the head of this file. One commit is in flight at a time; what comes meanwhile is folded into the next."""

    __slots__ = ("asked", "busy", "known", "lock_key", "waiting")

    def __init__(self, lock_key: str) -> None:
        self.lock_key = lock_key
        self.known: Known | None = None
        self.asked: list[Asked] = []
        self.busy = False
        self.waiting: dict[str, dict[str, Poll]] = {}
        """The polls that wait here, by request and attempt."""

    def take(self) -> list[Asked]:
        """Everything that was asked meanwhile; renewals and releases first, for they must not come too late."""
        asked, self.asked = self.asked, []
        if len(asked) > 1:
            asked.sort(key=lambda item: not isinstance(item[0], Renew | Release | ForceRelease))
        return asked


@dataclass(slots=True)
class Fold:
    """What several commands do together, one after the other: one commit."""

    seen: dict[str, Known]
    outcomes: list[Outcome] = field(default_factory=list)
    granted: dict[str, Granted] = field(default_factory=dict)
    """Waiters of this replica whom an offer reached, and who took it up in the same commit."""
    writes: dict[str, Record | None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    not_after_us: int | None = None


def fold(
    lane: Lane,
    commands: list[Command],
    seen: dict[str, Known],
    now: Interval,
    limits: Limits,
    *,
    assume_absent: bool,
) -> Fold | Need:
    """Run `commands` through the state machine.

    With `assume_absent`, an entry that was not seen is taken to be absent: the commit compares it, so that a wrong
    guess costs a second try and a right one saves a round trip.
    """
    result = Fold(seen)
    view: dict[str, Record | None] = {entry: known.record for entry, known in seen.items()}

    def run(command: Command) -> Outcome | Need:
        while True:
            step = transition(view, command, now, limits)
            if not isinstance(step, Need):
                break
            if not assume_absent:
                return step
            for entry in step.entries:
                view[entry] = None
                seen[entry] = ABSENT
        view.update(step.writes)
        result.writes.update(step.writes)
        result.events += step.events
        if step.not_after_us is not None:
            result.not_after_us = min(step.not_after_us, result.not_after_us or step.not_after_us)
        return step.outcome

    entry = lock_entry(lane.lock_key)
    for command in commands:
        outcome = run(command)
        if isinstance(outcome, Need):
            return outcome
        result.outcomes.append(outcome)
        while (request := _offered_here(lane, view.get(entry))) is not None:
            taken = run(TakeUp(lane.lock_key, request))
            if isinstance(taken, Need):
                return taken
            if not isinstance(taken, Granted):
                break
            result.granted[request] = taken
    if not assume_absent:
        unseen = tuple(name for name in result.writes if name not in seen)
        if unseen:
            return Need(unseen)
    return result


def _offered_here(lane: Lane, record: Record | None) -> str | None:
    if not lane.waiting or not isinstance(record, LockRecord) or record.offer is None:
        return None
    request = record.offer.waiter.who.request
    return request if request in lane.waiting else None
