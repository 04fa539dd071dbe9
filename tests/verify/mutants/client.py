"""Planted in the client: how long it believes in a lease."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from fencegate.client import asks, grant, life
from fencegate.client.life import ALIVE, LeaseState, Life
from fencegate.core.commands import Outcome, Refused, Renew, Renewed
from fencegate.core.machine import _OF_ONE_LOCK, rules
from fencegate.core.machine.lock import LockTurn
from fencegate.core.model import Ending, request_of
from fencegate.engine.lanes import Lanes
from tests.verify.mutants.service import remembering

Mutant = Callable[[], Any]


def _from_the_answer() -> Any:
    """The client counts its lease from when the answer came."""
    original = grant.granted

    def granted(lock_key: str, body: Any, reply: Any, started_us: int, since_us: int | None = None) -> Any:
        given = original(lock_key, body, {**reply, "remainingMillis": reply["ttlMillis"]}, started_us, since_us)
        return replace(given, deadline_us=given.deadline_us + 2_000_000)

    return patch.object(asks, "granted", granted)


@contextmanager
def _told_though_over() -> Iterator[None]:
    """A waiter is told of a lease that ran out before it was told, and counts from the answer."""

    def in_time(self: Lanes, outcome: Outcome) -> Outcome:
        return outcome

    with patch.object(Lanes, "in_time", in_time), _from_the_answer():
        yield


def _held_by_flag() -> Any:
    """`held` believes a flag, which nobody turns while the process is paused."""
    return patch.object(life.Life, "_deadline_us", lambda self: 1 << 62)


@contextmanager
def _renewal_revives() -> Iterator[None]:
    """A renewal brings a lease back that ran out, and a client that was paused goes on as if nothing had been."""

    def live_on(self: Life, started_us: int, until_us: int) -> bool:
        self._started_us, self._until_us = started_us, max(self._until_us, until_us)
        return self._state in ALIVE

    def remaining(self: Life) -> float:
        return max(1.0, (self._deadline_us() - self._clock.monotonic_us()) / 1e6)

    def look(self: Life) -> LeaseState:
        return self._state

    with (
        remembering() as known,
        patch.object(Life, "_live_on", live_on),
        patch.object(Life, "remaining", property(remaining)),
        patch.object(Life, "_look", look),
    ):

        def renew(lock: LockTurn, command: Renew) -> Renewed | Refused:
            outcome = rules.renew(lock, command)
            hold = known.get(request_of(command.lock_token))
            past = lock.past(request_of(command.lock_token))
            if isinstance(outcome, Renewed) or hold is None or past is None or past.ending is not Ending.EXPIRED:
                return outcome
            revived = replace(hold, expires_us=lock.now.latest + hold.who.ttl_us, renewals=hold.renewals + 1)
            lock.record = replace(lock.record, holds=(*lock.record.holds, revived))
            return Renewed(revived, None)

        with patch.dict(_OF_ONE_LOCK, {Renew: renew}):
            yield


CLIENT: dict[str, Mutant] = {
    "counted from the answer": _from_the_answer,
    "told though over": _told_though_over,
    "held by a flag": _held_by_flag,
    "a renewal that revives": _renewal_revives,
}
