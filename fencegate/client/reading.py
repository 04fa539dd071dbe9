"""The calls about a lock that hold nothing: its status, the list of locks, and taking one away by force."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fencegate.client.attempt import repeated
from fencegate.client.connection import Connection
from fencegate.client.duration import millis
from fencegate.client.patience import within
from fencegate.client.transport import Json
from fencegate.core.errors import LockFree, OutcomeUnknown, RateLimited, ShuttingDown
from fencegate.core.names import check_lock_key

T = TypeVar("T")

_PAGE = 1000
_MAX_GRACE_S = 3600.0


async def status(connection: Connection, lock_key: str) -> Json:
    check_lock_key(lock_key)
    transport = await connection.transport()
    try:
        return await read(connection, lambda: transport.status(lock_key))
    except LockFree as free:
        return {"lockKey": lock_key, "locked": False, **free.members}


async def list_locks(connection: Connection, prefix: str, namespace: str | None) -> list[Json]:
    transport = await connection.transport()
    found: list[Json] = []
    cursor = ""
    while True:

        async def page(cursor: str = cursor) -> Json:
            return await transport.list_locks(prefix=prefix, namespace=namespace, limit=_PAGE, cursor=cursor)

        answer = await read(connection, page)
        found += answer["locks"]
        cursor = answer.get("nextCursor") or ""
        if not cursor:
            return found


async def force_release(connection: Connection, lock_key: str, reason: str, grace: float) -> Json:
    """Not sent again when its answer is lost: by then it may be another's lock."""
    check_lock_key(lock_key)
    body: Json = {"reason": reason}
    if grace_ms := millis("grace", grace, 0.0, _MAX_GRACE_S):
        body["graceMillis"] = grace_ms
    transport = await connection.transport()
    try:
        return await within(transport.force_release(lock_key, body), connection.timeout_s)
    except OutcomeUnknown:
        raise OutcomeUnknown(
            f"the lock service did not say whether {lock_key!r} was taken away: look who holds it before you force it"
            " again, for by then it may be another's"
        ) from None


async def read(connection: Connection, call: Callable[[], Awaitable[T]]) -> T:
    """Read, and again while there is time. Where no server is at all, that is said at once."""
    clock = connection.clock
    until_us = clock.monotonic_us() + connection.timeout_s * 1e6

    def again(error: Exception) -> bool:
        worth = isinstance(error, OutcomeUnknown | ShuttingDown | RateLimited)
        return worth and clock.monotonic_us() < until_us

    return await repeated(lambda: within(call(), connection.timeout_s), again)
