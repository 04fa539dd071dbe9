"""Planted on the straight way: clients with an engine of their own, and stores that tell of a commit by a call."""

from asyncio import get_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from fencegate.client import plain
from fencegate.client.grant import Grant, granted_here
from fencegate.core.commands import Acquire
from fencegate.core.model import Hold
from fencegate.core.ports import Ambiguous, Landed
from fencegate.engine.lanes import Lanes
from fencegate.engine.tending import Tending
from fencegate.verify.sim.store import CallingLink, StoreServer
from tests.verify.mutants.service import version_of

Mutant = Callable[[], Any]
ANY = "any version"
BEGUN_US = 1_000_000
"""What a simulated monotonic clock says when the loop's says 0."""


@contextmanager
def _fresh_compares_nothing() -> Iterator[None]:
    """A request without a past is committed without a comparison, of the lock as well."""

    def attempt(self: Lanes, lot: Any, asked: Any, result: Any, now: Any) -> Any:
        trying = original(self, lot, asked, result, now)
        if any(isinstance(one[0], Acquire) and one[0].fresh for one in asked):
            trying.changes = [change._replace(expected=ANY) for change in trying.changes]
        return trying

    def commit(self: StoreServer, changes: Any, log: Any, not_after_us: int) -> None:
        loose = [
            change._replace(expected=version_of(self, change.key)) if change.expected is ANY else change
            for change in changes
        ]
        committed(self, loose, log, not_after_us)

    original, committed = Lanes._attempt, StoreServer.commit
    with patch.object(Lanes, "_attempt", attempt), patch.object(StoreServer, "commit", commit):
        yield


def _counted_from_the_answer() -> Any:
    """The lease is counted from when the engine answered."""

    def granted(lock_key: str, hold: Hold, remaining_ms: int, started_us: int) -> Grant:
        del started_us, remaining_ms
        now_us = int(get_running_loop().time() * 1e6) + BEGUN_US
        return granted_here(lock_key, hold, hold.who.ttl_us // 1000, now_us)

    return patch.object(plain, "granted_here", granted)


def _told_before_it_landed() -> Any:
    """A store says that a commit has landed as soon as it was sent."""

    def commit_then(self: CallingLink, changes: Any, log: Any, not_after_us: int, landed: Landed) -> None:
        original(self, changes, log, not_after_us, lambda _error: None)
        self._process.loop.call_soon(landed, None)

    original = CallingLink.commit_then
    return patch.object(CallingLink, "commit_then", commit_then)


def _lost_answer_is_landed() -> Any:
    """A commit whose answer was lost is taken for one that landed, without a look."""

    def landed(self: Lanes, lot: Any, asked: Any, trying: Any, error: BaseException | None) -> None:
        original(self, lot, asked, trying, None if isinstance(error, Ambiguous) else error)

    original = Lanes._landed
    return patch.object(Lanes, "_landed", landed)


def _nobody_is_woken() -> Any:
    """Who waits is not told what others do to the lock, and finds out when it asks again."""
    return patch.object(Tending, "_changed_elsewhere", lambda self, lock_key: None)


STRAIGHT: dict[str, Mutant] = {
    "a new request compares nothing": _fresh_compares_nothing,
    "counted from an answer of its own process": _counted_from_the_answer,
    "told before it landed": _told_before_it_landed,
    "a lost answer told as landed": _lost_answer_is_landed,
    "a waiter who is not woken": _nobody_is_woken,
}
