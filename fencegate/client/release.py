"""Giving a lease back: once, in the foreground if that works, in the background if not."""

import asyncio

from fencegate.client.attempt import WORTH_REPEATING, pause_s, within
from fencegate.client.connection import Connection
from fencegate.client.grant import Grant
from fencegate.client.lease import LeaseCore, LeaseState
from fencegate.client.transport import Transport
from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, LockExpired, LockLost, NotOwner


async def release(transport: Transport, grant: Grant, clock: Clock, timeout_s: float, until_us: float) -> None:
    """Tell the lock service, and again while that is in doubt: a repeated release gets the first answer."""
    failures = 0
    while True:
        limit_s = min(timeout_s, max(0.1, (until_us - clock.monotonic_us()) / 1e6))
        try:
            await within(transport.release(grant.lock_key, grant.release_body()), limit_s)
            return
        except WORTH_REPEATING:
            failures += 1
            delay_s = pause_s(failures, clock)
            if clock.monotonic_us() + delay_s * 1e6 >= until_us:
                raise
        await asyncio.sleep(delay_s)


async def give_back(connection: Connection, lease: LeaseCore) -> None:
    """End a lease. Raises LockLost when it had been lost, and what went wrong when its release is in doubt.

    However it ends, the lease is used no more and its release is on its way: a cancellation here hands it to the
    background thread, and a lock service that can't be reached is asked until the lease would have run out anyway.
    """
    if lease.state is LeaseState.RELEASED:
        return
    connection.let_go(lease)
    released = lease._give_up()
    grant, clock, timeout_s = lease._grant, connection.clock, connection.timeout_s

    async def finish(transport: Transport) -> None:
        try:
            await release(transport, grant, clock, timeout_s, grant.deadline_us)
        except FencegateError:
            return  # it ran out by now, or never was ours

    if not released:
        if lease._is_ours():
            connection.owe(finish)
        lease._raise_lost()
    try:
        transport = await connection.transport()
        await release(transport, grant, clock, timeout_s, clock.monotonic_us() + timeout_s * 1e6)
    except (LockExpired, NotOwner) as error:
        raise LockLost(f"the lease of {lease.lock_key!r} (token {lease.token}) was over: {error.detail}") from error
    except BaseException:
        connection.owe(finish)
        raise
