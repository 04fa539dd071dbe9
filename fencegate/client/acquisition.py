"""Getting a lock, or several: one acquire from the first request to a definite answer, or to its undoing.

A wait is made of polls of at most a third of the TTL, all with one requestId, so that the place in the queue is kept
and a grant whose answer was lost is found again. The lease counts from the start of the poll that brought it.

They overlap: between two polls nobody would stand at the place for a moment, and a lock that came free in that moment
would go to the next in the queue. So the next one is begun before the last one ends, and stands beside it.
"""

import asyncio
import math
from collections.abc import Awaitable
from typing import Generic, TypeVar

from fencegate.client.asks import Ask
from fencegate.client.attempt import WORTH_REPEATING, pause_s, repeated, repeated_after, worth_repeating
from fencegate.client.patience import within
from fencegate.client.polls import Poll, overlap_ms
from fencegate.client.release import release
from fencegate.client.transport import Json, Transport
from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, LockExpired, LockHeld, OutcomeUnknown, ShuttingDown

G = TypeVar("G")

_LONGEST_POLL_MS = 60_000

# The lock service remembers a settled requestId for 10 minutes. A later repeat would be a new request, and take a lock
# that nobody waits for any more.
_REPEATABLE_US = 9 * 60 * 1_000_000

# A server may notice a cut connection only after our first question: it is asked again after this long.
_SECOND_LOOK_S = 0.3


class _TooOld(OutcomeUnknown):
    """Nobody can say any more what became of the request."""


class Acquisition(Generic[G]):
    """One acquire. `run` brings the grant or raises; after it raised, `undo` leaves nothing behind."""

    def __init__(self, ask: Ask[G], owner_id: str, clock: Clock, timeout_s: float) -> None:
        self._ask = ask
        self._wish = ask.wish
        self._owner_id = owner_id
        self._clock = clock
        self._timeout_s = timeout_s
        self._request_id = self._wish.request_id or clock.random_id()
        self._fresh = self._wish.request_id is None
        """Whether nobody was told of the request yet."""
        self._begun_us = now_us = clock.monotonic_us()
        self.wait_until_us = now_us + self._wish.wait_s * 1e6
        self._repeatable_until_us = now_us + _REPEATABLE_US
        self.doubtful = False
        """Whether the lock service may hold something for us that we don't know of."""
        self._since_us = now_us
        """The start of the first poll that may have brought it."""
        self._polled_us = now_us
        """The start of the last one."""

    _unheard = False
    """Whether an earlier poll ended without a word of what came of it."""
    _next: Poll[G] | None = None
    """The poll that was begun before the one under way has ended."""
    _patience: asyncio.Timeout | None = None
    """With the one under way: it is over when the next is the first to be answered."""

    async def run(self, transport: Transport, failed: Exception | None = None) -> G:
        """To the end; when the first poll was made already, from what it `failed` with."""
        try:
            return await self._run(transport, failed)
        except BaseException:
            self.doubtful = self.doubtful or self._next is not None
            raise
        finally:
            self._drop_next()

    async def _run(self, transport: Transport, failed: Exception | None) -> G:
        hasty = 0
        while True:
            try:
                if failed is None:
                    try:
                        return await self._poll(transport)
                    except Exception as error:
                        failed = error
                last, failed = failed, None
                return await repeated_after(last, lambda: self._poll(transport), self._is_worth_another)
            except LockHeld:
                now_us = self._answered()
                if now_us >= self.wait_until_us and self._next is None:
                    raise
                was_hasty = now_us - self._polled_us < self._poll_ms(self._polled_us) * 500
                hasty = hasty + 1 if was_hasty else 0
            except LockExpired:  # an earlier attempt got the lock, and its lease ended before we heard of it
                self._drop_next()
                if self._wish.request_id is not None or self._answered() >= self.wait_until_us:
                    raise
                self._request_id = self._clock.random_id()
                hasty += 1
            except WORTH_REPEATING:  # it has been repeated already, if the next one is under way
                if self._next is None:
                    raise
                continue
            if hasty:
                await asyncio.sleep(pause_s(hasty, self._clock))

    async def undo(self, transport: Transport) -> None:
        """Ask once more without waiting, and release what comes: finished or undone, but nothing left until the TTL."""
        clock = self._clock
        give_up_us = min(self._repeatable_until_us, clock.monotonic_us() + self._wish.ttl_ms * 1000)

        async def look() -> None:
            grant = await self._send(transport, 0, clock.monotonic_us())

            def take_back(limit_s: float) -> Awaitable[object]:
                return within(self._ask.take_back(transport, grant), limit_s)

            await release(take_back, clock, self._timeout_s, give_up_us)

        for last in (False, True):
            try:
                await repeated(look, lambda error: worth_repeating(error) and clock.monotonic_us() < give_up_us)
            except LockHeld:
                if not last:
                    await asyncio.sleep(_SECOND_LOOK_S)
                continue
            except FencegateError:
                pass
            return

    # --- polls ---

    async def _poll(self, transport: Transport) -> G:
        """One request, or the one that was begun already, and what its answer says of what may be left behind."""
        poll, self._next = self._next, None
        started_us, poll_ms = self._begun() if poll is None else (poll.started_us, poll.ms)
        self._polled_us = started_us
        self.doubtful = True
        if not self._unheard:
            self._since_us = started_us
        answer = self._send(transport, poll_ms, started_us) if poll is None else poll.answer
        try:
            return await (self._overlapped(transport, answer) if self._comes_back(started_us, poll_ms) else answer)
        except FencegateError as error:
            self._refused(error, poll_ms)
            raise

    async def _overlapped(self, transport: Transport, answer: Awaitable[G]) -> G:
        """The answer of a poll, with the next one begun before it ends; or of that one, if it is the first to come."""
        timer = self._begin_in_time(transport)
        try:
            async with asyncio.timeout(None) as self._patience:
                return await answer
        except TimeoutError:
            poll, self._next = self._next, None
            if poll is None:
                raise
        finally:
            self._patience = None
            timer.cancel()
        # It was asked later, so the other's answer would be older news; but that one may have been granted it since.
        self._unheard = True
        self._polled_us = poll.started_us
        return await poll.answer

    def _begin_in_time(self, transport: Transport) -> asyncio.TimerHandle:
        """Have the next poll begun before the one that began last ends."""
        poll_ms = self._poll_ms(self._polled_us)
        left_us = self._polled_us + (poll_ms - overlap_ms(poll_ms)) * 1000 - self._clock.monotonic_us()
        return asyncio.get_running_loop().call_later(left_us / 1e6, self._begin_next, transport)

    def _begin_next(self, transport: Transport) -> None:
        try:
            started_us, poll_ms = self._begun()
        except _TooOld:  # unless the one under way is answered
            return
        if poll_ms:
            answer = asyncio.get_running_loop().create_task(self._send(transport, poll_ms, started_us))
            self._next = poll = Poll(started_us, poll_ms, answer)
            answer.add_done_callback(lambda _: self._heard_of(poll))

    def _heard_of(self, poll: Poll[G]) -> None:
        error = poll.error()
        if poll is not self._next:  # it was dropped, or is the one under way by now
            return
        if error is not None and worth_repeating(error):  # as if it had not begun: the other stands there still
            self._next = None
            self._unheard = self._unheard or _is_unheard(error, poll.ms)
        elif self._patience is not None:
            self._patience.reschedule(0)

    def _drop_next(self) -> None:
        poll, self._next = self._next, None
        if poll is not None:
            poll.answer.cancel()

    def _begun(self) -> tuple[int, int]:
        """When a poll that is sent now begins, and how long it waits."""
        started_us = self._clock.monotonic_us()
        if started_us >= self._repeatable_until_us:
            raise _TooOld("the request is too old to be repeated safely; acquire anew")
        return started_us, self._poll_ms(started_us) if self._wish.wait_s else 0

    def _comes_back(self, started_us: int, poll_ms: int) -> bool:
        """Whether there is time for another poll after one that began then."""
        return self.wait_until_us - started_us > poll_ms * 1000

    def _refused(self, error: FencegateError, poll_ms: int) -> None:
        """Know what a poll that brought nothing may have left behind."""
        self._unheard = not isinstance(error, LockExpired) and (self._unheard or _is_unheard(error, poll_ms))
        self.doubtful = self._unheard

    def _is_worth_another(self, error: Exception) -> bool:
        if not worth_repeating(error) or isinstance(error, _TooOld) or self._next is not None:
            return False
        until_us = self.wait_until_us
        if self.doubtful:
            until_us = max(until_us, self._begun_us + self._timeout_s * 1e6)
        return self._clock.monotonic_us() < until_us

    async def _send(self, transport: Transport, poll_ms: int, started_us: int) -> G:
        body: Json = {**self._wish.body(self._owner_id), "requestId": self._request_id}
        if poll_ms:
            body |= {"wait": True, "waitMillis": poll_ms}
        reply = await within(self._ask.send(transport, body), poll_ms / 1000 + self._timeout_s)
        return self._ask.read(body, reply, started_us, self._since_us)

    def _poll_ms(self, now_us: int) -> int:
        """How long the next poll waits; 0 when the time is over, and one last look is all that is left."""
        longest_ms = min(-(-self._wish.ttl_ms // 3), _LONGEST_POLL_MS)
        left_us = self.wait_until_us - now_us
        return longest_ms if left_us >= longest_ms * 1000 else max(0, math.ceil(left_us / 1000))

    def _answered(self) -> int:
        """The lock service told what it knows of this request, so its retention can't have begun before now."""
        now_us = self._clock.monotonic_us()
        self._repeatable_until_us = now_us + _REPEATABLE_US
        return now_us


def _is_unheard(error: BaseException, poll_ms: int) -> bool:
    """Whether a poll that failed so may have been given the lock."""
    # A waiter who is sent away may have been granted the lock at that very moment.
    return isinstance(error, OutcomeUnknown) or (isinstance(error, ShuttingDown) and poll_ms > 0)
