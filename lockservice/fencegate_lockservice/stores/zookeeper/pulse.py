"""A write that changes nothing of ours: it says that there is a quorum, what time the leader has, and makes reads new.

A read is answered by whatever server we are connected to, which may lag behind, or have been cut off. A write is
answered when a quorum has it and that server has applied it, and all that was committed before; what is asked after it
on the same connection is answered after it. So reads that go out right behind a pulse are linearizable, and any number
of them share one.
"""

from asyncio import Future

from fencegate.clock import Clock
from fencegate_lockservice.stores.server_time import ServerTime
from fencegate_lockservice.stores.zookeeper.connection import Connection
from fencegate_lockservice.stores.zookeeper.wire import Stat


class Pulse:
    """See the head of this file."""

    def __init__(self, root: str, clock: Clock) -> None:
        self.path = f"{root}/pulse"
        self._clock = clock
        self.time = ServerTime(clock, "the ZooKeeper leader", clock.now_us)  # tokens follow it
        self._last: tuple[Connection, int, Future[Stat]] | None = None

    def beat(self, connection: Connection) -> Future[Stat]:
        """Ask for one; whoever asks in the same turn of the event loop shares it."""
        if self._last is not None and self._last[0] is connection and self._last[1] == connection.turn:
            return self._last[2]
        sent_us = self._clock.monotonic_us()
        beat = connection.put(self.path, b"")
        beat.add_done_callback(lambda done: self._heard(sent_us, done))
        self._last = (connection, connection.turn, beat)
        return beat

    def _heard(self, sent_us: int, beat: Future[Stat]) -> None:
        if not beat.cancelled() and beat.exception() is None:
            self.time.heard(sent_us, beat.result().mtime * 1000)
