"""Giving back what is held: once, in the foreground if that works, in the background if not."""

from collections.abc import Awaitable, Callable

from fencegate.client.attempt import repeated, within, worth_repeating
from fencegate.client.connection import Connection
from fencegate.client.life import LeaseState, Life
from fencegate.client.renewal import OVER
from fencegate.client.transport import Transport
from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, LockLost


async def release(send: Callable[[], Awaitable[object]], clock: Clock, timeout_s: float, until_us: float) -> None:
    """Tell the lock service, and again while that is in doubt: a repeated release gets the first answer."""

    async def attempt() -> None:
        limit_s = min(timeout_s, max(0.1, (until_us - clock.monotonic_us()) / 1e6))
        await within(send(), limit_s)

    await repeated(attempt, lambda error: worth_repeating(error) and clock.monotonic_us() < until_us)


async def give_back(connection: Connection, life: Life) -> None:
    """End it. Raises LockLost when it had been lost, and what went wrong when its release is in doubt.

    However it ends, it is used no more and its release is on its way: a cancellation here hands it to the background
    thread, and a lock service that can't be reached is asked until the lease would have run out anyway.
    """
    if life.state is LeaseState.RELEASED:
        return
    connection.let_go(life)
    released = life._give_up()
    deadline_us, clock, timeout_s = life._deadline_us, connection.clock, connection.timeout_s

    async def finish(transport: Transport) -> None:
        try:
            await release(lambda: life._send_release(transport), clock, timeout_s, deadline_us)
        except FencegateError:
            return  # it ran out by now, or never was ours

    if not released:
        if life._is_ours():
            connection.owe(finish)
        life._raise_lost()
    try:
        transport = await connection.transport()
        until_us = clock.monotonic_us() + timeout_s * 1e6
        await release(lambda: life._send_release(transport), clock, timeout_s, until_us)
    except OVER as error:
        raise LockLost(f"{life._describe()} was over: {error.detail}") from error
    except BaseException:
        connection.owe(finish)
        raise
