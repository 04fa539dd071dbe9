"""Load, ask the state machine, commit if unchanged: one commit in flight for a lock, what comes meanwhile in the next.

The common case is a commit that rests on what is known and lands: it runs on callbacks alone, since a task for each
command cost more than judging it. Everything else is `_settle`, a loop that can be read from top to bottom.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from fencegate.clock import Clock
from fencegate.core.commands import (
    Acquire,
    AcquireAll,
    Command,
    Granted,
    GrantedAll,
    Need,
    Outcome,
    Queued,
    Refused,
    Release,
    Released,
    Renewed,
    RenewedAll,
    SessionIs,
)
from fencegate.core.errors import FencegateError, OutcomeUnknown, StoreUnavailable, TooManyWaiters
from fencegate.core.model import LOCKS, Limits
from fencegate.core.ports import Ambiguous, CallingStore, Conflict, Interval, Store, TooLate, Unavailable
from fencegate.engine.answer import Answer
from fencegate.engine.attempt import Attempt, attempt
from fencegate.engine.fold import Fold, fold, fold_alone
from fencegate.engine.known import Knowledge, Known
from fencegate.engine.lane import NOBODY, Asked, Awaited, Convoy, Lane, again
from fencegate.engine.records import Records
from fencegate.engine.resolving import resolve

TRIES = 12
MOST_TRIES = 60
TRY_FOR_US = 3_000_000
"""What goes on at a lock is tried against so often at least, and for so long: another replica that knows the record
commits twice as fast as one that has to load it first, and may win a dozen times."""

_STOPPED = "the lock service is stopping, and the store did not answer; repeat with the same requestId to find out"

log = logging.getLogger("fencegate.engine")

Lot = Sequence[Lane]
"""The lanes that a commit works on: one, or several for a command about several entries."""


class Lanes:
    """The entries that are at work in this replica. `noticed` hears of every lane that was looked at or changed,
    before the next commit of it is sent, with what was seen on the way (None when the fate of it is not known).
    `begin` is called before the first command."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        limits: Limits,
        replica: str,
        noticed: Callable[[Lane, Fold | None], None],
        begin: Callable[[], None],
    ) -> None:
        self._store = store
        self._commit_then = store.commit_then if isinstance(store, CallingStore) else None
        self._clock = clock
        self._limits = limits
        self._max_value = store.capabilities.max_value
        self._replica = replica
        self._noticed = noticed
        self._begin = begin
        self._lanes: dict[str, Lane] = {}
        self.known = Knowledge()
        self.records = Records(store, clock)
        self.observed = self.records.observed
        self._is_watched = self.observed is not None
        self._random_id = clock.random_id
        self._slow: set[asyncio.Task[None]] = set()
        self._landing: set[asyncio.Future[None]] = set()
        self._now: Callable[[], Interval] = self.records.now if self.observed is not None else cast(Any, store.now)
        """The time, without a word of why it can't be told: whoever gives up finds that."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that asked first: there is no other."""
        self._busy = 0
        self._idle: asyncio.Event | None = None
        """Set when nothing is under way, once somebody waits for that."""
        self._stopped = False

    # --- the lanes ---

    def lane(self, entry: str) -> Lane:
        lane = self._lanes.get(entry)
        if lane is None:
            lane = self._lanes[entry] = Lane(entry)
        return lane

    def __len__(self) -> int:
        return len(self._lanes)

    def get(self, entry: str) -> Lane | None:
        return self._lanes.get(entry)

    def waited_for(self) -> list[Lane]:
        """The locks that somebody waits for here."""
        return [lane for lane in self._lanes.values() if lane.waiting]

    def at_work(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.busy]

    def leave(self, lane: Lane) -> None:
        """Somebody does not wait for this any more: a lane at which nothing happens need not be kept."""
        if not lane.busy and not lane.waiting:
            self._lanes.pop(lane.entry, None)

    async def drained(self) -> None:
        """Return when nothing is under way."""
        while self._busy:
            if self._idle is None:
                self._idle = asyncio.Event()
            await self._idle.wait()

    async def stop(self) -> None:
        """Wait for the store no longer, nor ask it anything more: whoever waits for it is told so."""
        self._stopped = True
        while under_way := [*self._slow, *self._landing]:
            for one in under_way:
                one.cancel()
            await asyncio.wait(under_way)

    # --- the common case, on callbacks ---

    def ask(self, command: Command, *, stands: bool = False) -> Awaited:
        """Have a command carried out; a refusal is an outcome too. Whoever `stands` has a poll at the lane from the
        moment that it is queued, so that no wake-up is missed."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
            self._begin()
        # Who is alone goes on at once. Of many all are answered before all go on: what is alike is quicker in a row.
        future: Awaited = asyncio.Future(loop=loop) if self._busy else Answer(loop)
        kind = type(command)
        if kind is Acquire or kind is Release:
            entry = LOCKS + command.lock_key  # type: ignore[union-attr]
        else:
            entries = command.at
            if len(entries) > 1:
                self._advance(Convoy((command, future, False), sorted(entries), []))
                return future
            entry = entries[0]
        lane = self._lanes.get(entry)
        if lane is None:
            lane = self._lanes[entry] = Lane(entry)
        if not lane.busy:
            lane.busy = True
            self._busy += 1
            self._send(lane, [(command, future, stands)])
        else:
            lane.asked.append((again(command) if type(command) is Acquire else command, future, stands))
        return future

    def _take(self, lane: Lane) -> None:
        lane.busy = True
        self._busy += 1

    def _advance(self, convoy: Convoy) -> None:
        """Take the lanes that a command about several entries needs; go as soon as it has them all."""
        while len(convoy.lanes) < len(convoy.entries):
            lane = self.lane(convoy.entries[len(convoy.lanes)])
            if lane.busy:
                lane.gates.append(convoy)
                return
            self._take(lane)
            convoy.lanes.append(lane)
        self._slowly(convoy.lanes, [convoy.asked], self._settle(convoy.lanes, [convoy.asked]))

    def _go(self, lane: Lane) -> None:
        """Send the next commit of a lane; when nothing is asked of it any more, let it rest."""
        if lane.gates and (lane.gate_is_next or not lane.asked):
            lane.gate_is_next = False
            convoy = lane.gates.pop(0)
            convoy.lanes.append(lane)  # it stays busy, for the convoy now
            self._advance(convoy)
            return
        lane.gate_is_next = bool(lane.gates)
        asked = lane.take()
        if asked:
            self._send(lane, asked)
        else:
            self._rest(lane)

    def _rest(self, lane: Lane) -> None:
        lane.busy = False
        self._busy -= 1
        if self._idle is not None and not self._busy:
            self._idle.set()
            self._idle = None
        if not lane.waiting:
            del self._lanes[lane.entry]

    def _send(self, lane: Lane, asked: list[Asked]) -> None:
        """Send what was asked, on the ground of what is known."""
        lot = (lane,)
        try:
            if self._stopped:
                raise OutcomeUnknown(_STOPPED)
            now = self._now() or self.records.now()
            if len(asked) == 1 and not lane.waiting:
                result = fold_alone(lane.entry, asked[0][0], now, self._limits, self.known.guess)
            else:
                result = self._fold_known(lot, asked, now)
            if not result.writes:
                self._slowly(lot, asked, self._settle(lot, asked, list(result.seen)))
                return
            trying = self._attempt(lot, asked, result, now)
            landed = partial(self._landed, lot, asked, trying)
            commit_then = self._commit_then
            if commit_then is not None:
                commit_then(trying.changes, trying.log, trying.not_after_us, landed)
                return
            landing = asyncio.ensure_future(self._store.commit(trying.changes, trying.log, trying.not_after_us))
        except Exception as error:  # whatever it is, those who ask must hear of it, and the next ones be served
            self._give_up(lot, asked, error)
            asyncio.get_running_loop().call_soon(self._go, lane)
            return
        self._landing.add(landing)
        landing.add_done_callback(self._landing.discard)
        landing.add_done_callback(lambda done: landed(_error_of(done)))

    def _fold_known(self, lot: tuple[Lane], asked: list[Asked], now: Interval) -> Fold:
        """Rest on what is known, and let the commit find out."""
        lane = lot[0]
        entry = lane.entry
        lane.expect(asked)
        seen = {entry: self.known.guess(entry)}
        result = fold(lot, [one[0] for one in asked], seen, now, self._limits, self.known.guess)
        assert not isinstance(result, Need)
        return result

    def _landed(self, lot: tuple[Lane], asked: list[Asked], trying: Attempt, error: BaseException | None) -> None:
        if error is not None:
            self._slowly(lot, asked, self._recover(lot, asked, trying, error))
            return
        lane = lot[0]
        alone = self._served(lane, trying.result.heard) if lane.waiting else asked[0][1]
        if type(alone) is Answer:
            alone.hold_back()
        try:
            self._finish(lot, asked, trying.result, trying.after, trying)
        except Exception as failed:
            self._give_up(lot, asked, failed)
        if lane.asked or lane.gates:
            self._go(lane)
        else:
            self._rest(lane)
        if type(alone) is Answer:
            alone.go_on()

    def _served(self, lane: Lane, heard: Mapping[str, Outcome]) -> object:
        """Where the one awaits it who waited here and is given the lock now; None when there is more than that to do.
        Such a one goes on first, before the one who let go is answered."""
        polls = lane.waiting.get(next(iter(heard)), {}) if len(heard) == 1 and self._busy == 1 else {}
        return next(iter(polls.values())).granted if len(polls) == 1 else None

    # --- everything else ---

    def _slowly(self, lot: Lot, asked: list[Asked], work: Coroutine[Any, Any, None]) -> None:
        if self._stopped:  # nobody would wait for a task that begins now
            work.close()
            self._leave(lot, asked)
            return

        async def to_the_end() -> None:
            try:
                await work
            except Exception as error:
                self._give_up(lot, asked, error)
            except asyncio.CancelledError as error:
                if task.cancelling():  # it is we who are stopped; else it was a call of the store's that was
                    raise
                self._give_up(lot, asked, error)
            for lane in lot:
                self._go(lane)

        def ended(_: object) -> None:
            self._slow.discard(task)
            work.close()  # which may not have begun
            if task.cancelled():
                # With all tasks of a loop that ends. Those of the application may still want to release: were the
                # lanes left as they are, they would wait here until they lose patience.
                self._leave(lot, asked)

        task = asyncio.get_running_loop().create_task(to_the_end())
        self._slow.add(task)
        task.add_done_callback(ended)

    def _leave(self, lot: Lot, asked: list[Asked]) -> None:
        self._give_up(lot, asked, OutcomeUnknown(_STOPPED))
        for lane in lot:
            self._go(lane)

    async def _recover(self, lot: Lot, asked: list[Asked], trying: Attempt, error: BaseException) -> None:
        """A commit did not land, or did not say so."""
        try:
            if isinstance(error, Ambiguous):
                await self._resolve(trying)
                self._finish(lot, asked, trying.result, trying.after, trying)
                return
            if not isinstance(error, Conflict | TooLate):
                raise error
        except Conflict:
            pass
        self.known.forget(trying.result.seen)
        await self._settle(lot, asked, list(trying.result.seen))

    async def _settle(self, lot: Lot, asked: list[Asked], entries: Sequence[str] = ()) -> None:
        """Bring what was asked to its end on the ground of fresh loads: committed, or refused."""
        commands = [again(one[0]) if type(one[0]) is Acquire else one[0] for one in asked]
        lot[0].expect(asked)
        fresh = await self.records.load(entries or [lane.entry for lane in lot])
        until_us = self._clock.monotonic_us() + TRY_FOR_US
        for number in range(MOST_TRIES):
            if number >= TRIES and self._clock.monotonic_us() >= until_us:
                break
            now = self.records.now()
            result = fold(lot, commands, dict(fresh), now, self._limits, None)
            if isinstance(result, Need):
                fresh |= await self.records.load(self._wanted(lot, commands, fresh, now))
                continue
            if not result.writes:
                self._finish(lot, asked, result, fresh)
                return
            trying = self._attempt(lot, asked, result, now)
            with suppress(Conflict, TooLate):
                try:
                    await self._store.commit(trying.changes, trying.log, trying.not_after_us)
                except Ambiguous:
                    await self._resolve(trying)
                self._finish(lot, asked, result, fresh | trying.after, trying)
                return
            self.known.forget(fresh)
            await asyncio.sleep(self._clock.jitter() * min(0.2, 0.002 * 2 ** min(number, 7)) if number else 0)
            fresh = await self.records.load(list(fresh))
        raise StoreUnavailable("too much is going on at this lock; nothing was done, try again")

    def _wanted(self, lot: Lot, commands: Sequence[Command], fresh: dict[str, Known], now: Interval) -> list[str]:
        """What else the state machine will ask to see, as far as can be guessed: all of it is loaded at once, since
        each of many locks may have a session, a past and a floor of its own."""
        seen = dict(fresh)
        fold(lot, commands, seen, now, self._limits, self.known.guess)
        return [entry for entry in seen if entry not in fresh]

    async def _resolve(self, trying: Attempt) -> None:
        await resolve(trying, self._store, self.records, self._clock)

    def _attempt(self, lot: Lot, asked: list[Asked], result: Fold, now: Interval) -> Attempt:
        trying = attempt(lot, result, now, self._random_id(8), self._replica, self._is_watched)
        most = self._max_value
        # Only who comes anew is refused: whatever lets others go on must find its way into the record.
        if most and trying.largest > most and any(isinstance(one[0], Acquire | AcquireAll) for one in asked):
            raise _Oversized(f"what waits for this lock is more than the store {self._store.name} keeps for one")
        return trying

    # --- answers ---

    def _finish(
        self, lot: Lot, asked: list[Asked], result: Fold, learnt: dict[str, Known], landed: Attempt | None = None
    ) -> None:
        self.known.learn(learnt)
        if landed is not None and self.observed is not None:
            for entry, written in landed.after.items():
                self.observed.wrote(entry, landed.commit_id, written.record, landed.written_us)
        # Those who waited hear of it first: whoever let go often asks for something else at once, and they would wait
        # for that too. Who is queued and served by this very commit has a poll only when that was answered.
        lane = lot[0]
        if result.heard:
            _tell(lot, result.heard)
        if len(asked) > 1 or lane.waiting or type(result.outcomes[0]) is Queued:
            self._answer(lane, asked, result.outcomes)
        else:  # most of them
            lane.coming = NOBODY
            future = asked[0][1]
            if not future.done():
                future.set_result(self.in_time(result.outcomes[0]))
        if result.heard:
            _tell(lot, result.heard)
        for lane in lot:
            self._noticed(lane, result)

    def _give_up(self, lot: Lot, asked: list[Asked], error: BaseException) -> None:
        if isinstance(error, _Oversized) and len(asked) > 1:
            lot[0].coming = NOBODY
            lot[0].part(asked)
            return
        if isinstance(error, Unavailable):
            error = StoreUnavailable(str(error))
        elif not isinstance(error, FencegateError):
            log.error("the lock %r can't be handled", lot[0].entry, exc_info=error)
            error = OutcomeUnknown("the lock can't be handled; repeat with the same requestId to find out")
        self.known.forget(lane.entry for lane in lot)
        self._answer(lot[0], asked, [Refused(error)] * len(asked))
        try:
            for lane in lot:
                self._noticed(lane, None)
        except Exception:  # there is nobody left to tell, and the next ones must be served
            log.exception("the lock %r can't be watched", lot[0].entry)

    def _answer(self, lane: Lane, asked: Iterable[Asked], outcomes: Sequence[Outcome]) -> None:
        lane.coming = NOBODY
        for (command, future, stands), outcome in zip(asked, outcomes, strict=True):
            if stands and type(outcome) is Queued and not future.done():
                assert isinstance(command, Acquire)
                lane.stand(command, asyncio.get_running_loop())
            elif lane.waiting and isinstance(command, Acquire | AcquireAll):
                part = command if isinstance(command, Acquire) else command.parts[0]
                poll = lane.waiting.get(part.who.request, {}).get(part.attempt)
                if poll is not None:
                    poll.hear(outcome)
            if not future.done():
                future.set_result(self.in_time(outcome))

    def in_time(self, outcome: Outcome) -> Outcome:
        """Nobody is told that they hold a lease that ran out while it was being committed."""
        if type(outcome) is Granted:
            end_us: int | None = outcome.hold.expires_us
        elif type(outcome) is Released:
            return outcome
        else:
            end_us = _ends_us(outcome)
        if end_us is not None:
            try:
                now = self._now() or self.records.now()
            except (StoreUnavailable, Unavailable):
                return Refused(OutcomeUnknown("the store can't tell the time; repeat with the same requestId"))
            if end_us <= now.latest:
                return Refused(
                    OutcomeUnknown("the lease ran out before it was committed; repeat with the same requestId")
                )
        return outcome


class _Oversized(TooManyWaiters):
    """The record would be larger than the store takes."""


def _tell(lot: Lot, heard: Mapping[str, Outcome]) -> None:
    for lane in lot:
        for request, outcome in heard.items():
            for poll in lane.waiting.get(request, {}).values():
                poll.hear(outcome)


def _error_of(landing: "asyncio.Future[None]") -> BaseException | None:
    return Ambiguous("interrupted") if landing.cancelled() else landing.exception()


def _ends_us(outcome: Outcome) -> int | None:
    """When what is told by this outcome is over; None when it tells of nothing that ends."""
    match outcome:
        case Granted() | Renewed():
            return outcome.hold.expires_us
        case GrantedAll():
            return min(hold.expires_us for hold in outcome.holds)
        case RenewedAll():
            return min(part.hold.expires_us for part in outcome.parts)
        case SessionIs():
            return outcome.session.expires_us if outcome.session.ended is None else None
    return None
