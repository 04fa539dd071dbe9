"""The fence as a dependency of FastAPI, for an app that has `FenceMiddleware`.

app.add_middleware(FenceMiddleware)
AccountFence = Annotated[Fence, Depends(required_fence("acct:{account_id}"))]

@app.put("/accounts/{account_id}")
def put(account_id: int, body: Account, fence: AccountFence) -> None:
    with Session(engine) as session, fence.enforce(session):
        ...
"""

import functools
import inspect
import re
from collections.abc import Callable, Coroutine
from datetime import datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, get_type_hints

from fastapi import Depends, Header, Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate.core.names import Guard
from fencegate.middleware.fence import Fence
from fencegate.middleware.presented import presented, require_fence, try_fence

LockOf = str | Callable[..., Any]
"""A template over the path parameters, or a dependency that gives the lock key."""

_SEVERAL_SPELLINGS = (float, Decimal, datetime, time)
_HOLE = re.compile(r"\{([^{}]*)\}")
_TOKEN = "The fencing token of the lease under which this is written"  # noqa: S105  # a sentence
_LOCK = "The lock that the token is of; refused when it is not the one that guards this"


def required_fence(lock: LockOf) -> Callable[..., Coroutine[Any, Any, Fence]]:
    """A dependency: the fence of this lock with the request's token; 428, 400, 401 or 403 without a right one.

    >>> fence: Annotated[Fence, Depends(required_fence("acct:{account_id}"))]

    The names in a template are parameters of the endpoint, and are filled in as it gets them: `007` becomes `7` where
    it takes an `int`. For all else, and for kinds whose equal values are spelt in several ways, give a function, which
    is a dependency itself: `required_fence(lambda account_id: …)` with annotations, as in
    `def lock(account_id: int) -> str`.
    """

    async def fence(
        lock_key: Annotated[str, Depends(_lock_key(lock))],
        fencing_token: Annotated[str | None, Header(description=_TOKEN)] = None,
        fencing_lock: Annotated[str | None, Header(description=_LOCK)] = None,
    ) -> Fence:
        return require_fence(lock_key)

    return fence


def optional_fence(lock: LockOf) -> Callable[..., Coroutine[Any, Any, Fence | None]]:
    """The same for a read: None when the request has no token."""

    async def fence(
        lock_key: Annotated[str, Depends(_lock_key(lock))],
        fencing_token: Annotated[str | None, Header(description=_TOKEN)] = None,
        fencing_lock: Annotated[str | None, Header(description=_LOCK)] = None,
    ) -> Fence | None:
        return try_fence(lock_key)

    return fence


def _lock_key(lock: LockOf) -> Callable[..., Any]:
    if callable(lock):
        return lock
    names = tuple(dict.fromkeys(_HOLE.findall(lock)))
    guard = Guard(lock, lock, names)

    async def filled_in(request: Request) -> str:
        here = presented()  # without the middleware nothing of this would protect anything
        endpoint = getattr(request.scope.get("route"), "endpoint", None)
        key = tuple(_as_the_endpoint_gets_it(name, request, endpoint) for name in names)
        try:
            return guard.lock_key(key)
        except InvalidInput as error:
            here.answer_with(error)
            raise

    return filled_in


@functools.lru_cache(maxsize=1024)
def _parser(endpoint: Any, name: str) -> TypeAdapter[Any] | None:
    hints = {} if endpoint is None else get_type_hints(inspect.unwrap(endpoint), include_extras=True)
    return TypeAdapter(hints[name]) if name in hints else None


def _as_the_endpoint_gets_it(name: str, request: Request, endpoint: Any) -> str:
    """`007` is row 7 to an endpoint that takes an int; its fence must be that of row 7, too."""
    parser = _parser(endpoint, name)
    if parser is None or name not in request.path_params:
        raise UnsafeConfiguration(
            f"{{{name}}} is no path parameter that {getattr(endpoint, '__name__', 'the endpoint')} takes by this name; "
            "give required_fence a function that makes the lock key"
        )
    try:
        value = parser.validate_python(request.path_params[name])
    except ValidationError as error:
        raise RequestValidationError(
            [{**each, "loc": ("path", name)} for each in error.errors(include_url=False)]
        ) from None
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, _SEVERAL_SPELLINGS):
        raise UnsafeConfiguration(
            f"{{{name}}} is a {type(value).__name__}, of which equal ones are spelt in several ways, such as 1.0 and "
            "1.00, and each would be a lock of its own; give required_fence a function that makes the lock key"
        )
    return str(value)
