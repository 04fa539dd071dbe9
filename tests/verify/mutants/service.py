"""Planted in the lock rules and the engine: who is given a lock, and what becomes of commits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from fencegate.core.commands import Acquire, Granted, Outcome, Pending, Refused, Release, Released
from fencegate.core.errors import LockExpired
from fencegate.core.machine import _OF_ONE_LOCK, judging, lock, rules
from fencegate.core.model import Claimant, Ending, Hold, LockRecord, Record
from fencegate.core.ports import Capabilities, Interval
from fencegate.engine import resolving
from fencegate.engine.lanes import Lanes
from fencegate.engine.observed import Observed
from fencegate.verify.sim.store import StoreServer

Mutant = Callable[[], Any]


@contextmanager
def remembering() -> Iterator[dict[str, Hold]]:
    """The last hold of each request, as it was granted."""
    known: dict[str, Hold] = {}
    grant = lock.LockTurn.grant

    def grant_and_remember(
        self: lock.LockTurn, who: Claimant, shared_with: Hold | None = None, token: int = 0
    ) -> Granted | Pending:
        granted = grant(self, who, shared_with, token)
        known[who.request] = granted.hold
        return granted

    with patch.object(lock.LockTurn, "grant", grant_and_remember):
        yield known


def _expires_early() -> Any:
    """A lease is over for others before it is over for its holder."""
    return patch.object(judging, "ends_us", lambda hold: hold.expires_us - hold.who.ttl_us // 2)


def _fits_always() -> Any:
    """Whoever asks gets it."""
    return patch.object(lock.LockTurn, "fits", lambda self, who: True)


def _reader_beside_writer() -> Any:
    """Who shares a lock fits beside who does not."""

    def fits_beside(record: LockRecord, who: Claimant, now: Interval) -> bool:
        return who.terms.shared or judging.fits_beside(record, who, now)

    return patch.object(lock, "fits_beside", fits_beside)


def _session_is_not_asked() -> Any:
    """A lock under a session ends when the session would have, when it was granted; renewals don't count."""
    return patch.object(judging, "ends_us", lambda hold: hold.expires_us)


def _commit_without_compare() -> Any:
    """The store writes whatever it is told."""

    def commit(self: StoreServer, changes: Any, log: Any, not_after_us: int) -> None:
        loose = [change._replace(expected=version_of(self, change.key)) for change in changes]
        original(self, loose, log, not_after_us)

    original = StoreServer.commit
    return patch.object(StoreServer, "commit", commit)


def version_of(server: StoreServer, key: str) -> str | None:
    found = server.entries.get(key)
    return found.version if found is not None else None


def _unknown_is_done() -> Any:
    """A commit of unknown fate is taken for one that landed."""

    async def resolve(self: Lanes, trying: Any) -> None:
        return

    return patch.object(Lanes, "_resolve", resolve)


def _release_of_anybody() -> Any:
    """A release takes the lock from whoever holds it."""

    def release(turn: lock.LockTurn, command: Release) -> Released:
        for hold in turn.record.holds:
            turn.end(hold, Ending.RELEASED, turn.now.latest)
        return Released(0)

    return patch.dict(_OF_ONE_LOCK, {Release: release})


@contextmanager
def _replay_revives() -> Iterator[None]:
    """An acquire that is repeated after its lease ran out is told that it holds the lock, as it was told before."""
    original = rules.repeated
    with remembering() as known:

        def repeated(turn: lock.LockTurn, command: Acquire) -> Outcome | None:
            outcome = original(turn, command)
            hold = known.get(command.who.request)
            if isinstance(outcome, Refused) and isinstance(outcome.error, LockExpired) and hold is not None:
                return Granted(replace(hold, expires_us=turn.now.latest + hold.who.ttl_us))
            return outcome

        with patch.object(rules, "repeated", repeated):
            yield


def _by_the_writers_clock() -> Any:
    """Where the store has no clock: a lease is over when the clock of another replica says so."""

    def here(self: Observed, entry: str, version: str, record: Record, written_us: int) -> Record:
        return record

    return patch.object(Observed, "here", here)


def _late_is_never() -> Any:
    """Where the store has no clock: a lost commit that our own clock calls too late is taken for lost for good."""

    async def resolve(self: Lanes, trying: Any) -> None:
        as_if_it_had_one: Any = SimpleNamespace(capabilities=Capabilities(clock=True), commit=self._store.commit)
        await resolving.resolve(trying, as_if_it_had_one, self.records, self._clock)

    return patch.object(Lanes, "_resolve", resolve)


SERVICE: dict[str, Mutant] = {
    "lease over too early": _expires_early,
    "everybody fits": _fits_always,
    "a reader beside a writer": _reader_beside_writer,
    "a session's renewal does not count": _session_is_not_asked,
    "commit without compare": _commit_without_compare,
    "unknown taken for done": _unknown_is_done,
    "release of anybody's hold": _release_of_anybody,
    "a replay that revives": _replay_revives,
    "over by another's clock": _by_the_writers_clock,
    "too late by our own clock taken for never": _late_is_never,
}
