"""Getting a lock, or several: one acquire from the first request to a definite answer, or to its undoing.

A wait is made of polls of at most a third of the TTL, all with one requestId, so that the place in the queue is kept
and a grant whose answer was lost is found again. The lease counts from the start of the poll that brought it.
"""

import asyncio
import math
from collections.abc import Awaitable
from typing import Generic, TypeVar

from fencegate.client.asks import Ask, OneLock
from fencegate.client.attempt import WORTH_REPEATING, pause_s, repeated, repeated_after, worth_repeating
from fencegate.client.grant import Grant, granted_here
from fencegate.client.patience import within
from fencegate.client.release import release
from fencegate.client.transport import Json, Straight, Transport
from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, LockExpired, LockHeld, OutcomeUnknown, ShuttingDown
from fencegate.core.model import Hold

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
        self._wait_until_us = now_us + self._wish.wait_s * 1e6
        self._repeatable_until_us = now_us + _REPEATABLE_US
        self.doubtful = False
        """Whether the lock service may hold something for us that we don't know of."""
        self._since_us = now_us
        """The start of the first poll that may have brought it."""
        self._polled_us = now_us
        """The start of the last one."""

    async def run(self, transport: Transport) -> G:
        return await self._run(transport, None)

    async def _run(self, transport: Transport, failed: Exception | None) -> G:
        """To the end; when the first poll was made already, from what it `failed` with."""
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
                if now_us >= self._wait_until_us:
                    raise
                was_hasty = now_us - self._polled_us < self._poll_ms(self._polled_us) * 500
                hasty = hasty + 1 if was_hasty else 0
            except LockExpired:  # an earlier attempt got the lock, and its lease ended before we heard of it
                if self._wish.request_id is not None or self._answered() >= self._wait_until_us:
                    raise
                self._request_id = self._clock.random_id()
                hasty += 1
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

    async def _poll(self, transport: Transport) -> G:
        """One request, and what its answer says of what may be left behind."""
        self._polled_us = started_us = self._clock.monotonic_us()
        if started_us >= self._repeatable_until_us:
            raise _TooOld("the request is too old to be repeated safely; acquire anew")
        poll_ms = self._poll_ms(started_us) if self._wish.wait_s else 0
        in_doubt_before, self.doubtful = self.doubtful, True
        if not in_doubt_before:
            self._since_us = started_us
        try:
            return await self._send(transport, poll_ms, started_us)
        except FencegateError as error:
            self._refused(error, poll_ms, in_doubt_before)
            raise

    def _refused(self, error: FencegateError, poll_ms: int, in_doubt_before: bool) -> None:
        """Know what a poll that brought nothing may have left behind."""
        if isinstance(error, LockExpired):
            self.doubtful = False
        elif isinstance(error, WORTH_REPEATING):
            # A waiter who is sent away may have been granted the lock at that very moment.
            sent_away = isinstance(error, ShuttingDown) and poll_ms > 0
            self.doubtful = in_doubt_before or sent_away or isinstance(error, OutcomeUnknown)
        else:
            self.doubtful = in_doubt_before

    def _is_worth_another(self, error: Exception) -> bool:
        if not worth_repeating(error) or isinstance(error, _TooOld):
            return False
        until_us = self._wait_until_us
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
        left_us = self._wait_until_us - now_us
        return longest_ms if left_us >= longest_ms * 1000 else max(0, math.ceil(left_us / 1000))

    def _answered(self) -> int:
        """The lock service told what it knows of this request, so its retention can't have begun before now."""
        now_us = self._clock.monotonic_us()
        self._repeatable_until_us = now_us + _REPEATABLE_US
        return now_us


class PlainAcquisition(Acquisition[Grant]):
    """An acquire of one lock on plain terms: where the engine is in this process, it is asked without a body."""

    _ask: OneLock

    async def run(self, transport: Transport) -> Grant:
        lock_key = self._ask.lock_key
        straight = transport.straight(lock_key)
        if straight is None or not self._fresh:
            return await self._run(transport, None)
        # Not from when it was made: to open the store may have taken longer than a lease lasts.
        started_us = self._polled_us = self._clock.monotonic_us()
        poll_ms = self._poll_ms(started_us) if self._wish.wait_s else 0
        self.doubtful = True
        try:
            hold = await self._ask_straight(straight, poll_ms)
        except FencegateError as error:
            self._refused(error, poll_ms, False)
            failed = error
        else:  # nobody knew of this request before, so the hold can't have begun before it left
            return granted_here(lock_key, hold, (hold.expires_us - hold.granted_us) // 1000, started_us)
        return await self._run(transport, failed)

    async def _send(self, transport: Transport, poll_ms: int, started_us: int) -> Grant:
        lock_key = self._ask.lock_key
        straight = transport.straight(lock_key)
        if straight is None:
            return await super()._send(transport, poll_ms, started_us)
        hold = await self._ask_straight(straight, poll_ms)
        return granted_here(lock_key, hold, straight.remaining_ms(hold), started_us)

    def _ask_straight(self, straight: Straight, poll_ms: int) -> Awaitable[Hold]:
        fresh, self._fresh = self._fresh, False
        wish = self._wish
        owner_id = wish.owner_id or self._owner_id
        return straight.acquire(
            self._ask.lock_key, owner_id, wish.ttl_ms, self._request_id, poll_ms, fresh, self._timeout_s
        )
