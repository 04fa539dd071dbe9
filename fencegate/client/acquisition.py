"""Getting a lock: one acquire from the first request to a definite answer, or to its undoing.

A wait is made of polls of at most a third of the TTL, all with one requestId, so that the place in the queue is kept
and a grant whose answer was lost is found again. The lease counts from the start of the poll that brought it.
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fencegate.client.attempt import WORTH_REPEATING, pause_s, within
from fencegate.client.grant import Grant, granted
from fencegate.client.release import release
from fencegate.client.transport import Json, Transport
from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, LockExpired, LockHeld, OutcomeUnknown, ShuttingDown

_LONGEST_POLL_MS = 60_000

# The lock service remembers a settled requestId for 10 minutes. A later repeat would be a new request, and take a lock
# that nobody waits for any more.
_REPEATABLE_US = 9 * 60 * 1_000_000

# A server may notice a cut connection only after our first question: it is asked again after this long.
_SECOND_LOOK_S = 0.3


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller asked for."""

    lock_key: str
    owner_id: str
    ttl_ms: int
    wait_s: float = 0.0
    reentrant: bool = False
    metadata: Mapping[str, Any] | None = None
    request_id: str | None = None


class Acquisition:
    """One acquire. `run` brings the grant or raises; after it raised, `undo` leaves nothing behind."""

    def __init__(self, wish: Wish, clock: Clock, timeout_s: float) -> None:
        self._wish = wish
        self._clock = clock
        self._timeout_s = timeout_s
        self._request_id = wish.request_id or clock.random_id()
        self._repeatable_until_us = clock.monotonic_us() + _REPEATABLE_US
        self.doubtful = False
        """Whether the lock service may hold something for us that we don't know of."""

    async def run(self, transport: Transport) -> Grant:
        begun_us = self._clock.monotonic_us()
        wait_until_us = begun_us + self._wish.wait_s * 1e6
        resolve_until_us = begun_us + max(self._wish.wait_s, self._timeout_s) * 1e6
        failures = 0
        while True:
            started_us = self._check_age()
            poll_ms = self._poll_ms((wait_until_us - started_us) / 1000)
            in_doubt_before, self.doubtful = self.doubtful, True
            try:
                return await self._ask(transport, poll_ms, started_us)
            except LockHeld:
                self.doubtful = in_doubt_before
                now_us = self._answered()
                if now_us >= wait_until_us:
                    raise
                failures = 0 if now_us - started_us >= poll_ms * 500 else failures + 1
            except LockExpired:  # an earlier attempt got the lock, and its lease ended before we heard of it
                self.doubtful = False
                if self._wish.request_id is not None or self._answered() >= wait_until_us:
                    raise
                self._request_id = self._clock.random_id()
                failures += 1
            except WORTH_REPEATING as error:
                # A waiter who is sent away may have been granted the lock at that very moment.
                sent_away = isinstance(error, ShuttingDown) and poll_ms > 0
                self.doubtful = in_doubt_before or sent_away or isinstance(error, OutcomeUnknown)
                if self._clock.monotonic_us() >= (resolve_until_us if self.doubtful else wait_until_us):
                    raise
                failures += 1
            except FencegateError:
                self.doubtful = in_doubt_before
                raise
            if failures:
                await asyncio.sleep(pause_s(failures, self._clock))

    async def undo(self, transport: Transport) -> None:
        """Ask once more without waiting, and release what comes: finished or undone, but nothing left until the TTL."""
        give_up_us = min(self._repeatable_until_us, self._clock.monotonic_us() + self._wish.ttl_ms * 1000)
        looks, failures = 0, 0
        while self._clock.monotonic_us() < give_up_us:
            try:
                grant = await self._ask(transport, 0, self._clock.monotonic_us())
                await release(transport, grant, self._clock, self._timeout_s, give_up_us)
            except WORTH_REPEATING:
                failures += 1
                await asyncio.sleep(pause_s(failures, self._clock))
            except LockHeld:
                looks += 1
                if looks == 2:
                    return
                await asyncio.sleep(_SECOND_LOOK_S)
            except FencegateError:
                return
            else:
                return

    async def _ask(self, transport: Transport, poll_ms: int, started_us: int) -> Grant:
        wish = self._wish
        body = self._body(poll_ms)
        reply = await within(transport.acquire(wish.lock_key, body), poll_ms / 1000 + self._timeout_s)
        return granted(wish.lock_key, body, reply, started_us)

    def _body(self, poll_ms: int) -> Json:
        wish = self._wish
        body: Json = {"ownerId": wish.owner_id, "ttlMillis": wish.ttl_ms, "requestId": self._request_id}
        if poll_ms:
            body |= {"wait": True, "waitMillis": poll_ms}
        if wish.reentrant:
            body["reentrant"] = True
        if wish.metadata is not None:
            body["metadata"] = dict(wish.metadata)
        return body

    def _poll_ms(self, left_ms: float) -> int:
        """How long the next poll waits; 0 when the time is over, and one last look is all that is left."""
        return max(0, math.ceil(min(left_ms, self._wish.ttl_ms / 3, _LONGEST_POLL_MS)))

    def _answered(self) -> int:
        """The lock service told what it knows of this request, so its retention can't have begun before now."""
        now_us = self._clock.monotonic_us()
        self._repeatable_until_us = now_us + _REPEATABLE_US
        return now_us

    def _check_age(self) -> int:
        now_us = self._clock.monotonic_us()
        if now_us >= self._repeatable_until_us:
            raise OutcomeUnknown("the request is too old to be repeated safely; acquire anew")
        return now_us
