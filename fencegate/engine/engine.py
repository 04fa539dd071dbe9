"""Load, ask the state machine, commit if unchanged; and waiting, which is being woken by what others commit."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
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
    Expire,
    Floor,
    Forget,
    Granted,
    Hold,
    Leave,
    Limits,
    LockRecord,
    Outcome,
    Queued,
    Refused,
    Release,
    floor_entry,
    lock_entry,
)
from fencegate.core.ports import Interval, Store, Unavailable
from fencegate.engine.codec import decode, decode_line
from fencegate.engine.lane import Lane, Poll, is_final
from fencegate.engine.lanes import Lanes
from fencegate.engine.timer import Alarms

MAX_LANES = 50_000
TRIES = 12
RESOLVE_TRIES = 6
LAND_WITHIN_US = 10_000_000
LOOK_AGAIN_US = 1_000_000
SWEEP_EVERY_S = 300.0
FINISH_WITHIN_S = 1.0
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
        self._lanes = Lanes(store, clock, limits, self.replica, self._noticed)
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
        for lane in self._lanes.waited_for():
            for polls in list(lane.waiting.values()):
                for poll in polls.values():
                    if not poll.granted.done():
                        poll.granted.set_exception(ShuttingDown("the lock service is stopping; ask again in a moment"))

    async def close(self) -> None:
        """Send waiters away, finish what was begun unless the store is stuck, and stop."""
        await self.stop_waiting()
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._alarms.close()
        await asyncio.sleep(0)  # whoever was sent away starts to leave
        try:
            async with asyncio.timeout(FINISH_WITHIN_S):
                while self._work:
                    await asyncio.wait(self._work)
                await self._lanes.drained()
        except TimeoutError:
            log.warning("the store does not answer; what was begun is left to it, and to the TTL")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    # --- what callers ask ---

    async def run(self, command: Command) -> Outcome:
        """One command, to its end; a refusal is raised."""
        outcome = await self._lanes.ask(command)
        if isinstance(outcome, Refused):
            raise outcome.error
        return outcome

    async def acquire(self, command: Acquire, wait_us: int = 0, keep_us: int = 0) -> Hold:
        """The lock, at once or within `wait_us`. A wait that ends without it keeps its place for `keep_us`."""
        settled = False
        try:
            granted = await (self._wait_for(command, wait_us, keep_us) if command.wait else self._lanes.ask(command))
            settled = not isinstance(granted, Refused) or is_final(granted.error)
        except FencegateError as error:
            settled = is_final(error)
            raise
        finally:
            if not settled:  # cancelled, sent away, or unknown: neither a place nor a hold may stay behind
                self._spawn(self._abandon(command, keep_us))
        granted = self._lanes.in_time(granted)
        if isinstance(granted, Granted):
            return granted.hold
        raise (
            granted.error if isinstance(granted, Refused) else OutcomeUnknown("the lock was neither given nor refused")
        )

    async def _wait_for(self, command: Acquire, wait_us: int, keep_us: int) -> Outcome:
        if self._stopping:
            raise ShuttingDown("the lock service is stopping; ask again in a moment")
        deadline_us = self.clock.monotonic_us() + wait_us
        lane = self._lanes.lane(command.lock_key)
        request = command.who.request
        poll = Poll(command, asyncio.get_running_loop().create_future())
        polls = lane.waiting.setdefault(request, {})
        polls[command.attempt] = poll  # before asking: no wake-up may be missed
        try:
            outcome = await self._lanes.ask(command)
            if not isinstance(outcome, Queued):
                return outcome
            async with asyncio.timeout((deadline_us - self.clock.monotonic_us()) / 1_000_000):
                return await poll.granted
        except TimeoutError:
            late = await self.run(Leave(command.lock_key, request, command.attempt, keep_us))
            return late if isinstance(late, Granted) else await self._lanes.ask(replace(command, wait=False))
        finally:
            del polls[command.attempt]
            if not polls and lane.waiting.get(request) is polls:
                del lane.waiting[request]

    async def look(self, lock_key: str) -> Seen:
        """The lock as it is: a fresh load, for whoever only looks."""
        now = self.now()
        found = await self._lanes.load([lock_entry(lock_key), floor_entry(lock_key)])
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
        return self._lanes.now()

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
                        self._wake([lane.lock_key for lane in self._lanes.waited_for()])
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
                self._wake([lane.lock_key for lane in self._lanes.waited_for()])

    def _concerns(self, entry: str, line: bytes) -> bool:
        lane = self._lanes.get(entry.removeprefix(LOCKS))
        return lane is not None and bool(lane.waiting) and decode_line(line).replica != self.replica

    def _wake(self, keys: Sequence[str] | set[str]) -> None:
        for lock_key in keys:
            lane = self._lanes.get(lock_key)
            if lane is not None:
                lane.known = None
                self._spawn(self._quietly(Expire(lock_key)))

    def _noticed(self, lane: Lane) -> None:
        """A lock was looked at, or changed: know when time will change it, and see to those who wait for it here."""
        if lane.known is None:
            if lane.waiting:  # what was lost may have concerned them
                self._alarms.set(lane.lock_key, self.clock.now_us() + LOOK_AGAIN_US)
            return
        record = lane.known.record
        if isinstance(record, LockRecord):
            at_us = wakes_at(record)
            if at_us is not None:
                self._alarms.set(lane.lock_key, at_us)
        if lane.waiting:
            self._ask_again(lane, record if isinstance(record, LockRecord) else LockRecord())

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
