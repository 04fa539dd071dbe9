"""Keeping a lease alive: a renewal at each third of the TTL, quick retries while it fails, the end at the deadline."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fencegate.client.attempt import pause_s, within
from fencegate.client.grant import renewed
from fencegate.client.lease import LeaseCore
from fencegate.client.transport import Json, Transport
from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, LockExpired, LockLost, NotOwner

log = logging.getLogger("fencegate.client")


async def keep(lease: LeaseCore, transport: Callable[[], Awaitable[Transport]], clock: Clock, timeout_s: float) -> None:
    """Renew the lease until it is lost. Whoever releases it cancels this."""
    third_s = lease.ttl / 3
    failures = 0
    while lease.held:
        if failures:
            delay_s = pause_s(failures, clock, longest_s=third_s / 2)
        else:
            delay_s = third_s - (clock.monotonic_us() - lease._grant.started_us) / 1e6
        await asyncio.sleep(max(0.0, min(delay_s, lease.remaining)))
        limit_s = min(third_s, timeout_s, lease.remaining)
        if limit_s <= 0:
            continue
        grant, started_us = lease._grant, clock.monotonic_us()
        try:
            reply = await within(_renew(transport, grant.lock_key, grant.renewal_body()), limit_s)
            lease._extend(renewed(grant, reply, started_us))
            failures = 0
        except (LockExpired, NotOwner, LockLost) as error:
            lease._lose(error.detail)
        except Exception as error:
            # Whatever it was, the lease lives until its deadline: a keeper that died here would lose it in silence.
            failures += 1
            lease._suspend()
            level = logging.WARNING if isinstance(error, FencegateError) else logging.ERROR
            log.log(level, "lease of %r: renewal failed, %.1f s left: %s", lease.lock_key, lease.remaining, error)


async def _renew(transport: Callable[[], Awaitable[Transport]], lock_key: str, body: Json) -> Json:
    return await (await transport()).renew(lock_key, body)
