"""Load, ask the state machine, commit if unchanged: one commit in flight for a lock, what comes meanwhile in the next.

The common case is a commit that rests on what is known and lands: it runs on callbacks alone, since a task for each
command cost more than judging it. Everything else is `_settle`, a loop that can be read from top to bottom.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, OutcomeUnknown, StoreUnavailable
from fencegate.core.model import (
    FLOORS,
    Acquire,
    Command,
    Done,
    Floor,
    Granted,
    Limits,
    Need,
    Outcome,
    Refused,
    Renewed,
    floor_entry,
    lock_entry,
)
from fencegate.core.ports import Ambiguous, Change, Conflict, Interval, Store, TooLate, Unavailable
from fencegate.engine.codec import RECENT, decode, encode, encode_line
from fencegate.engine.lane import ABSENT, Asked, Fold, Known, Lane, fold
from fencegate.loop import running_loop

MAX_LANES = 50_000
TRIES = 12
RESOLVE_TRIES = 6
LAND_WITHIN_US = 10_000_000

log = logging.getLogger("fencegate.engine")


@dataclass(slots=True, eq=False)
class _Attempt:
    """A fold on its way to the store."""

    result: Fold
    entry: str
    before: Known
    after: Known
    """The lock's entry as it is when the commit has landed."""
    commit_id: str
    changes: list[Change]
    log: list[tuple[str, bytes]]
    not_after_us: int


class Lanes:
    """The locks that are at work in this replica. `noticed` hears of every lock that was looked at or changed, before
    the next commit of it is sent; what is known of it is None when its fate is not."""

    def __init__(
        self, store: Store, clock: Clock, limits: Limits, replica: str, noticed: Callable[[Lane], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._replica = replica
        self._noticed = noticed
        self._lanes: OrderedDict[str, Lane] = OrderedDict()
        self._floors: dict[str, Known] = {}
        self._slow: set[asyncio.Task[None]] = set()
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    # --- the locks ---

    def lane(self, lock_key: str) -> Lane:
        lane = self._lanes.get(lock_key)
        if lane is None:
            lane = self._lanes[lock_key] = Lane(lock_key)
            if len(self._lanes) > MAX_LANES:
                self._evict()
        else:
            self._lanes.move_to_end(lock_key)
        return lane

    def __len__(self) -> int:
        return len(self._lanes)

    def get(self, lock_key: str) -> Lane | None:
        return self._lanes.get(lock_key)

    def waited_for(self) -> list[Lane]:
        """The locks that somebody waits for here."""
        return [lane for lane in self._lanes.values() if lane.waiting]

    def _evict(self) -> None:
        for lock_key, lane in list(zip(self._lanes, self._lanes.values(), strict=False))[:64]:
            if not lane.busy and not lane.waiting and not lane.asked:
                del self._lanes[lock_key]

    async def drained(self) -> None:
        """Return when nothing is under way."""
        await self._idle.wait()

    # --- the common case, on callbacks ---

    def ask(self, command: Command) -> asyncio.Future[Outcome]:
        """Have a command carried out; a refusal is an outcome too."""
        lane = self.lane(command.lock_key)
        future: asyncio.Future[Outcome] = running_loop().create_future()
        lane.asked.append((command, future))
        if not lane.busy:
            lane.busy = True
            self._busy += 1
            self._idle.clear()
            self._go(lane)
        return future

    def _go(self, lane: Lane) -> None:
        """Send the next commit of a lane; when nothing is asked of it any more, let it rest."""
        asked = lane.take()
        if not asked:
            lane.busy = False
            self._busy -= 1
            if not self._busy:
                self._idle.set()
            return
        try:
            now = self.now()
            result = self._fold_known(lane, asked, now)
            if not result.writes:
                self._slowly(lane, asked, self._settle(lane, asked, list(result.seen)))
                return
            attempt = self._attempt(lane, result, now)
            landing = asyncio.ensure_future(self._store.commit(attempt.changes, attempt.log, attempt.not_after_us))
        except Exception as error:  # whatever it is, those who ask must hear of it, and the next ones be served
            self._give_up(lane, asked, error)
            running_loop().call_soon(self._go, lane)
            return
        landing.add_done_callback(partial(self._landed, lane, asked, attempt))

    def _fold_known(self, lane: Lane, asked: list[Asked], now: Interval) -> Fold:
        """Rest on what is known, and let the commit find out."""
        entry = lock_entry(lane.lock_key)
        seen = {entry: lane.known or ABSENT}
        if seen[entry].record is None:
            floor = floor_entry(lane.lock_key)
            seen[floor] = self._floors.get(floor, ABSENT)
        result = fold(lane, [command for command, _ in asked], seen, now, self._limits, assume_absent=True)
        assert not isinstance(result, Need)
        return result

    def _landed(self, lane: Lane, asked: list[Asked], attempt: _Attempt, landing: "asyncio.Future[None]") -> None:
        error = Ambiguous("interrupted") if landing.cancelled() else landing.exception()
        if error is not None:
            self._slowly(lane, asked, self._recover(lane, asked, attempt, error))
            return
        try:
            self._finish(lane, asked, attempt.result, attempt.after)
        except Exception as failed:
            self._give_up(lane, asked, failed)
        self._go(lane)

    # --- everything else ---

    def _slowly(self, lane: Lane, asked: list[Asked], work: Coroutine[Any, Any, None]) -> None:
        async def to_the_end() -> None:
            try:
                await work
            except Exception as error:
                self._give_up(lane, asked, error)
            self._go(lane)

        task = running_loop().create_task(to_the_end())
        self._slow.add(task)
        task.add_done_callback(self._slow.discard)

    async def _recover(self, lane: Lane, asked: list[Asked], attempt: _Attempt, error: BaseException) -> None:
        """A commit did not land, or did not say so."""
        try:
            if isinstance(error, Ambiguous):
                await self._resolve(attempt)
                self._finish(lane, asked, attempt.result, attempt.after)
                return
            if not isinstance(error, Conflict | TooLate):
                raise error
        except Conflict:
            pass
        lane.known = None
        await self._settle(lane, asked, list(attempt.result.seen))

    async def _settle(self, lane: Lane, asked: list[Asked], entries: Sequence[str]) -> None:
        """Bring what was asked to its end on the ground of fresh loads: committed, or refused."""
        commands = [command for command, _ in asked]
        fresh = await self.load(entries)
        for attempt in range(TRIES):
            now = self.now()
            result = fold(lane, commands, dict(fresh), now, self._limits, assume_absent=False)
            if isinstance(result, Need):
                fresh |= await self.load(result.entries)
                continue
            if not result.writes:
                self._finish(lane, asked, result, fresh[lock_entry(lane.lock_key)])
                return
            tried = self._attempt(lane, result, now)
            with suppress(Conflict, TooLate):
                try:
                    await self._store.commit(tried.changes, tried.log, tried.not_after_us)
                except Ambiguous:
                    await self._resolve(tried)
                self._finish(lane, asked, result, tried.after)
                return
            lane.known = None
            await asyncio.sleep(self._clock.jitter() * min(0.2, 0.002 * 2**attempt) if attempt else 0)
            fresh = await self.load(list(fresh))
        raise StoreUnavailable("too much is going on at this lock; nothing was done, try again")

    async def _resolve(self, attempt: _Attempt) -> None:
        """Find out what became of a commit whose answer was lost. Returns when it landed; Conflict when it never will.

        While the entry is unchanged the lost commit can still land, so the same commit is sent again until the entry
        moved, one way or the other.
        """
        entry, before = attempt.entry, attempt.before
        for number in range(RESOLVE_TRIES):
            await asyncio.sleep(self._clock.jitter() * 0.01 * 2**number)
            too_late = False
            with suppress(Unavailable, Ambiguous, Conflict):
                try:
                    await self._store.commit(attempt.changes, attempt.log, attempt.not_after_us)
                    return
                except TooLate:
                    too_late = True
            with suppress(StoreUnavailable):
                found = (await self.load([entry]))[entry]
                if attempt.commit_id in found.commits:
                    return
                if found.version != before.version:
                    whole = len(found.commits) < RECENT if before.version is None else before.version in found.commits
                    if whole:  # its commits reach back to ours, and ours is not among them
                        raise Conflict
                    break
                if too_late:
                    raise Conflict
        raise OutcomeUnknown("the store did not say whether it was done; repeat with the same requestId to find out")

    # --- between the records and the store ---

    async def load(self, entries: Sequence[str]) -> dict[str, Known]:
        try:
            found = await self._store.load(entries)
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from None
        seen = {}
        for entry in entries:
            stored = found.get(entry)
            seen[entry] = Known(stored.version, *decode(entry, stored.value)) if stored is not None else ABSENT
            if entry.startswith(FLOORS):
                self._floors[entry] = seen[entry]
        return seen

    def _attempt(self, lane: Lane, result: Fold, now: Interval) -> _Attempt:
        """The commit that a fold asks for, on condition that all it saw is unchanged."""
        commit_id = self._clock.random_id(8)
        entry = lock_entry(lane.lock_key)
        seen, writes = result.seen, result.writes
        before = seen.get(entry, ABSENT)
        commits = (commit_id, *before.commits[: RECENT - 1])
        changes = [Change(name, known.version, compare_only=True) for name, known in seen.items() if name not in writes]
        for name, record in writes.items():
            value = encode(record, commits) if record is not None else None
            keep_until_us = record.until_us if type(record) is Done else None
            changes.append(Change(name, seen.get(name, ABSENT).version, commit_id, value, False, keep_until_us))
        after = before
        if entry in writes:
            record = writes[entry]
            after = Known(commit_id, record, commits) if record is not None else ABSENT
        lines = [(entry, encode_line(self._replica, event)) for event in result.events]
        if not lines and entry in writes:
            lines = [(entry, encode_line(self._replica, None))]
        by_us = now.latest + LAND_WITHIN_US
        not_after_us = by_us if result.not_after_us is None else min(result.not_after_us, by_us)
        return _Attempt(result, entry, before, after, commit_id, changes, lines, not_after_us)

    def now(self) -> Interval:
        interval = self._store.now()
        if interval is None:
            raise StoreUnavailable(f"the store {self._store.name} has no clock, and this replica can't stand in for it")
        return interval

    # --- answers ---

    def _finish(self, lane: Lane, asked: list[Asked], result: Fold, known: Known) -> None:
        lane.known = known
        for name, record in result.writes.items():
            if type(record) is Floor:
                self._floors[name] = Known(known.version, record)
        self._answer(lane, asked, result.outcomes)
        for request, granted in result.granted.items():
            for poll in lane.waiting.get(request, {}).values():
                poll.hear(granted)
        self._noticed(lane)

    def _give_up(self, lane: Lane, asked: list[Asked], error: BaseException) -> None:
        if isinstance(error, Unavailable):
            error = StoreUnavailable(str(error))
        elif not isinstance(error, FencegateError):
            log.error("the lock %r can't be handled", lane.lock_key, exc_info=error)
            error = OutcomeUnknown("the lock can't be handled; repeat with the same requestId to find out")
        lane.known = None
        self._answer(lane, asked, [Refused(error)] * len(asked))
        try:
            self._noticed(lane)
        except Exception:  # there is nobody left to tell, and the next ones must be served
            log.exception("the lock %r can't be watched", lane.lock_key)

    def _answer(self, lane: Lane, asked: list[Asked], outcomes: Sequence[Outcome]) -> None:
        for (command, future), outcome in zip(asked, outcomes, strict=True):
            if lane.waiting and isinstance(command, Acquire) and command.wait:
                poll = lane.waiting.get(command.who.request, {}).get(command.attempt)
                if poll is not None:
                    poll.hear(outcome)
            if not future.done():
                future.set_result(self.in_time(outcome))

    def in_time(self, outcome: Outcome) -> Outcome:
        """Nobody is told that they hold a lease that ran out while it was being committed."""
        if isinstance(outcome, Granted | Renewed):
            now = self._store.now()
            if now is None:
                return Refused(OutcomeUnknown("the store can't tell the time; repeat with the same requestId"))
            if outcome.hold.expires_us <= now.latest:
                return Refused(
                    OutcomeUnknown("the lease ran out before it was committed; repeat with the same requestId")
                )
        return outcome
