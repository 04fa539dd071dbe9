"""One hold from request to release: the rules that the async and the sync face share."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from fencegate.client.connection import Connection
from fencegate.client.grant import Grant
from fencegate.client.lease import LeaseCore
from fencegate.client.release import give_back
from fencegate.client.transport import Transport
from fencegate.core.errors import FencegateError, LockLost

log = logging.getLogger("fencegate.client")

L = TypeVar("L", bound=LeaseCore)


class Request(Protocol):
    """How a grant is got: by an acquire, or by taking up another process's lease."""

    doubtful: bool

    async def run(self, transport: Transport) -> Grant: ...

    async def undo(self, transport: Transport) -> None: ...


class Holding(Generic[L]):
    """Acquires, has the lease renewed, and releases. May be used again after that, not twice at once."""

    def __init__(
        self, connection: Connection, request: Callable[[], Request], lease: Callable[[Connection, Grant], L]
    ) -> None:
        self._connection = connection
        self._make_request = request
        self._make_lease = lease
        self._lease: L | None = None
        self._busy = False

    async def acquire(self) -> L:
        """Get the lock, and have it renewed until `release`. LockHeld when it can't be had."""
        if self._busy or (self._lease is not None and self._lease.held):
            raise FencegateError("this handle holds the lock or is getting it; make another one with hold()")
        self._busy = True
        try:
            self._lease = await self._request_lease()
        finally:
            self._busy = False
        return self._lease

    async def release(self) -> None:
        """Give the lock back. Raises LockLost when it was lost before that; does nothing when it was released."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await give_back(self._connection, lease)

    async def finish(self, body_error: BaseException | None) -> None:
        """The end of a `with` block: LockLost if the lock was lost and the body raised nothing of its own."""
        try:
            await self.release()
        except LockLost as error:
            if body_error is None:
                raise
            body_error.add_note(f"While this happened: {error.detail}")
        except FencegateError as error:
            # The body did its work under the lock. That its release is in doubt must not look as if it had not.
            log.warning("the release is in doubt, and goes on in the background: %s", error.detail)

    async def discard(self) -> None:
        """For a caller who was interrupted before it heard of the grant: give back what came."""
        with suppress(FencegateError):
            await self.release()

    async def _request_lease(self) -> L:
        connection = self._connection
        request = self._make_request()
        await connection.prepare_to_keep()
        try:
            grant = await request.run(await connection.transport())
        except BaseException:  # cancelled, too: what may be under way is found and undone in the background
            if request.doubtful:
                connection.owe(request.undo)
            raise
        lease = self._make_lease(connection, grant)
        if not lease.held:
            connection.owe(request.undo)
            raise LockLost(f"{grant.lock_key!r} was granted, but the answer came after its deadline; acquire anew")
        connection.keep(lease)
        return lease
