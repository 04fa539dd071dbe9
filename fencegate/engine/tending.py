"""What a replica does unasked: end what ran out, hear what others commit, free what sessions held, clean up."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from fencegate.clock import Clock
from fencegate.core.commands import (
    Acquire,
    AcquireAll,
    Command,
    Drop,
    Expire,
    ExpireSession,
    Forget,
    ForgetSession,
    Refused,
)
from fencegate.core.errors import FencegateError, StoreUnavailable
from fencegate.core.machine import wakes_at
from fencegate.core.model import (
    LOCKS,
    MEMBERS,
    SESSIONS,
    Limits,
    LockRecord,
    Member,
    Record,
    Session,
    floor_entry,
    lock_entry,
    members_of,
)
from fencegate.core.ports import Changes, LogEntry, Store, Unavailable
from fencegate.engine.codec import decode_line
from fencegate.engine.fold import Fold
from fencegate.engine.lane import Lane, is_final
from fencegate.engine.lanes import Lanes
from fencegate.engine.timer import Alarms
from fencegate.engine.wakes import Wakes

LOOK_AGAIN_US = 1_000_000
SWEEP_EVERY_S = 300.0
SWEEP_PAUSE_S = 5.0
LISTEN_ON_US = 5_000_000
PAGE = 500
FREED_AT_ONCE = 64

log = logging.getLogger("fencegate.engine")


class Tending:
    """See the head of this file. Its alarms are by entry, of locks and of sessions."""

    def __init__(self, store: Store, clock: Clock, limits: Limits, replica: str, *, visiting: bool = False) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._replica = replica
        self._visiting = visiting
        self.lanes = Lanes(store, clock, limits, replica, self._noticed, self.begin)
        self._now = self.lanes.records.now
        self.wakes = Wakes()
        self._alarms = Alarms(self._now_us, self._ring)
        self._work: set[asyncio.Task[None]] = set()
        self._freeing: dict[str, asyncio.Task[None]] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._may_begin = False
        self._look_over = asyncio.Event()
        self._listeners = 0
        self._listening = asyncio.Event()
        self._listened_us = 0

    def start(self) -> None:
        """Whoever visits waits for the first that is asked of it, as if it had come only then: the engine of a client's
        renewal thread is asked nothing as long as all locks are given back soon."""
        self._may_begin = True
        if not self._visiting:
            self.begin()

    def begin(self) -> None:
        """Somebody asks for something: hear and look over from now on, unless that has begun, or is over."""
        if self._may_begin:
            self._may_begin = False
            loop = asyncio.get_running_loop()
            self._watches = [loop.create_task(self._follow()), loop.create_task(self._sweep())]

    async def stop(self) -> None:
        """Begin nothing more by itself."""
        self._may_begin = False
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._alarms.close()

    async def finished(self) -> None:
        """Return when what was begun is done, and what that began."""
        await self.lanes.drained()
        while self._work:
            await asyncio.wait(self._work)
            await self.lanes.drained()

    async def abandon(self) -> None:
        """Leave what was begun undone. A task that is left behind is told of as an error when its loop ends."""
        await self.lanes.stop()
        while self._work:
            for task in self._work:
                task.cancel()
            await asyncio.wait(self._work)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def quietly(self, command: Command) -> None:
        """Have it done; if it can't be, look again a little later."""
        outcome = await self.lanes.ask(command)
        if isinstance(outcome, Refused) and not is_final(outcome.error):
            log.warning("%s failed: %s", type(command).__name__, outcome.error)
            for entry in command.at:
                self._look_again(entry)

    # --- time ---

    def _now_us(self) -> int:
        """By the store's clock, since that is what leases end by; if ours were ahead, we would ask all the time."""
        try:
            return self._now().earliest
        except StoreUnavailable:
            return self._clock.now_us()

    def _look_again(self, entry: str) -> None:
        self._alarms.set(entry, self._now_us() + LOOK_AGAIN_US)

    def _ring(self, entry: str) -> None:
        known = self.lanes.known.get(entry)
        record = known.record if known is not None else None
        if isinstance(record, Session) and record.ended is not None:
            self.free(entry.removeprefix(SESSIONS))
            return
        at_us = _wakes_at(record) if known is not None else 0
        if at_us is None:
            return
        if at_us > self._now_us():
            self._alarms.set(entry, at_us)
        elif entry.startswith(SESSIONS):
            self.spawn(self.quietly(ExpireSession(entry.removeprefix(SESSIONS))))
        else:
            self.spawn(self.quietly(Expire(entry.removeprefix(LOCKS))))

    def _set_alarm(self, entry: str, record: Record | None) -> None:
        at_us = wakes_at(record) if type(record) is LockRecord else _wakes_at(record)
        if at_us is not None:
            self._alarms.set(entry, at_us)

    # --- what was looked at, or changed, here ---

    def _noticed(self, lane: Lane, result: Fold | None) -> None:
        """Know when time will change it, and see to those who wait for it here."""
        if result is None:
            if lane.waiting:  # what was lost may have concerned them
                self._look_again(lane.entry)
            return
        entry = lane.entry
        writes = result.writes
        record = writes[entry] if entry in writes else result.seen[entry].record
        if lane.waiting or not self._visiting:  # a visitor leaves what concerns nobody here to those who stay
            self._set_alarm(entry, record)
        if result.next:
            for command in result.next:
                self.spawn(self.quietly(command))
            result.next.clear()
        if len(result.seen) > 1:
            self._noticed_beside(lane, result)
        if type(record) is not LockRecord and entry.startswith(SESSIONS):
            if not isinstance(record, Session) or record.ended is not None:  # whoever ended it may not have gone on
                self.free(entry.removeprefix(SESSIONS))
            return
        if self.wakes.anybody and entry in writes:
            self._changed(entry.removeprefix(LOCKS))
        if not lane.waiting:
            return
        if lane.stirred:
            lane.stirred = False
            self._wake([entry.removeprefix(LOCKS)])
        if result.shaken:
            self._ask_again(lane, record if isinstance(record, LockRecord) else LockRecord())

    def _noticed_beside(self, lane: Lane, result: Fold) -> None:
        """What was seen beside a lock decides about those who wait for it; and a session may have ended on the way."""
        if lane.waiting:
            for entry, known in result.seen.items():
                if entry != lane.entry and entry not in result.writes:
                    self._set_alarm(entry, known.record)
        for entry, record in result.writes.items():
            if type(record) is Session and record.ended is not None:
                self.free(entry.removeprefix(SESSIONS))

    def _ask_again(self, lane: Lane, record: LockRecord) -> None:
        """Queue again whoever stood here and does so no more: the place was lost, its replica thought dead, or the
        lock given to it by another, or by a commit whose answer was lost."""
        standing = {attempt for waiter in record.queue if not waiter.suspect_us for attempt in waiter.attempts}
        if record.offer is not None:
            standing.update(record.offer.waiter.attempts)
        standing.update(one[0].attempt for one in lane.asked if isinstance(one[0], Acquire))
        for polls in lane.waiting.values():
            for poll in polls.values():
                if poll.queued and not poll.asking and not poll.granted.done() and poll.attempt not in standing:
                    poll.asking = True
                    if isinstance(poll.command, AcquireAll):
                        asyncio.get_running_loop().call_soon(self.lanes.ask, poll.command)
                    else:
                        lane.asked.append((poll.command, asyncio.get_running_loop().create_future(), False))

    # --- what was changed elsewhere ---

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While somebody here waits for what others do."""
        self._listeners += 1
        self._listening.set()
        try:
            yield
        finally:
            self._listeners -= 1
            self._listened_us = self._clock.monotonic_us()

    def _nobody_listens(self) -> bool:
        """Whether the news concern nobody, and have not for a while. (Where leases end by being watched, they concern
        us always.)"""
        if self._listeners or self.lanes.observed is not None:
            return False
        return self._clock.monotonic_us() - self._listened_us > LISTEN_ON_US

    async def _follow(self) -> None:
        """Hear what other replicas commit, for as long as that concerns somebody here."""
        while True:
            if self._nobody_listens():
                self._listening.clear()
                await self._listening.wait()
            try:
                async with aclosing(self._store.changes(None)) as stream:
                    await self._listen(stream)
                continue
            except Unavailable as error:
                log.warning("the change stream broke: %s", error)
            except Exception:  # go on, or nobody here would hear of anything again
                log.exception("the change stream can't be followed")
                if (task := asyncio.current_task()) is not None and task.cancelling():  # it broke as it was stopped
                    return
            await asyncio.sleep(0.2)

    async def _listen(self, stream: AsyncGenerator[Changes, None]) -> None:
        """Look at the locks that somebody here waits for, whenever others change them."""
        missed = True  # what happened before the first answer came
        async for changes in stream:
            if self._nobody_listens():
                return
            if changes.reset or missed:
                missed = False
                self._wake_all()
                self._look_over.set()
                continue
            self._observe(changes.entries)
            foreign = [line.key for line in changes.entries if self._is_foreign(line.key, line.event)]
            for entry in dict.fromkeys(foreign):  # each once, in an order that a simulation can repeat
                self._changed_elsewhere(entry.removeprefix(LOCKS))

    def _observe(self, lines: Sequence[LogEntry]) -> None:
        """Count from now, where leases end by being watched."""
        if self.lanes.observed is not None:
            for line in lines:
                if line.key.startswith((LOCKS, SESSIONS)) and (version := decode_line(line.event).version):
                    self.lanes.observed.saw(line.key, version)

    def _is_foreign(self, entry: str, line: bytes) -> bool:
        if not entry.startswith(LOCKS):
            return False
        lane = self.lanes.get(entry)
        concerns = self.wakes.anybody or (lane is not None and (lane.waiting or lane.busy))
        return bool(concerns) and decode_line(line).replica != self._replica

    def _changed_elsewhere(self, lock_key: str) -> None:
        lane = self.lanes.get(lock_entry(lock_key))
        if lane is not None and lane.waiting:
            self._wake([lock_key])
        elif lane is not None:  # somebody may be queued by what is at work there
            lane.stirred = True
        if self.wakes.anybody:
            self.lanes.known.forget([lock_entry(lock_key)])
            self._changed(lock_key)

    def _changed(self, lock_key: str) -> None:
        """A lock changed, here or elsewhere: tell those above and below it."""
        self.wakes.changed(lock_key)
        self._wake(self.wakes.below(lock_key))

    def _wake_all(self) -> None:
        for lane in self.lanes.at_work():
            lane.stirred = True
        self._wake([lane.entry.removeprefix(LOCKS) for lane in self.lanes.waited_for()])
        self.wakes.everything_changed()

    def _wake(self, keys: Iterable[str]) -> None:
        for lock_key in keys:
            self.lanes.known.forget([lock_entry(lock_key)])
            self.spawn(self.quietly(Expire(lock_key)))

    # --- sessions ---

    def free(self, session_id: str) -> asyncio.Task[None]:
        """Let go of everything that a session held, which has ended, and of its places; once for all who ask."""
        task = self._freeing.get(session_id)
        if task is None:
            task = self._freeing[session_id] = self.spawn(self._free(session_id))
            task.add_done_callback(lambda _: self._freeing.pop(session_id, None))
        return task

    async def _free(self, session_id: str) -> None:
        prefix = members_of(session_id)
        after = ""
        try:
            while page := await self.lanes.records.look_over(prefix, after, PAGE):
                drops = [_drop(entry, record) for entry, record in page if isinstance(record, Member)]
                for start in range(0, len(drops), FREED_AT_ONCE):
                    freeing = [self.lanes.ask(drop) for drop in drops[start : start + FREED_AT_ONCE]]
                    for one in freeing:
                        outcome = await one
                        if isinstance(outcome, Refused):
                            raise outcome.error
                after = page[-1][0]
        except FencegateError as error:
            log.warning("not all locks of a session that ended could be freed yet: %s", error)
            self._look_again(SESSIONS + session_id)

    # --- cleaning up ---

    async def _sweep(self) -> None:
        """At start, set the alarms of what is held; from time to time, forget records that are idle."""
        whole = True
        if self._visiting:  # most are gone before this, and many that begin at once would all read everything
            await asyncio.sleep(SWEEP_EVERY_S * (0.5 + self._clock.jitter()))
        while True:
            try:
                if whole or self._limits.forgets:
                    await self._sweep_over(LOCKS)
                await self._sweep_over(SESSIONS)
            except FencegateError as error:
                log.warning("the sweep over the locks failed: %s", error)
            except Exception:  # it must go on, or nothing would be cleaned up again
                log.exception("the sweep over the locks failed")
            whole = await self._until_next_sweep()

    async def _until_next_sweep(self) -> bool:
        """Wait; True when lines were missed that we would count from, so that all has to be looked over, and soon."""
        if self.lanes.observed is None or self._visiting:
            await asyncio.sleep(SWEEP_EVERY_S)
            return False
        await asyncio.sleep(SWEEP_PAUSE_S)
        missed = True
        try:
            async with asyncio.timeout(SWEEP_EVERY_S):
                await self._look_over.wait()
        except TimeoutError:
            missed = False
        self._look_over.clear()
        return missed

    async def _sweep_over(self, prefix: str) -> None:
        after = ""
        while page := await self.lanes.records.look_over(prefix, after, PAGE):
            idle: dict[str, list[str]] = {}
            for entry, record in page:
                if isinstance(record, Session):
                    await self._sweep_session(entry, record)
                elif isinstance(record, LockRecord):
                    self._set_alarm(entry, record)
                    if not self._limits.forgets:
                        continue
                    if record.touched_us + self._limits.idle_us < self._now().earliest and not record.holds:
                        lock_key = entry.removeprefix(LOCKS)
                        idle.setdefault(floor_entry(lock_key), []).append(lock_key)
            await asyncio.gather(*(self._forget(lock_keys) for lock_keys in idle.values()))
            after = page[-1][0]
            await asyncio.sleep(0.01)

    async def _forget(self, lock_keys: Sequence[str]) -> None:
        """Those of one shard, one after the other: each raises the same floor. Shards go side by side, or it would be
        forgotten more slowly than new ones come."""
        for lock_key in lock_keys:
            await self.quietly(Forget(lock_key))

    async def _sweep_session(self, entry: str, session: Session) -> None:
        session_id = entry.removeprefix(SESSIONS)
        if session.ended is None:
            self._set_alarm(entry, session)
        elif await self.lanes.records.look_over(members_of(session_id), "", 1):
            await self.free(session_id)
        elif session.ended_us + self._limits.retention_us < self._now().earliest:
            await self.quietly(ForgetSession(session_id))


def _wakes_at(record: Record | None) -> int | None:
    if isinstance(record, LockRecord):
        return wakes_at(record)
    if isinstance(record, Session) and record.ended is None:
        return record.expires_us
    return None


def _drop(entry: str, member: Member) -> Drop:
    session_id, request, _ = entry.removeprefix(MEMBERS).split("/", 2)
    return Drop(member.lock_key, session_id, request)
