"""One hold from request to release: the rules that the async and the sync face share."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from fencegate.client.background import background
from fencegate.client.connection import Connection
from fencegate.client.life import ALIVE, Life
from fencegate.client.release import give_back
from fencegate.client.renewal import look_at_deadline
from fencegate.client.transport import Transport
from fencegate.core.errors import FencegateError, LockLost

log = logging.getLogger("fencegate.client")

G_co = TypeVar("G_co", covariant=True)
K = TypeVar("K", bound=Life)


class Request(Protocol[G_co]):
    """How a grant is got: by an acquire, by taking up another process's lease, by opening a session."""

    doubtful: bool

    @property
    def wait_until_us(self) -> float:
        """How long it may take to be had, on the client's clock; 0 when nobody wants to wait."""
        ...

    def run(self, transport: Transport) -> Awaitable[G_co]: ...

    async def undo(self, transport: Transport) -> None: ...


class Holding(Generic[G_co, K]):
    """Acquires, has it renewed, and releases. May be used again after that, not twice at once."""

    def __init__(
        self,
        connection: Connection,
        request: Callable[[], Request[G_co]],
        make: Callable[[G_co], K],
        claim: Callable[[K], Awaitable[None]] | None = None,
    ) -> None:
        """`claim` raises the fences of what the lock protects, before anybody is told that it is held."""
        self._connection = connection
        self._make_request = request
        self._make = make
        self._claim = claim
        self._held: K | None = None
        self._busy = False

    async def acquire(self) -> K:
        """Get it, and have it renewed until `release`. LockHeld when it can't be had."""
        if self._busy or (self._held is not None and self._held.held):
            raise FencegateError("this handle holds the lock or is getting it; make another one with hold()")
        self._busy = True
        connection = self._connection
        try:
            request = self._make_request()
            try:
                grant = await request.run(connection.ready() or await connection.open(request.wait_until_us))
            except BaseException:  # cancelled, too: what may be under way is found and undone in the background
                if request.doubtful:
                    connection.owe(request.undo)
                raise
            made = self._make(grant)
            if made._look() not in ALIVE:
                connection.owe(request.undo)
                raise LockLost(f"{made._describe()} was granted, but the answer came after its deadline; acquire anew")
            if made._parent is None:
                connection.keep(made)
            elif made._last_us is not None:  # it is renewed with its session, but may end before that
                background().loop.call_soon_threadsafe(look_at_deadline, made)
            if self._claim is not None:
                await self._claimed(made, self._claim)
            self._held = made
            return made
        finally:
            self._busy = False

    async def release(self) -> None:
        """Give it back. Raises LockLost when it was lost before that; does nothing when it was released."""
        held, self._held = self._held, None
        if held is not None:
            await give_back(self._connection, held)

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

    async def _claimed(self, made: K, claim: Callable[[K], Awaitable[None]]) -> None:
        """A lock whose fences can't be raised is given back: its holder would read what may still change."""
        try:
            await claim(made)
        except Exception:
            with suppress(FencegateError):
                await give_back(self._connection, made)
            raise
        except BaseException:  # cancelled: the background gives it back
            self._connection.owe(lambda _transport: give_back(self._connection, made))
            raise
