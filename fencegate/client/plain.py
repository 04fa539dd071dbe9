"""Getting one lock on plain terms: where the engine is in this process, it is asked without a body."""

import asyncio
from collections.abc import Awaitable, Callable

from fencegate.client.acquisition import Acquisition
from fencegate.client.asks import OneLock
from fencegate.client.grant import Grant, granted_here
from fencegate.client.transport import Straight, Transport
from fencegate.core.errors import FencegateError
from fencegate.core.model import Hold


class PlainAcquisition(Acquisition[Grant]):
    """See the head of this file. Most are granted at once: what waiting takes is made when one has to wait."""

    _ask: OneLock
    _transport: Transport
    _timer: asyncio.TimerHandle | None = None
    """Of the poll that follows the first."""

    async def run(self, transport: Transport, failed: Exception | None = None) -> Grant:
        lock_key = self._ask.lock_key
        straight = transport.straight(lock_key)
        if straight is None or not self._fresh:
            return await super().run(transport, failed)
        self._transport = transport
        # Not from when it was made: to open the store may have taken longer than a lease lasts.
        started_us = self._polled_us = self._clock.monotonic_us()
        poll_ms = self._poll_ms(started_us) if self._wish.wait_s else 0
        self.doubtful = True
        try:
            hold = await self._ask_straight(straight, poll_ms, self._stands)
        except FencegateError as error:
            self._refused(error, poll_ms)
            failed = error
        except BaseException:
            self._drop_next()
            raise
        else:  # nobody knew of this request before, so the hold can't have begun before it left
            if self._next is not None:
                self._drop_next()
            return granted_here(lock_key, hold, (hold.expires_us - hold.granted_us) // 1000, started_us)
        finally:
            if self._timer is not None:
                self._timer.cancel()
        return await super().run(transport, failed)

    def _stands(self) -> None:
        """The first poll has to wait. It hears what the next one hears, for both are of one engine."""
        if self._comes_back(self._polled_us, self._poll_ms(self._polled_us)):
            self._timer = self._begin_in_time(self._transport)

    async def _send(self, transport: Transport, poll_ms: int, started_us: int) -> Grant:
        lock_key = self._ask.lock_key
        straight = transport.straight(lock_key)
        if straight is None:
            return await super()._send(transport, poll_ms, started_us)
        hold = await self._ask_straight(straight, poll_ms)
        return granted_here(lock_key, hold, straight.remaining_ms(hold), started_us)

    def _ask_straight(
        self, straight: Straight, poll_ms: int, standing: Callable[[], None] | None = None
    ) -> Awaitable[Hold]:
        fresh, self._fresh = self._fresh, False
        wish = self._wish
        owner_id = wish.owner_id or self._owner_id
        return straight.acquire(
            self._ask.lock_key, owner_id, wish.ttl_ms, self._request_id, poll_ms, fresh, self._timeout_s, standing
        )
