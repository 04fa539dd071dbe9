"""Load, ask the state machine, commit if unchanged; and waiting, which is being woken by what others commit."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import FencegateError, OutcomeUnknown, ShuttingDown, StoreUnavailable
from fencegate.core.machine import wakes_at
from fencegate.core.model import (
    DEFAULT_LIMITS,
    LOCKS,
    Acquire,
    Command,
    Done,
    Expire,
    Floor,
    Forget,
    Granted,
    Hold,
    Leave,
    Limits,
    LockRecord,
    Need,
    Outcome,
    Queued,
    Refused,
    Release,
    Renewed,
    floor_entry,
    lock_entry,
)
from fencegate.core.ports import Ambiguous, Change, Conflict, Interval, Store, TooLate, Unavailable
from fencegate.engine.codec import RECENT, decode, decode_line, encode, encode_line
from fencegate.engine.lane import ABSENT, Asked, Fold, Known, Lane, Poll, fold, is_final
from fencegate.engine.timer import Alarms

MAX_LANES = 50_000
TRIES = 12
RESOLVE_TRIES = 6
LAND_WITHIN_US = 10_000_000
LOOK_AGAIN_US = 1_000_000
SWEEP_EVERY_S = 300.0
PAGE = 500

log = logging.getLogger("fencegate.engine")


class Seen(NamedTuple):
    """A lock as a fresh load showed it, with the time of that load."""

    record: LockRecord | None
    floor: int
    now: Interval


class Engine:
    """Runs lock commands against one store, from one event loop. Several engines may share a store."""

    def __init__(
        self, store: Store, clock: Clock = SYSTEM, limits: Limits = DEFAULT_LIMITS, *, replica: str | None = None
    ) -> None:
        self.store = store
        self.clock = clock
        self.limits = limits
        self.replica = replica or clock.random_id(6)
        self._lanes: OrderedDict[str, Lane] = OrderedDict()
        self._floors: dict[str, Known] = {}
        self._alarms = Alarms(clock, self._ring)
        self._work: set[asyncio.Task[None]] = set()
        self._watches: list[asyncio.Task[None]] = []
        self._stopping = False

    # --- life ---

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._watches = [loop.create_task(self._follow()), loop.create_task(self._sweep())]

    async def stop_waiting(self) -> None:
        """Send every waiter away at once; places of named requests are kept for another replica or a restart."""
        self._stopping = True
        for lane in list(self._lanes.values()):
            for polls in list(lane.waiting.values()):
                for poll in polls.values():
                    if not poll.granted.done():
                        poll.granted.set_exception(ShuttingDown("the lock service is stopping; ask again in a moment"))

    async def close(self) -> None:
        """Send waiters away, finish what was begun, and stop."""
        await self.stop_waiting()
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._alarms.close()
        await asyncio.sleep(0)  # whoever was sent away starts to leave
        while self._work:
            await asyncio.wait(self._work)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    # --- what callers ask ---

    async def run(self, command: Command) -> Outcome:
        """One command, to its end; a refusal is raised."""
        outcome = await self._ask(command)
        if isinstance(outcome, Refused):
            raise outcome.error
        return outcome

    async def acquire(self, command: Acquire, wait_us: int = 0, keep_us: int = 0) -> Hold:
        """The lock, at once or within `wait_us`. A wait that ends without it keeps its place for `keep_us`."""
        settled = False
        try:
            granted = await (self._wait_for(command, wait_us, keep_us) if command.wait else self._ask(command))
            settled = not isinstance(granted, Refused) or is_final(granted.error)
        except FencegateError as error:
            settled = is_final(error)
            raise
        finally:
            if not settled:  # cancelled, sent away, or unknown: neither a place nor a hold may stay behind
                self._spawn(self._abandon(command, keep_us))
        granted = self._in_time(granted)
        if isinstance(granted, Granted):
            return granted.hold
        raise (
            granted.error if isinstance(granted, Refused) else OutcomeUnknown("the lock was neither given nor refused")
        )

    async def _wait_for(self, command: Acquire, wait_us: int, keep_us: int) -> Outcome:
        if self._stopping:
            raise ShuttingDown("the lock service is stopping; ask again in a moment")
        deadline_us = self.clock.monotonic_us() + wait_us
        lane = self._lane(command.lock_key)
        request = command.who.request
        poll = Poll(command, asyncio.get_running_loop().create_future())
        polls = lane.waiting.setdefault(request, {})
        polls[command.attempt] = poll  # before asking: no wake-up may be missed
        try:
            outcome = await self._ask(command)
            if not isinstance(outcome, Queued):
                return outcome
            async with asyncio.timeout((deadline_us - self.clock.monotonic_us()) / 1_000_000):
                return await poll.granted
        except TimeoutError:
            late = await self.run(Leave(command.lock_key, request, command.attempt, keep_us))
            return late if isinstance(late, Granted) else await self._ask(replace(command, wait=False))
        finally:
            del polls[command.attempt]
            if not polls and lane.waiting.get(request) is polls:
                del lane.waiting[request]

    async def look(self, lock_key: str) -> Seen:
        """The lock as it is: a fresh load, for whoever only looks."""
        now = self.now()
        found = await self._load([lock_entry(lock_key), floor_entry(lock_key)])
        record, floor = found[lock_entry(lock_key)].record, found[floor_entry(lock_key)].record
        return Seen(
            record if isinstance(record, LockRecord) else None, floor.token if isinstance(floor, Floor) else 0, now
        )

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, LockRecord]]:
        """Lock records by key, `after` a lock key (or '')."""
        try:
            rows = await self.store.scan(LOCKS + prefix, lock_entry(after) if after else "", limit)
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from None
        found = []
        for entry, (_, value) in rows:
            record, _ = decode(entry, value)
            if isinstance(record, LockRecord):
                found.append((entry.removeprefix(LOCKS), record))
        return found

    def now(self) -> Interval:
        interval = self.store.now()
        if interval is None:
            raise StoreUnavailable(f"the store {self.store.name} has no clock, and this replica can't stand in for it")
        return interval

    # --- waiting ---

    async def _abandon(self, command: Acquire, keep_us: int) -> None:
        """Nobody listens any more: give the place back, and an unnamed lock that came meanwhile."""
        try:
            late = await self.run(Leave(command.lock_key, command.who.request, command.attempt, keep_us))
            if isinstance(late, Granted) and not command.named:
                await self.run(Release(command.lock_key, late.hold.who.lock_token))
        except FencegateError as error:
            log.warning("a waiter could not be taken out of its queue: %s", error)

    def _ring(self, lock_key: str) -> None:
        lane = self._lanes.get(lock_key)
        record = lane.known.record if lane is not None and lane.known is not None else None
        at_us = wakes_at(record) if isinstance(record, LockRecord) else 0
        if at_us is None:
            return
        if at_us > self.clock.now_us():
            self._alarms.set(lock_key, at_us)
            return
        self._spawn(self._quietly(Expire(lock_key)))

    async def _quietly(self, command: Command) -> None:
        try:
            await self.run(command)
        except FencegateError as error:
            log.warning("%s of %r failed: %s", type(command).__name__, command.lock_key, error)
            self._alarms.set(command.lock_key, self.clock.now_us() + LOOK_AGAIN_US)

    async def _follow(self) -> None:
        """Hear what other replicas commit, and look at the locks that somebody here waits for."""
        while True:
            try:
                async for changes in self.store.changes(None):
                    if changes.reset:
                        self._wake([key for key, lane in self._lanes.items() if lane.waiting])
                        continue
                    keys = {
                        entry.key.removeprefix(LOCKS)
                        for entry in changes.entries
                        if self._concerns(entry.key, entry.event)
                    }
                    self._wake(keys)
            except Unavailable as error:
                log.warning("the change stream broke: %s", error)
                await asyncio.sleep(0.2)
                self._wake([key for key, lane in self._lanes.items() if lane.waiting])

    def _concerns(self, entry: str, line: bytes) -> bool:
        lane = self._lanes.get(entry.removeprefix(LOCKS))
        return lane is not None and bool(lane.waiting) and decode_line(line).replica != self.replica

    def _wake(self, keys: Sequence[str] | set[str]) -> None:
        for lock_key in keys:
            lane = self._lanes.get(lock_key)
            if lane is not None:
                lane.known = None
                self._spawn(self._quietly(Expire(lock_key)))

    def _ask_again(self, lane: Lane, record: LockRecord) -> None:
        """Queue again whoever stood here and does so no more: the place was lost, its replica thought dead, or the
        lock given to it by another, or by a commit whose answer was lost."""
        standing = {attempt for waiter in record.queue if not waiter.suspect_us for attempt in waiter.attempts}
        if record.offer is not None:
            standing.update(record.offer.waiter.attempts)
        standing.update(command.attempt for command, _ in lane.asked if isinstance(command, Acquire))
        for polls in lane.waiting.values():
            for poll in polls.values():
                if poll.queued and not poll.granted.done() and poll.command.attempt not in standing:
                    lane.asked.append((poll.command, asyncio.get_running_loop().create_future()))

    async def _sweep(self) -> None:
        """At start, set the alarms of locks that are held; from time to time, forget records that are idle."""
        while True:
            try:
                after = ""
                while page := await self.scan("", after, PAGE):
                    for lock_key, record in page:
                        at_us = wakes_at(record)
                        if at_us is not None:
                            self._alarms.set(lock_key, at_us)
                        elif record.touched_us + self.limits.idle_us < self.now().earliest:
                            await self._quietly(Forget(lock_key))
                    after = page[-1][0]
                    await asyncio.sleep(0.01)
            except FencegateError as error:
                log.warning("the sweep over the locks failed: %s", error)
            await asyncio.sleep(SWEEP_EVERY_S)

    # --- load, transition, commit ---

    def _lane(self, lock_key: str) -> Lane:
        lane = self._lanes.get(lock_key)
        if lane is None:
            lane = self._lanes[lock_key] = Lane(lock_key)
            if len(self._lanes) > MAX_LANES:
                self._evict()
        else:
            self._lanes.move_to_end(lock_key)
        return lane

    def _evict(self) -> None:
        for lock_key, lane in list(zip(self._lanes, self._lanes.values(), strict=False))[:64]:
            if not lane.busy and not lane.waiting and not lane.asked:
                del self._lanes[lock_key]

    async def _ask(self, command: Command) -> Outcome:
        lane = self._lane(command.lock_key)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        lane.asked.append((command, future))
        if not lane.busy:
            lane.busy = True
            self._spawn(self._drive(lane))
        return await future

    async def _drive(self, lane: Lane) -> None:
        """Until nothing is asked of this lock any more: one commit after the other."""
        try:
            while asked := lane.take():
                try:
                    await self._settle(lane, asked)
                except FencegateError as error:
                    self._give_up(lane, asked, error)
                except Exception:  # whatever it is, those who ask must hear of it, and the next ones be served
                    log.exception("the lock %r can't be handled", lane.lock_key)
                    unknown = OutcomeUnknown("the lock can't be handled; repeat with the same requestId to find out")
                    self._give_up(lane, asked, unknown)
        finally:
            lane.busy = False

    def _give_up(self, lane: Lane, asked: list[Asked], error: FencegateError) -> None:
        lane.known = None
        self._answer(lane, asked, [Refused(error)] * len(asked))
        if lane.waiting:  # what was lost may have concerned them
            self._alarms.set(lane.lock_key, self.clock.now_us() + LOOK_AGAIN_US)

    async def _settle(self, lane: Lane, asked: list[Asked]) -> None:
        """Bring what was asked to its end: committed, or refused on the ground of a fresh load."""
        commands = [command for command, _ in asked]
        entry = lock_entry(lane.lock_key)
        fresh: dict[str, Known] | None = None  # None: rest on what is known, and let the commit find out
        for attempt in range(TRIES):
            if fresh is None:
                seen = {entry: lane.known or ABSENT}
                if seen[entry].record is None:
                    floor = floor_entry(lane.lock_key)
                    seen[floor] = self._floors.get(floor, ABSENT)
            else:
                seen = dict(fresh)
            now = self.now()
            result = fold(lane, commands, seen, now, self.limits, assume_absent=fresh is None)
            if isinstance(result, Need):
                fresh = {**(fresh or {}), **await self._load(list(result.entries))}
                continue
            if not result.writes:
                if fresh is not None:  # nothing to commit, and judged by a fresh load
                    lane.known = fresh[entry]
                    self._finish(lane, asked, result)
                    return
                fresh = await self._load(list(result.seen))
                continue
            try:
                known = await self._commit(lane, result, now)
            except (Conflict, TooLate):
                lane.known = None
                if attempt > 1:
                    await asyncio.sleep(self.clock.jitter() * min(0.2, 0.002 * 2**attempt))
                fresh = await self._load(list(result.seen))
                continue
            lane.known = known
            self._finish(lane, asked, result)
            return
        raise StoreUnavailable("too much is going on at this lock; nothing was done, try again")

    async def _load(self, entries: Sequence[str]) -> dict[str, Known]:
        try:
            found = await self.store.load(entries)
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from None
        seen = {}
        for entry in entries:
            stored = found.get(entry)
            seen[entry] = Known(stored.version, *decode(entry, stored.value)) if stored is not None else ABSENT
            if entry.startswith("floor/"):
                self._floors[entry] = seen[entry]
        return seen

    async def _commit(self, lane: Lane, result: Fold, now: Interval) -> Known:
        """Write the fold, on condition that all it saw is unchanged; gives the lock's entry as it is now."""
        commit_id = self.clock.random_id(8)
        entry = lock_entry(lane.lock_key)
        before = result.seen.get(entry, ABSENT)
        commits = (commit_id, *before.commits[: RECENT - 1])
        seen, writes = result.seen, result.writes
        changes = [Change(name, known.version, compare_only=True) for name, known in seen.items() if name not in writes]
        for name, record in writes.items():
            value = encode(record, commits) if record is not None else None
            keep_until_us = record.until_us if type(record) is Done else None
            changes.append(Change(name, seen.get(name, ABSENT).version, commit_id, value, False, keep_until_us))
        not_after_us = min(result.not_after_us or now.latest + LAND_WITHIN_US, now.latest + LAND_WITHIN_US)
        lines = [(entry, encode_line(self.replica, event)) for event in result.events]
        if not lines and entry in result.writes:
            lines = [(entry, encode_line(self.replica, None))]
        try:
            await self.store.commit(changes, lines, not_after_us)
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from None
        except Ambiguous:
            await self._resolve(entry, before, commit_id, changes, lines, not_after_us)
        for name, record in result.writes.items():
            if isinstance(record, Floor):
                self._floors[name] = Known(commit_id, record)
        if entry not in result.writes:
            return before
        record = result.writes[entry]
        return Known(commit_id, record, commits) if record is not None else ABSENT

    async def _resolve(
        self,
        entry: str,
        before: Known,
        commit_id: str,
        changes: Sequence[Change],
        lines: Sequence[tuple[str, bytes]],
        not_after_us: int,
    ) -> None:
        """Find out what became of a commit whose answer was lost. Returns when it landed; Conflict when it never will.

        While the entry is unchanged the lost commit can still land, so the same commit is sent again until the entry
        moved, one way or the other.
        """
        for attempt in range(RESOLVE_TRIES):
            await asyncio.sleep(self.clock.jitter() * 0.01 * 2**attempt)
            too_late = False
            with suppress(Unavailable, Ambiguous, Conflict):
                try:
                    await self.store.commit(changes, lines, not_after_us)
                    return
                except TooLate:
                    too_late = True
            with suppress(Unavailable, StoreUnavailable):
                found = (await self._load([entry]))[entry]
                if commit_id in found.commits:
                    return
                if found.version != before.version:
                    whole = len(found.commits) < RECENT if before.version is None else before.version in found.commits
                    if whole:  # its commits reach back to ours, and ours is not among them
                        raise Conflict
                    break
                if too_late:
                    raise Conflict
        raise OutcomeUnknown("the store did not say whether it was done; repeat with the same requestId to find out")

    def _finish(self, lane: Lane, asked: list[Asked], result: Fold) -> None:
        record = lane.known.record if lane.known is not None else None
        if isinstance(record, LockRecord):
            at_us = wakes_at(record)
            if at_us is not None:
                self._alarms.set(lane.lock_key, at_us)
        self._answer(lane, asked, result.outcomes)
        for request, granted in result.granted.items():
            for poll in lane.waiting.get(request, {}).values():
                poll.hear(granted)
        if lane.waiting:
            self._ask_again(lane, record if isinstance(record, LockRecord) else LockRecord())

    def _answer(self, lane: Lane, asked: list[Asked], outcomes: Sequence[Outcome]) -> None:
        for (command, future), outcome in zip(asked, outcomes, strict=True):
            if isinstance(command, Acquire) and command.wait:
                poll = lane.waiting.get(command.who.request, {}).get(command.attempt)
                if poll is not None:
                    poll.hear(outcome)
            if not future.done():
                future.set_result(self._in_time(outcome))

    def _in_time(self, outcome: Outcome) -> Outcome:
        """Nobody is told that they hold a lease that ran out while it was being committed."""
        if isinstance(outcome, Granted | Renewed) and outcome.hold.expires_us <= self.now().latest:
            return Refused(OutcomeUnknown("the lease ran out before it was committed; repeat with the same requestId"))
        return outcome
