"""Keeping alive what is held: a renewal at each third of the TTL, quick retries while it fails, the deadline at last.

A renewal may be sent again, so a lost answer is not a lost lock: only a definite refusal or the deadline ends it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from fencegate.client.attempt import repeated
from fencegate.client.life import Life
from fencegate.client.patience import within
from fencegate.client.transport import Transport
from fencegate.clock import Clock
from fencegate.core.errors import (
    FencegateError,
    LockExpired,
    LockLost,
    MaxHoldReached,
    NotOwner,
    SessionExpired,
    SessionNotFound,
)

log = logging.getLogger("fencegate.client")

_ROUNDING_S = 0.001
"""A timer may be early by the rounding of its clock."""

OVER: Final[tuple[type[FencegateError], ...]] = (LockExpired, NotOwner, LockLost, SessionExpired, SessionNotFound)
"""What says for certain that nothing is held any more."""

_DEFINITE: Final[tuple[type[FencegateError], ...]] = (*OVER, MaxHoldReached)


async def keep(life: Life, transport: Callable[[], Awaitable[Transport]], clock: Clock, timeout_s: float) -> None:
    """Renew until it is lost. Whoever releases it cancels this."""
    third_s = life.ttl / 3
    while life.held:
        delay_s = third_s - (clock.monotonic_us() - life._started_us) / 1e6
        if life._is_ending and life.revoked is None:
            delay_s = life.remaining  # there is nothing more to be had
        await asyncio.sleep(max(0.0, min(delay_s, life.remaining)))
        if not life.held:
            return
        with suppress(TimeoutError):  # at the deadline it is over, whatever is under way
            async with asyncio.timeout(life.remaining):
                await _renew(life, transport, third_s, timeout_s)


def look_at_deadline(life: Life) -> None:
    """Notice in time what ends before that which it hangs on: nobody else would look at the clock for it."""
    if life.held:
        asyncio.get_running_loop().call_later(life.remaining + _ROUNDING_S, look_at_deadline, life)


async def _renew(life: Life, transport: Callable[[], Awaitable[Transport]], third_s: float, timeout_s: float) -> None:
    """One renewal, sent again until it is answered."""

    async def send() -> None:
        await life._send_renewal(await transport())

    async def attempt() -> None:
        try:
            await within(send(), min(third_s, timeout_s))
        except _DEFINITE:
            raise
        except Exception as error:
            # Whatever it was, it lives until its deadline: a keeper that died here would lose it in silence.
            life._suspend(str(error))
            level = logging.WARNING if isinstance(error, FencegateError) else logging.ERROR
            log.log(level, "%s: renewal failed, %.1f s left: %s", life._describe(), life.remaining, error)
            raise

    try:
        await repeated(attempt, lambda error: not isinstance(error, _DEFINITE) and life.held, longest_s=third_s / 2)
    except MaxHoldReached as error:
        life._end_at_deadline(error.detail)
        log.warning("%s: no more renewals, %.1f s left: %s", life._describe(), life.remaining, error.detail)
    except OVER as error:
        life._lose(error.detail)
    except Exception:  # was logged above; here it is only that retries are over (or were turned off by the application)
        await asyncio.sleep(third_s / 2)
