"""The sync face of whatever is held: `with` it, or acquire and release it; and the event of its loss."""

from threading import Event
from types import TracebackType
from typing import Any, Generic, TypeVar

from fencegate.client.background import background
from fencegate.client.connection import Connection
from fencegate.client.holding import Holding
from fencegate.client.life import LeaseState, Life
from fencegate.client.telling import Reactions, ThreadTeller, follow, wanted
from fencegate.core.errors import FencegateError

K = TypeVar("K", bound=Life)


class LostEvent(Event):
    """A `threading.Event` that also reads the clock, so that it is never later than the deadline."""

    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life
        if life._is_ours():  # else it was lost by the fork, and its mutex may have been held there
            life._when_lost(self.set)

    def is_set(self) -> bool:
        return self._life.state is LeaseState.LOST

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set() or super().wait(timeout) or self.is_set()


def lost_event(life: Life) -> Event:
    """For a `cached_property`: few ask for it, and what knows each other is only freed by the garbage collector."""
    return LostEvent(life)


class Handle(Generic[K]):
    """A handle: `with` it, or `acquire` and `release` it. The rules are those of the async one.

    Callbacks are called in a thread of their own.
    """

    def __init__(self, connection: Connection, holding: Holding[Any, K], reactions: Reactions[K]) -> None:
        self._connection = connection
        self._holding = holding
        self._reactions = reactions
        self._is_silent = connection.on_state is None and not wanted(reactions)

    def acquire(self) -> K:
        """Get it, and have it renewed until `release`. LockHeld when it can't be had."""
        try:
            held = background().run(self._holding.acquire())
        except FencegateError:
            raise
        except BaseException:  # Ctrl-C, perhaps just when the grant arrived
            background().owe(self._holding.discard())
            raise
        if not self._is_silent:
            follow(held, self._reactions, ThreadTeller())
            for lease in held._leases():
                follow(lease, {"on_state": self._connection.on_state}, ThreadTeller())
        return held

    def release(self) -> None:
        """Give it back. Raises LockLost when it was lost before that; does nothing when it was released."""
        background().run(self._holding.release())

    def __enter__(self) -> K:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        background().run(self._holding.finish(error))
