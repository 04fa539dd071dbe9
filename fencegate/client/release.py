"""Giving back what is held: once, in the foreground if that works, in the background if not."""

from collections.abc import Awaitable, Callable
from functools import partial

from fencegate.client.attempt import repeated, repeated_after, worth_repeating
from fencegate.client.connection import Connection
from fencegate.client.life import Life
from fencegate.client.renewal import OVER
from fencegate.client.transport import Transport
from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, LockLost


async def release(
    send: Callable[[float], Awaitable[object]],
    clock: Clock,
    timeout_s: float,
    until_us: float,
    failed: Exception | None = None,
) -> None:
    """Tell the lock service, and again while that is in doubt: a repeated release gets the first answer. `send` is
    given the seconds that it may take; when it was sent before, and `failed`, it goes on from there."""

    def attempt() -> Awaitable[object]:
        return send(min(timeout_s, max(0.1, (until_us - clock.monotonic_us()) / 1e6)))

    def again(error: Exception) -> bool:
        return worth_repeating(error) and clock.monotonic_us() < until_us

    await (repeated(attempt, again) if failed is None else repeated_after(failed, attempt, again))


async def give_back(connection: Connection, life: Life) -> None:
    """End it. Raises LockLost when it had been lost, and what went wrong when its release is in doubt.

    However it ends, it is used no more and its release is on its way: a cancellation here hands it to the background
    thread, and a lock service that can't be reached is asked until the lease would have run out anyway.
    """
    if life._is_released():
        return
    connection.let_go(life)
    if not life._give_up():
        if life._is_ours():
            connection.owe(partial(_finish, life, connection))
        life._raise_lost()
    try:
        transport = connection.ready() or await connection.transport()
        started_us = connection.clock.monotonic_us()
        try:
            await life._release_within(transport, connection.timeout_s)
            return
        except Exception as error:
            failed = error
        until_us = started_us + connection.timeout_s * 1e6
        send = partial(life._release_within, transport)
        await release(send, connection.clock, connection.timeout_s, until_us, failed)
    except OVER as error:
        raise LockLost(f"{life._describe()} was over: {error.detail}") from error
    except BaseException:
        connection.owe(partial(_finish, life, connection))
        raise


async def _finish(life: Life, connection: Connection, transport: Transport) -> None:
    """In the background, until the lease would have run out anyway."""
    try:
        send = partial(life._release_within, transport)
        await release(send, connection.clock, connection.timeout_s, life._deadline_us())
    except FencegateError:
        return  # it ran out by now, or never was ours
