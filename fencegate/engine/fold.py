"""Several commands through the state machine, one after the other: one commit."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from fencegate.core.commands import (
    Acquire,
    AcquireAll,
    Command,
    Granted,
    GrantedAll,
    HandOverAll,
    Need,
    Outcome,
    Pending,
    Refused,
    Step,
    TakeUp,
    TakeUpAll,
)
from fencegate.core.machine import transition
from fencegate.core.model import LOCKS, Event, Limits, LockRecord, Record
from fencegate.core.ports import Interval
from fencegate.engine.known import Known
from fencegate.engine.lane import Lane

Guess = Callable[[str], Known]


class Fold(msgspec.Struct, gc=False):
    """What several commands do together."""

    seen: dict[str, Known]
    outcomes: list[Outcome] = []
    heard: dict[str, Outcome] = {}
    """Requests that were decided, for whoever of this replica waits: by taking up an offer in the same commit, or by
    another poll of the same request."""
    writes: Mapping[str, Record | None] = {}
    events: Sequence[Event] = ()
    not_after_us: int | None = None
    next: list[HandOverAll | TakeUpAll] = []
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
        if run.waited_for:  # one whose wait is over goes with the lock, if it was offered that before it is told to go
            run.serve_those_who_wait_here()
        for command in commands:
            run.result.outcomes.append(run.judge(command))
            if run.waited_for:
                run.serve_those_who_wait_here()
        unseen = tuple([name for name in run.result.writes if name not in seen])
        if guess is not None:
            for name in unseen:
                seen[name] = guess(name)
        elif unseen:
            return Need(unseen)
        return run.result
    except _Need as need:
        return Need(need.entries)


def fold_alone(entry: str, command: Command, now: Interval, limits: Limits, guess: Guess) -> Fold:
    """The same for one command about a lock that nobody waits for here, which is most of them."""
    seen = guess(entry)
    shown = {entry: seen}
    step = transition({entry: seen.record}, command, now, limits)
    if type(step) is Need:
        view = _View(shown, guess)
        while type(step) is Need:  # several at once
            for each in step.entries:
                _ = view[each]
            step = transition(view, command, now, limits)
    assert type(step) is Step
    outcome, writes, events, not_after_us, later, shaken = step
    if len(writes) > 1 or entry not in writes:
        for name in writes:
            if name not in shown:
                shown[name] = guess(name)
    return Fold(shown, [outcome], {}, writes, events, not_after_us, [*later], shaken or seen.version is None)


class _View(dict[str, Record | None]):
    """The entries that the state machine is shown; what it asks for beside them is guessed, and so seen."""

    __slots__ = ("_guess", "_seen")

    def __init__(self, seen: dict[str, Known], guess: Guess | None) -> None:
        for entry, known in seen.items():
            self[entry] = known.record
        self._seen = seen
        self._guess = guess

    def __missing__(self, entry: str) -> Record | None:
        if self._guess is None:
            raise KeyError(entry)
        self._seen[entry] = known = self._guess(entry)
        self[entry] = known.record
        return known.record


class _Run:
    __slots__ = ("_guess", "_lanes", "_limits", "_now", "_seen", "_view", "_writes", "result", "waited_for")

    def __init__(
        self, lanes: Sequence[Lane], seen: dict[str, Known], now: Interval, limits: Limits, guess: Guess | None
    ) -> None:
        self._lanes = lanes
        self.waited_for = guess is None or bool(lanes[0].waiting or lanes[0].coming)
        self._seen = seen
        self._now = now
        self._limits = limits
        self._guess = guess
        self._view = _View(seen, guess)
        self._writes: dict[str, Record | None] = {}
        self.result = Fold(seen, writes=self._writes)
        # What others did to the queue is seen in what was loaded; what was lost, in what is absent.
        self.result.shaken = guess is None or seen[lanes[0].entry].version is None

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
        self._writes.update(step.writes)
        result.events = (*result.events, *step.events)
        if step.not_after_us is not None:
            result.not_after_us = min(step.not_after_us, result.not_after_us or step.not_after_us)
        result.shaken = result.shaken or step.shaken
        for later in step.next:
            self._later(later)
        if self.waited_for and isinstance(step.outcome, Granted | GrantedAll | Pending):
            self._decided(command, step.outcome)
        return step.outcome

    def _decided(self, command: Command, outcome: Outcome) -> None:
        """Whoever waits here for the same request hears of it, whoever asked."""
        if isinstance(command, Acquire):
            self.result.heard[command.who.request] = outcome
        elif isinstance(command, AcquireAll | TakeUp | TakeUpAll):
            self.result.heard[command.request] = outcome

    def _later(self, command: HandOverAll | TakeUpAll) -> None:
        if command not in self.result.next:
            self.result.next.append(command)

    def serve_those_who_wait_here(self) -> None:
        """Whoever is offered a lock and waits here takes it up at once, in the same commit."""
        self._take_up()
        seen_to: set[str] = set()
        while self.result.next and (command := self._next_here(seen_to)) is not None:
            seen_to.add(command.request)
            self.result.next.remove(command)
            self.judge(command)
            if any(lane.serves(command.request) for lane in self._lanes):
                self.judge(TakeUpAll(command.lock_keys, command.request))
            self._take_up()  # what is left of the lock may have been offered to the next

    def _take_up(self) -> None:
        for lane in self._lanes:
            while (lane.waiting or lane.coming) and (taking := self._offered_here(lane)) is not None:
                outcome = self.judge(taking)
                if isinstance(outcome, Refused):
                    self.result.heard[taking.request] = outcome
                elif not isinstance(outcome, Granted):
                    break

    def _next_here(self, seen_to: set[str]) -> HandOverAll | TakeUpAll | None:
        """Somebody who waits for several locks, all of which are at work here: seen to in the same commit, once."""
        here = {lane.entry for lane in self._lanes}
        for command in self.result.next:
            if command.request not in seen_to and here.issuperset(command.at):
                return command
        return None

    def _offered_here(self, lane: Lane) -> TakeUp | None:
        record = self._view.get(lane.entry)
        if not isinstance(record, LockRecord) or record.offer is None:
            return None
        who = record.offer.waiter.who
        if not lane.serves(who.request):
            return None
        if who.terms.group:
            self._later(TakeUpAll(who.terms.group, who.request))
            return None
        return TakeUp(lane.entry.removeprefix(LOCKS), who.request)
