"""Lock commands against one store: at once, or after waiting, which is being woken by what others commit."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace

from fencegate.clock import SYSTEM, Clock
from fencegate.core.commands import (
    Acquire,
    AcquireAll,
    Command,
    Confirm,
    EndSession,
    Granted,
    GrantedAll,
    OpenSession,
    Outcome,
    Pending,
    Queued,
    Refused,
    Release,
    Released,
)
from fencegate.core.errors import FencegateError, NotSupported, OutcomeUnknown, ShuttingDown
from fencegate.core.machine import Below, held_below, look_below
from fencegate.core.model import (
    DEFAULT_LIMITS,
    PLAIN,
    Hold,
    Limits,
    lock_entry,
)
from fencegate.core.ports import Store
from fencegate.engine import undoing
from fencegate.engine.lane import Lane, Poll, again, is_final
from fencegate.engine.looking import PAGE, Looking
from fencegate.engine.tending import Tending
from fencegate.limits import Waits, within

FINISH_WITHIN_S = 1.0
LOOK_BELOW_EVERY_S = 1.0

log = logging.getLogger("fencegate.engine")


class Engine(Looking):
    """Runs lock commands against one store, from one event loop. Several engines may share a store."""

    def __init__(
        self,
        store: Store,
        clock: Clock = SYSTEM,
        limits: Limits = DEFAULT_LIMITS,
        *,
        replica: str | None = None,
        visiting: bool = False,
    ) -> None:
        """`visiting`: one of many that come and go, leave it to those who stay to look over all locks, and look at
        nothing before something is asked of them."""
        self.store = store
        self.clock = clock
        able = store.capabilities
        limits = replace(
            limits,
            forgets=able.forgets and limits.forgets,
            several=able.several_keys and limits.several,
            watched=not able.clock,
        )
        self.limits = limits
        self.replica = replica or clock.random_id(6)
        self._tending = Tending(store, clock, limits, self.replica, visiting=visiting)
        self._lanes = self._tending.lanes
        super().__init__(self._lanes.records, self._tending.begin)
        self._stopping = False
        self._waits: Waits | None = None

    # --- life ---

    async def start(self) -> None:
        self._tending.start()

    async def stop_waiting(self) -> None:
        """Send every waiter away at once; places of named requests are kept for another replica or a restart."""
        self._stopping = True
        for lane in self._lanes.waited_for():
            for polls in list(lane.waiting.values()):
                for poll in polls.values():
                    if not poll.granted.done():
                        poll.granted.set_exception(_stopping())
        self._tending.wakes.everything_changed()

    async def close(self) -> None:
        """Send waiters away, finish what was begun unless the store is stuck, and stop."""
        await self.stop_waiting()
        await self._tending.stop()
        await asyncio.sleep(0)  # whoever was sent away starts to leave
        try:
            async with asyncio.timeout(FINISH_WITHIN_S):
                await self._tending.finished()
        except TimeoutError:
            log.warning("the store does not answer; what was begun is left to it, and to the TTL")
            await self._tending.abandon()

    # --- what callers ask ---

    async def run(self, command: Command) -> Outcome:
        """One command, to its end; a refusal is raised."""
        if not self.limits.several:
            self._refuse_several(command)
        outcome = await self._lanes.ask(command)
        if isinstance(outcome, Refused):
            raise outcome.error
        return outcome

    async def acquire(
        self,
        command: Acquire,
        wait_us: int = 0,
        keep_us: int = 0,
        limit_s: float = 0,
        standing: Callable[[], None] | None = None,
    ) -> Hold:
        """The lock, at once or within `wait_us`. A wait that ends without it keeps its place for `keep_us`. With a
        `limit_s`, it is OutcomeUnknown when the store takes longer than that, beside the waiting. `standing` is called
        when it has to wait, or may have to."""
        if command.wait and command.wait_us != wait_us:
            command = replace(command, wait_us=wait_us)
        if command.who.special is None and (not command.wait or "/" not in command.lock_key):
            return await self.acquire_plainly(command, wait_us, keep_us, limit_s, standing)
        if standing is not None:
            standing()
        getting = self._acquire(command, wait_us if command.wait else 0, keep_us if command.wait else 0)
        granted = await (_within(getting, wait_us / 1e6 + limit_s) if limit_s else getting)
        if isinstance(granted, Granted):
            return granted.hold
        raise _refusal(granted)

    async def release(self, command: Release, limit_s: float) -> None:
        """Give a lock back; OutcomeUnknown when the store takes longer than that."""
        waits = self._waits or self._waits_here()
        asked = self._lanes.ask(command)
        waits.bound(asked, limit_s, _no_answer)
        outcome = await asked
        waits.free(asked)
        if type(outcome) is not Released:
            raise _refusal(outcome)

    def _waits_here(self) -> Waits:
        self._waits = Waits.of(asyncio.get_running_loop())
        return self._waits

    async def acquire_all(self, command: AcquireAll, wait_us: int = 0, keep_us: int = 0) -> tuple[Hold, ...]:
        """All of these locks, or none, in the order of the command's parts."""
        if command.parts[0].wait:
            command = AcquireAll(tuple(replace(part, wait_us=wait_us) for part in command.parts))
        granted = await self._acquire(command, wait_us, keep_us)
        if isinstance(granted, GrantedAll):
            return granted.holds
        raise _refusal(granted)

    async def end_session(self, command: EndSession) -> None:
        """End it, and free what it held."""
        await self.run(command)
        await asyncio.shield(self._tending.free(command.session_id))

    def _refuse_several(self, command: Command) -> None:
        """Say what the store can't do, before anything is begun."""
        terms = command.who.terms if isinstance(command, Acquire) else PLAIN
        if isinstance(command, AcquireAll):
            feature = "several locks at once"
        elif isinstance(command, OpenSession) or terms.session:
            feature = "sessions"
        elif terms.hierarchical:
            feature = "hierarchical locks"
        else:
            return
        raise NotSupported(f"the store {self.store.name} commits one lock at a time, and can't do {feature}")

    # --- waiting ---

    async def acquire_plainly(
        self, command: Acquire, wait_us: int, keep_us: int, limit_s: float, standing: Callable[[], None] | None = None
    ) -> Hold:
        """`acquire` of a plain lock that nobody waits for below another: what waiting takes is made when there is
        somebody to wait for."""
        settled, stands = False, command.wait
        if stands and self._stopping:
            raise _stopping()
        deadline_us = self.clock.monotonic_us() + wait_us if stands else 0
        try:
            asked = self._lanes.ask(command, stands=stands)
            if limit_s:
                waits = self._waits or self._waits_here()
                waits.bound(asked, limit_s, _no_answer)
                outcome = await asked
                waits.free(asked)
            else:
                outcome = await asked
            if type(outcome) is Queued:
                if standing is not None:
                    standing()
                waiting = self._stand_there(command, deadline_us, keep_us)
                outcome = await (_within(waiting, wait_us / 1e6 + limit_s) if limit_s else waiting)
            settled = type(outcome) is not Refused or is_final(outcome.error)
            if type(outcome) is Granted:
                return outcome.hold
            raise _refusal(outcome)
        except FencegateError as error:
            settled = is_final(error)
            raise
        finally:
            if not settled:  # cancelled, sent away, or unknown: neither a place nor a hold may stay behind
                if stands:
                    self._leave_place(command)
                self._tending.spawn(self._abandon(command, keep_us if stands else 0))

    async def _stand_there(self, command: Acquire, deadline_us: int, keep_us: int) -> Outcome:
        """Wait at the place that an acquire was given."""
        lane = self._lanes.lane(lock_entry(command.lock_key))
        poll = lane.waiting[command.who.request][command.attempt]
        if self._stopping and not poll.granted.done():
            raise _stopping()
        try:
            with self._tending.listening():
                return self._lanes.in_time(await self._granted(poll, deadline_us))
        except TimeoutError:
            return await self._too_late(command, keep_us)
        finally:
            self._leave_place(command)

    async def _granted(self, poll: Poll, deadline_us: int) -> Outcome:
        async with asyncio.timeout((deadline_us - self.clock.monotonic_us()) / 1_000_000):
            return await poll.granted

    async def _too_late(self, command: Acquire | AcquireAll, keep_us: int) -> Outcome:
        """The wait is over: with what came at the last moment, or with the reason why it did not."""
        late = await self.run(undoing.leave(command, keep_us))
        return late if isinstance(late, Granted | GrantedAll) else await self._lanes.ask(undoing.at_once(command))

    def _leave_place(self, command: Acquire) -> None:
        lane = self._lanes.get(lock_entry(command.lock_key))
        if lane is not None:
            _Leaving(self, lane, command)()

    async def _acquire(self, command: Acquire | AcquireAll, wait_us: int, keep_us: int) -> Outcome:
        if not self.limits.several:
            self._refuse_several(command)
        settled = False
        waits = undoing.parts(command)[0].wait
        deadline_us = self.clock.monotonic_us() + wait_us if waits else 0
        try:
            while True:
                granted = await (self._wait_for(command, deadline_us, keep_us) if waits else self._lanes.ask(command))
                if isinstance(granted, Pending) and isinstance(command, Acquire):
                    confirmed = await self._confirm(command, granted.hold, deadline_us, keep_us)
                    if confirmed is None:  # it lapsed meanwhile: begin again
                        continue
                    granted = confirmed
                settled = not isinstance(granted, Refused) or is_final(granted.error)
                return self._lanes.in_time(granted)
        except FencegateError as error:
            settled = is_final(error)
            raise
        finally:
            if not settled:  # cancelled, sent away, or unknown: neither a place nor a hold may stay behind
                self._tending.spawn(self._abandon(command, keep_us))

    async def _wait_for(self, command: Acquire | AcquireAll, deadline_us: int, keep_us: int) -> Outcome:
        if self._stopping:
            raise _stopping()
        later = again(command) if isinstance(command, Acquire) else command  # what is asked if the place is lost
        poll = Poll(later, asyncio.get_running_loop().create_future())
        with ExitStack() as stack:
            stack.enter_context(self._tending.listening())
            for part in undoing.parts(command):  # before asking: no wake-up may be missed
                stack.callback(self._stand(self._lanes.lane(lock_entry(part.lock_key)), part, poll))
                if "/" in part.lock_key:
                    stack.enter_context(self._tending.wakes.waiting(part.lock_key))
            try:
                outcome = await self._lanes.ask(command)
                if not isinstance(outcome, Queued):
                    return outcome
                return await self._granted(poll, deadline_us)
            except TimeoutError:
                return await self._too_late(command, keep_us)

    def _stand(self, lane: Lane, part: Acquire, poll: Poll) -> "_Leaving":
        lane.waiting.setdefault(part.who.request, {})[part.attempt] = poll
        return _Leaving(self, lane, part)

    async def _abandon(self, command: Acquire | AcquireAll, keep_us: int) -> None:
        """Nobody listens any more: give the place back, and an unnamed lock that came meanwhile."""
        try:
            late = await self.run(undoing.leave(command, keep_us))
            if isinstance(late, Granted | GrantedAll) and not undoing.parts(command)[0].named:
                await self.run(undoing.release(command))
        except FencegateError as error:
            log.warning("a waiter could not be taken out of its queue: %s", error)

    # --- looking below ---

    async def _confirm(self, command: Acquire, pending: Hold, deadline_us: int, keep_us: int) -> Outcome | None:
        """Look below a pending hold until nobody is there, or the time is up; None when it is gone."""
        request = command.who.request
        with self._tending.listening(), self._tending.wakes.looking_below(command.lock_key) as changed:
            while True:
                if self._stopping:
                    raise _stopping()
                changed.clear()
                below = await self._look_below(command, pending)
                left_s = (deadline_us - self.clock.monotonic_us()) / 1_000_000
                if below.holder is not None and left_s <= 0:
                    late = await self.run(undoing.leave(command, keep_us))
                    return late if isinstance(late, Granted) else Refused(held_below(command.lock_key, below.holder))
                blocked = below.holder is not None
                outcome = await self._lanes.ask(
                    Confirm(command.lock_key, request, pending.token, below.highest, blocked)
                )
                if isinstance(outcome, Granted | Refused):
                    return outcome
                if not isinstance(outcome, Pending):
                    return None
                moved, pending = outcome.hold.token != pending.token, outcome.hold
                if blocked and not moved:
                    try:
                        async with asyncio.timeout(min(LOOK_BELOW_EVERY_S, left_s)):
                            await changed.wait()
                    except TimeoutError:
                        pass

    async def _look_below(self, command: Acquire, pending: Hold) -> Below:
        highest, holder = 0, None
        prefix = f"{command.lock_key}/"
        after = ""
        renewed_us = self.clock.monotonic_us()
        while page := await self.scan(prefix, after, PAGE):
            if self.clock.monotonic_us() - renewed_us > self.limits.offer_us // 3:  # it must not lapse while we look
                await self._lanes.ask(Confirm(command.lock_key, command.who.request, pending.token, blocked=True))
                renewed_us = self.clock.monotonic_us()
            records = [record for _, record in page]
            found = look_below(records, command.who, self.now(), await self.sessions(records))
            highest, holder = max(highest, found.highest), holder if found.holder is None else holder or found.holder
            after = page[-1][0]
        return Below(highest, holder)


class _Leaving:
    """Takes a poll out of its lane again."""

    __slots__ = ("_engine", "_lane", "_part")

    def __init__(self, engine: Engine, lane: Lane, part: Acquire) -> None:
        self._engine, self._lane, self._part = engine, lane, part

    def __call__(self) -> None:
        lane, request = self._lane, self._part.who.request
        polls = lane.waiting.get(request, {})
        polls.pop(self._part.attempt, None)
        if not polls:
            lane.waiting.pop(request, None)
        self._engine._lanes.leave(lane)


async def _within(getting: Awaitable[Outcome], limit_s: float) -> Outcome:
    try:
        return await within(getting, limit_s)
    except TimeoutError:
        raise _no_answer(limit_s) from None


def _no_answer(limit_s: float) -> OutcomeUnknown:
    return OutcomeUnknown(f"no answer within {limit_s:.3g} s; it may have been done all the same")


def _stopping() -> ShuttingDown:
    return ShuttingDown("the lock service is stopping; ask again in a moment")


def _refusal(outcome: Outcome) -> FencegateError:
    if isinstance(outcome, Refused):
        return outcome.error
    return OutcomeUnknown("it was neither done nor refused")
