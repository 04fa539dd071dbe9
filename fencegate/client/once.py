"""Functions that one caller runs and all others skip: `@locks.once("cron:daily-report")`."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from fencegate.client.attempt import repeated, worth_repeating
from fencegate.client.background import background
from fencegate.client.blocking.hold import TryHold as BlockingTryHold
from fencegate.client.connection import Connection
from fencegate.client.duration import MAX_TTL_S, MIN_TTL_S, ttl_millis
from fencegate.client.guarded import async_hold, blocking_hold, call_terms, dressed, finished
from fencegate.client.hold import TryHold
from fencegate.client.lease import LeaseCore
from fencegate.client.patience import within
from fencegate.client.renewal import OVER
from fencegate.client.template import Call
from fencegate.client.terms import Terms
from fencegate.client.transport import Json, Transport
from fencegate.core.errors import FencegateError, InvalidInput, LockLost

log = logging.getLogger("fencegate.client")

P = ParamSpec("P")
R = TypeVar("R")


class Once:
    """The decorator: a call runs unless somebody else's does; then it does nothing and returns None.

    The lock is held for the call. Hosts whose clocks differ by more than the call takes would run it one after the
    other: with `keep`, a call that succeeded leaves the lock taken for that many seconds more (1 to 3600; at least
    what is left of the TTL), and calls within that time skip as well. After a call that raised, the lock is free at
    once, so that another may try; after one whose process died, when the TTL is over.

    A function that has a parameter `lease` is given the lease there, as by `guarded`. A call raises LockLost when the
    lock was lost while the function ran: then it may have run twice.
    """

    def __init__(self, connection: Connection, template: str, keep: float | None, terms: Terms) -> None:
        if "wait" in terms:
            raise InvalidInput("wait", "is for guarded: whoever waits would run it after the other")
        if keep is not None and terms.get("session") is not None:
            raise InvalidInput("keep", "can't be had under a session, which has the TTL")
        self._connection = connection
        self._template = template
        self._terms = call_terms(terms)
        self._keep_ms = None if keep is None else _keep_millis(keep)

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R | None]]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]: ...

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        call, connection, terms = Call(self._template, function), self._connection, self._terms

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            bound = call.bind(args, kwargs)
            async with TryHold(async_hold(connection, call.lock_key(bound), terms)) as lease:
                if lease is None:
                    return None
                result = await call.run(bound, lease)
                if self._keep_ms is not None:
                    await leave(connection, lease, self._keep_ms)
                return result

        def run(*args: Any, **kwargs: Any) -> Any:
            bound = call.bind(args, kwargs)
            with BlockingTryHold(blocking_hold(connection, call.lock_key(bound), terms)) as lease:
                if lease is None:
                    return None
                result = finished(call.run(bound, lease), function)
                if self._keep_ms is not None:
                    background().run(leave(connection, lease, self._keep_ms))
                return result

        return dressed(function, call, run_async, run)


async def leave(connection: Connection, lease: LeaseCore, keep_ms: int) -> None:
    """End a lease without giving the lock back: it stays taken for that long, and then runs out by itself."""
    connection.let_go(lease)
    if not lease._give_up():
        lease._raise_lost()
    grant, clock, deadline_us = lease._grant, connection.clock, lease._deadline_us()
    body: Json = {**grant.renewal_body(), "ttlMillis": keep_ms}

    async def lengthen(transport: Transport) -> None:
        await repeated(
            lambda: within(transport.renew(grant.lock_key, body), connection.timeout_s),
            lambda error: worth_repeating(error) and clock.monotonic_us() < deadline_us,
        )

    try:
        await lengthen(await connection.transport())
    except OVER as error:
        raise LockLost(f"{lease._describe()} was over: {error.detail}") from error
    except FencegateError as error:
        # The work was done under the lock. That its neighbours may not hear of it must not look as if it had not.
        log.warning("the lock %r is kept for what was left of its TTL only: %s", lease.lock_key, error.detail)
    except BaseException:
        connection.owe(lengthen)
        raise


def _keep_millis(keep_s: float) -> int:
    try:
        return ttl_millis(keep_s)
    except InvalidInput:
        raise InvalidInput("keep", f"must be {MIN_TTL_S:g} to {MAX_TTL_S:g} seconds") from None
