"""The client without `await`: the same rules, run by the background thread, with this thread waiting for them."""

import builtins
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from fencegate.client.background import background
from fencegate.client.connection import Connection
from fencegate.client.grant import Grant
from fencegate.client.holding import Holding, Request
from fencegate.client.lease import LeaseCore, LeaseState
from fencegate.client.locks import (
    DEFAULT_TIMEOUT_S,
    DEFAULT_TTL_S,
    acquisition_of,
    attachment_of,
    connection_of,
)
from fencegate.client.locks import Locks as AsyncLocks
from fencegate.client.release import give_back
from fencegate.client.transport import Json
from fencegate.core.errors import FencegateError, LockHeld

__all__ = ["Hold", "Lease", "LeaseState", "Locks", "TryHold", "connect"]


def connect(url: str | None = None, *, owner_id: str | None = None, timeout: float = DEFAULT_TIMEOUT_S) -> "Locks":
    """Like `fencegate.connect`, without `await`. May be used from several threads.

    >>> locks = connect("memory://")
    """
    return Locks(connection_of(url, owner_id, timeout))


class Lease(LeaseCore):
    """A time-bound hold on a lock key, renewed in the background until it is released or lost."""

    def __init__(self, connection: Connection, grant: Grant) -> None:
        super().__init__(grant, connection.clock)
        self._connection = connection
        self.lost: threading.Event = LostEvent(self)
        """Set when the lease is lost: `lease.lost.wait(timeout)`."""

    def release(self) -> None:
        """Give the lock back. Raises LockLost when it was lost before that; does nothing when it was released."""
        background().run(give_back(self._connection, self))


class LostEvent(threading.Event):
    """A `threading.Event` that also reads the clock, so that it is never later than the deadline."""

    def __init__(self, lease: LeaseCore) -> None:
        super().__init__()
        self._lease = lease
        lease._when_lost(self.set)

    def is_set(self) -> bool:
        return self._lease.state is LeaseState.LOST

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set() or super().wait(timeout) or self.is_set()


class Hold:
    """A handle on a lock: `with` it, or `acquire` and `release` it. The rules are those of `fencegate.Hold`."""

    def __init__(
        self,
        connection: Connection,
        request: Callable[[], Request],
        on_lost: Callable[[Lease], None] | None,
    ) -> None:
        self._holding = Holding(connection, request, Lease)
        self._on_lost = on_lost

    def acquire(self) -> Lease:
        """Get the lock, and have it renewed until `release`. LockHeld when it can't be had."""
        try:
            lease = background().run(self._holding.acquire())
        except FencegateError:
            raise
        except BaseException:  # Ctrl-C, perhaps just when the grant arrived
            background().owe(self._holding.discard())
            raise
        on_lost = self._on_lost
        if on_lost is not None:
            # A thread of its own: on the renewal thread a slow callback would cost every other lease.
            lease._when_lost(lambda: threading.Thread(target=on_lost, args=(lease,), daemon=True).start())
        return lease

    def release(self) -> None:
        """Give the lock back. Raises LockLost when it was lost before that; does nothing when it was released."""
        background().run(self._holding.release())

    def __enter__(self) -> Lease:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        background().run(self._holding.finish(error))


class TryHold:
    """Like Hold, but gives None where that would raise LockHeld."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def acquire(self) -> Lease | None:
        try:
            return self._hold.acquire()
        except LockHeld:
            return None

    def release(self) -> None:
        self._hold.release()

    def __enter__(self) -> Lease | None:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hold.__exit__(kind, error, traceback)


class Locks:
    """A client of a lock service. May be used from several threads, and after a fork."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._locks = AsyncLocks(connection)

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
        on_lost: Callable[[Lease], None] | None = None,
        request_id: str | None = None,
    ) -> Hold:
        """A handle on the lock: `with locks.hold("rebuild:eu", ttl=30, wait=10) as lease: …`.

        `ttl` and `wait` are seconds; without `wait` a held lock raises LockHeld at once. `on_lost` is called in a
        thread of its own.
        """
        request = acquisition_of(self._connection, lock_key, ttl, wait, reentrant, metadata, request_id)
        return Hold(self._connection, request, on_lost)

    def try_hold(
        self,
        lock_key: str,
        *,
        ttl: float = DEFAULT_TTL_S,
        wait: float | None = None,
        reentrant: bool = False,
        metadata: Mapping[str, Any] | None = None,
        on_lost: Callable[[Lease], None] | None = None,
        request_id: str | None = None,
    ) -> TryHold:
        """Like `hold`, but gives None where that would raise LockHeld."""
        request = acquisition_of(self._connection, lock_key, ttl, wait, reentrant, metadata, request_id)
        return TryHold(Hold(self._connection, request, on_lost))

    def attach(self, exported: str, *, on_lost: Callable[[Lease], None] | None = None) -> Hold:
        """A handle on a lease that another process exported; LockLost when it is over by now."""
        return Hold(self._connection, attachment_of(self._connection, exported), on_lost)

    def status(self, lock_key: str) -> Json:
        """Who holds the lock, as the REST call tells it; `locked` is false when nobody does."""
        return background().run(self._locks.status(lock_key))

    def list(self, prefix: str = "", *, namespace: str | None = None) -> builtins.list[Json]:
        """The locks that are held, as `status` tells of each, in the order of their keys."""
        return background().run(self._locks.list(prefix, namespace=namespace))

    def force_release(self, lock_key: str, reason: str) -> Json:
        """Take the lock from whoever holds it. Its fencing token goes on protecting the resource from them."""
        return background().run(self._locks.force_release(lock_key, reason))

    def close(self) -> None:
        """Release what this client still holds, and close its connections. A later use opens others."""
        background().run(self._locks.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
