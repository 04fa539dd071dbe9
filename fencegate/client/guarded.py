"""Functions under a lock, whoever calls them: `@locks.guarded("inventory:{sku}")` makes callers take turns."""

import functools
import inspect
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from fencegate.client.blocking.hold import Hold as BlockingHold
from fencegate.client.blocking.hold import HoldTerms as BlockingHoldTerms
from fencegate.client.blocking.hold import hold_of as blocking_hold_of
from fencegate.client.claims import Claims
from fencegate.client.connection import Connection
from fencegate.client.hold import Hold, HoldTerms, hold_of
from fencegate.client.template import Call
from fencegate.client.terms import Terms, check_names, wish_for_one
from fencegate.core.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])


class Guarded:
    """The decorator: each call holds the lock that the template names for its arguments, and waits for it.

    It waits for as long as it takes unless `wait` says otherwise; then it raises LockHeld. It raises LockLost when the
    lock was lost while the function ran. A plain function blocks its thread while it waits.

    A function that has a parameter `lease` is given the lease there, and its callers don't pass it (with
    `lease: Lease | None = None`, type checkers agree). It is a `fencegate.Lease` in a coroutine function, and a
    `fencegate.sync.Lease` in a plain one, whichever client decorates.
    """

    def __init__(self, connection: Connection, template: str, terms: Terms) -> None:
        self._connection = connection
        self._template = template
        self._terms = call_terms({"wait": math.inf, **terms})

    def __call__(self, function: F) -> F:
        call = Call(self._template, function)

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            bound = call.bind(args, kwargs)
            async with async_hold(self._connection, call.lock_key(bound), self._terms) as lease:
                return await call.run(bound, lease)

        def run(*args: Any, **kwargs: Any) -> Any:
            bound = call.bind(args, kwargs)
            with blocking_hold(self._connection, call.lock_key(bound), self._terms) as lease:
                return finished(call.run(bound, lease), function)

        return cast(F, dressed(function, call, run_async, run))


def call_terms(terms: Terms) -> Terms:
    """The terms of a decorator, judged when it is made and not at the first call."""
    check_names(terms, Terms)
    if terms.get("request_id") is not None:
        raise InvalidInput("request_id", "is for one request, and each call of the function makes another")
    wish_for_one(terms)
    Claims(terms.get("claim"))
    return terms


def async_hold(connection: Connection, lock_key: str, terms: Terms) -> Hold:
    return hold_of(connection, lock_key, cast(HoldTerms, terms))


def blocking_hold(connection: Connection, lock_key: str, terms: Terms) -> BlockingHold:
    return blocking_hold_of(connection, lock_key, cast(BlockingHoldTerms, terms))


def dressed(
    function: Callable[..., Any],
    call: Call,
    run_async: Callable[..., Coroutine[Any, Any, Any]],
    run: Callable[..., Any],
) -> Callable[..., Any]:
    """The one of the two that suits the function, with the function's name and the signature that callers see."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function!r} is a generator: the lock would be released before its body runs")
    chosen = run_async if inspect.iscoroutinefunction(function) else run
    wrapper = functools.wraps(function)(chosen)
    wrapper.__signature__ = call.signature  # type: ignore[attr-defined]  # what inspect.signature shows
    shown = {"return", *call.signature.parameters}
    wrapper.__annotations__ = {name: kind for name, kind in wrapper.__annotations__.items() if name in shown}
    return wrapper


def finished(result: Any, function: Callable[..., Any]) -> Any:
    """The result of a plain function; TypeError when it is work that would only begin after the release."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"{function!r} gave a coroutine, which would run without the lock; make it an async def")
    return result
