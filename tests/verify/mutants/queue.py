"""Planted where callers wait."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from fencegate.client.acquisition import Acquisition
from fencegate.core.commands import Leave, Outcome
from fencegate.core.machine import _OF_ONE_LOCK, judging, lock, rules
from fencegate.core.model import Claimant, LockRecord, Waiter
from fencegate.core.ports import Interval

Mutant = Callable[[], Any]


def _offer_is_no_hold() -> Any:
    """Whoever comes while the lock is offered to a waiter gets it as well, and the waiter too."""

    def fits_beside(record: LockRecord, who: Claimant, now: Interval) -> bool:
        return record.offer is not None or judging.fits_beside(record, who, now)

    return patch.object(lock, "fits_beside", fits_beside)


def _queue_forgets() -> Any:
    """Whoever comes takes the place of those who wait."""

    def enqueue(self: lock.LockTurn, waiter: Waiter, *, first: bool = False) -> None:
        self.record = replace(self.record, queue=(waiter,))

    return patch.object(lock.LockTurn, "enqueue", enqueue)


def _last_come_first_served() -> Any:
    """Places are given at the wrong end."""

    def queued(queue: tuple[Waiter, ...], waiter: Waiter, *, first: bool = False) -> tuple[Waiter, ...]:
        return (waiter, *queue)

    return patch.object(lock, "queued", queued)


def _nobody_is_next() -> Any:
    """Once somebody waits, the lock is offered to nobody, and nobody may take it."""

    def is_next(self: lock.LockTurn, who: Claimant) -> bool:
        return not self.record.queue

    def hand_over(self: lock.LockTurn, tried: str = "") -> None:
        return

    return patch.multiple(lock.LockTurn, is_next=is_next, hand_over=hand_over)


def _nobody_between_polls() -> Any:
    """A poll of a wait is begun when the last one has ended."""
    return patch.object(Acquisition, "_comes_back", lambda self, started_us, poll_ms: False)


def _a_place_goes_with_a_poll() -> Any:
    """A poll that ends takes away those that stand beside it."""

    def leave(turn: lock.LockTurn, command: Leave) -> Outcome:
        waiter = turn.find_waiter(command.request)
        if waiter is not None and command.attempt in waiter.attempts:
            turn.put(waiter, replace(waiter, attempts=(command.attempt,)))
        return rules.leave(turn, command)

    return patch.dict(_OF_ONE_LOCK, {Leave: leave})


QUEUE: dict[str, Mutant] = {
    "an offer is no hold": _offer_is_no_hold,
    "a queue that forgets": _queue_forgets,
    "last come, first served": _last_come_first_served,
    "a waiter who is never served": _nobody_is_next,
    "nobody there between two polls": _nobody_between_polls,
    "a poll that takes the next along": _a_place_goes_with_a_poll,
}
