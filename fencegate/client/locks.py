"""The async client: `connect()` and the calls on locks."""

import builtins
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from fencegate.client.acquisition import Acquisition, Wish
from fencegate.client.attachment import Attachment, import_grant
from fencegate.client.attempt import within
from fencegate.client.connection import Connection
from fencegate.client.duration import timeout_seconds, ttl_millis, wait_seconds
from fencegate.client.hold import Hold, Lease, TryHold
from fencegate.client.holding import Request
from fencegate.client.release import give_back
from fencegate.client.transport import Json, check_url
from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import FencegateError, LockFree
from fencegate.core.names import check_lock_key, check_text
from fencegate.env import setting

DEFAULT_URL = "http://127.0.0.1:7420"
DEFAULT_TTL_S = 30.0
DEFAULT_TIMEOUT_S = 10.0
_PAGE = 1000


def connection_of(url: str | None, owner_id: str | None, timeout: float, clock: Clock = SYSTEM) -> Connection:
    """What both faces' `connect` make. No I/O, no thread and no event loop is touched here."""
    url = check_url(url or setting("url") or DEFAULT_URL)
    if owner_id is not None:
        check_text("owner_id", owner_id)
    return Connection(url, owner_id, timeout_seconds(timeout), clock)


def connect(url: str | None = None, *, owner_id: str | None = None, timeout: float = DEFAULT_TIMEOUT_S) -> "Locks":
    """A client of the lock service at `url`, or of an embedded one (`sqlite:///…`, `memory://`).

    Fine at import time: nothing happens before the first use. `url` comes from `FENCEGATE_URL` by default; `timeout`
    is how many seconds a call may take, waiting for a lock apart.

    >>> locks = connect("memory://")
    """
    return Locks(connection_of(url, owner_id, timeout))


class Locks:
    """A client of a lock service. May be used from several event loops, and after a fork."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def owner_id(self) -> str:
        return self._connection.owner_id

    def hold(
        self,
        lock_key: str,
        *,
        ttl: float = DEFAULT_TTL_S,
        wait: float | None = None,
        reentrant: bool = False,
        metadata: Mapping[str, Any] | None = None,
        cancel_on_lost: bool = False,
        on_lost: Callable[[Lease], None] | None = None,
        request_id: str | None = None,
    ) -> Hold:
        """A handle on the lock: `async with locks.hold("rebuild:eu", ttl=30, wait=10) as lease: …`.

        `ttl` and `wait` are seconds; without `wait` a held lock raises LockHeld at once. `on_lost` is called in this
        event loop; `cancel_on_lost` cancels the body of the `async with`, which then raises LockLost.
        """
        request = acquisition_of(self._connection, lock_key, ttl, wait, reentrant, metadata, request_id)
        return Hold(self._connection, request, cancel_on_lost=cancel_on_lost, on_lost=on_lost)

    def try_hold(
        self,
        lock_key: str,
        *,
        ttl: float = DEFAULT_TTL_S,
        wait: float | None = None,
        reentrant: bool = False,
        metadata: Mapping[str, Any] | None = None,
        cancel_on_lost: bool = False,
        on_lost: Callable[[Lease], None] | None = None,
        request_id: str | None = None,
    ) -> TryHold:
        """Like `hold`, but gives None where that would raise LockHeld."""
        request = acquisition_of(self._connection, lock_key, ttl, wait, reentrant, metadata, request_id)
        return TryHold(Hold(self._connection, request, cancel_on_lost=cancel_on_lost, on_lost=on_lost))

    def attach(
        self, exported: str, *, cancel_on_lost: bool = False, on_lost: Callable[[Lease], None] | None = None
    ) -> Hold:
        """A handle on a lease that another process exported; LockLost when it is over by now."""
        request = attachment_of(self._connection, exported)
        return Hold(self._connection, request, cancel_on_lost=cancel_on_lost, on_lost=on_lost)

    async def status(self, lock_key: str) -> Json:
        """Who holds the lock, as the REST call tells it; `locked` is false when nobody does."""
        check_lock_key(lock_key)
        transport = await self._connection.transport()
        try:
            return await within(transport.status(lock_key), self._connection.timeout_s)
        except LockFree as free:
            return {"lockKey": lock_key, "locked": False, **free.members}

    async def list(self, prefix: str = "", *, namespace: str | None = None) -> builtins.list[Json]:
        """The locks that are held, as `status` tells of each, in the order of their keys."""
        transport = await self._connection.transport()
        found: builtins.list[Json] = []
        cursor = ""
        while True:
            call = transport.list_locks(prefix=prefix, namespace=namespace, limit=_PAGE, cursor=cursor)
            page = await within(call, self._connection.timeout_s)
            found += page["locks"]
            cursor = page.get("nextCursor") or ""
            if not cursor:
                return found

    async def force_release(self, lock_key: str, reason: str) -> Json:
        """Take the lock from whoever holds it. Its fencing token goes on protecting the resource from them."""
        check_lock_key(lock_key)
        transport = await self._connection.transport()
        return await within(transport.force_release(lock_key, {"reason": reason}), self._connection.timeout_s)

    async def aclose(self) -> None:
        """Release what this client still holds, and close its connections. A later use opens others."""
        await release_all(self._connection)
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def acquisition_of(
    connection: Connection,
    lock_key: str,
    ttl: float,
    wait: float | None,
    reentrant: bool,
    metadata: Mapping[str, Any] | None,
    request_id: str | None,
) -> Callable[[], Request]:
    """Judges the arguments of a `hold` now, and gives what makes its acquire later."""
    check_lock_key(lock_key)
    ttl_ms, wait_s = ttl_millis(ttl), wait_seconds(wait)
    if request_id is not None:
        check_text("request_id", request_id)

    def request() -> Request:
        wish = Wish(lock_key, connection.owner_id, ttl_ms, wait_s, reentrant, metadata, request_id)
        return Acquisition(wish, connection.clock, connection.timeout_s)

    return request


def attachment_of(connection: Connection, exported: str) -> Callable[[], Request]:
    grant = import_grant(exported)
    return lambda: Attachment(grant, connection.clock, connection.timeout_s)


async def release_all(connection: Connection) -> None:
    """Give back every lease of this client; the ones that were lost are gone already."""
    for lease in connection.leases():
        try:
            await give_back(connection, lease)
        except FencegateError:
            continue
