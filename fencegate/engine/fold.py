"""Several commands through the state machine, one after the other: one commit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fencegate.core.commands import (
    Command,
    Granted,
    GrantedAll,
    HandOverAll,
    Need,
    Nothing,
    Outcome,
    Pending,
    TakeUp,
    TakeUpAll,
)
from fencegate.core.machine import transition
from fencegate.core.model import LOCKS, Event, Limits, LockRecord, Record
from fencegate.core.ports import Interval
from fencegate.engine.known import Known
from fencegate.engine.lane import Lane

Guess = Callable[[str], Known]


@dataclass(slots=True)
class Fold:
    """What several commands do together."""

    seen: dict[str, Known]
    outcomes: list[Outcome] = field(default_factory=list)
    heard: dict[str, Outcome] = field(default_factory=dict)
    """Waiters of this replica whom an offer reached: what came of taking it up in the same commit."""
    writes: dict[str, Record | None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    not_after_us: int | None = None
    next: list[HandOverAll | TakeUpAll] = field(default_factory=list)
    """What has to be asked of more locks than are at work here."""
    shaken: bool = False
    """Whether somebody who waits here may have lost their place."""


class _Need(Exception):
    """The state machine has to see these."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        super().__init__(entries)
        self.entries = entries


def fold(
    lanes: Sequence[Lane],
    commands: Sequence[Command],
    seen: dict[str, Known],
    now: Interval,
    limits: Limits,
    guess: Guess | None,
) -> Fold | Need:
    """Run `commands` through the state machine.

    With a `guess`, what was not seen is taken from there: the commit compares it, so that a wrong guess costs a second
    try and a right one saves a round trip. Without one, it has to be loaded.
    """
    run = _Run(lanes, seen, now, limits, guess)
    try:
        for command in commands:
            run.result.outcomes.append(run.judge(command))
            run.serve_those_who_wait_here()
        if guess is None:
            unseen = tuple([name for name in run.result.writes if name not in seen])
            if unseen:
                return Need(unseen)
        return run.result
    except _Need as need:
        return Need(need.entries)


class _Run:
    __slots__ = ("_guess", "_lanes", "_limits", "_now", "_seen", "_view", "result")

    def __init__(
        self, lanes: Sequence[Lane], seen: dict[str, Known], now: Interval, limits: Limits, guess: Guess | None
    ) -> None:
        self._lanes = lanes
        self._seen = seen
        self._now = now
        self._limits = limits
        self._guess = guess
        self._view: dict[str, Record | None] = {entry: known.record for entry, known in seen.items()}
        self.result = Fold(seen)
        # What others did to the queue is seen in what was loaded; what was lost, in what is absent.
        self.result.shaken = guess is None or any(seen[lane.entry].version is None for lane in lanes)

    def judge(self, command: Command) -> Outcome:
        view, guess = self._view, self._guess
        step = transition(view, command, self._now, self._limits)
        while type(step) is Need:
            if guess is None:
                raise _Need(step.entries)
            for entry in step.entries:
                self._seen[entry] = known = guess(entry)
                view[entry] = known.record
            step = transition(view, command, self._now, self._limits)
        assert not isinstance(step, Need)
        result = self.result
        view.update(step.writes)
        result.writes.update(step.writes)
        result.events += step.events
        if step.not_after_us is not None:
            result.not_after_us = min(step.not_after_us, result.not_after_us or step.not_after_us)
        result.shaken = result.shaken or step.shaken
        for later in step.next:
            self._later(later)
        return step.outcome

    def _later(self, command: HandOverAll | TakeUpAll) -> None:
        if command not in self.result.next:
            self.result.next.append(command)

    def serve_those_who_wait_here(self) -> None:
        """Whoever is offered a lock and waits here takes it up at once, in the same commit."""
        for lane in self._lanes:
            while lane.waiting and (taking := self._offered_here(lane)) is not None:
                outcome = self.judge(taking)
                if isinstance(outcome, Nothing):
                    break
                self.result.heard[taking.request] = outcome
                if isinstance(outcome, Pending):
                    break
        if len(self._lanes) > 1 and self.result.next:
            self._hand_over_all()

    def _hand_over_all(self) -> None:
        """Somebody who waits for several locks, all of which are at work here, is seen to in the same commit."""
        here = {lane.entry for lane in self._lanes}
        for command in [command for command in self.result.next if here.issuperset(command.at)]:
            self.result.next.remove(command)
            self.judge(command)
            taking = TakeUpAll(command.lock_keys, command.request)
            if any(taking.request in lane.waiting for lane in self._lanes):
                outcome = self.judge(taking)
                if isinstance(outcome, Granted | GrantedAll):
                    self.result.heard[taking.request] = outcome

    def _offered_here(self, lane: Lane) -> TakeUp | None:
        record = self._view.get(lane.entry)
        if not isinstance(record, LockRecord) or record.offer is None:
            return None
        who = record.offer.waiter.who
        if who.request not in lane.waiting:
            return None
        if who.terms.group:
            self._later(TakeUpAll(who.terms.group, who.request))
            return None
        return TakeUp(lane.entry.removeprefix(LOCKS), who.request)
