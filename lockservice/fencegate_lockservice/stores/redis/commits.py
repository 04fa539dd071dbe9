"""Commits on their way to Redis: those of one turn of the event loop go together, as one call of one script.

A call of a script costs the server several times what a comparison and a write in it do. The first that finds nothing
under way goes at once, by a script of its own if it is of the commonest kind; a few that came together don't wait for
the end of the turn, so that the server works on them while we make the others.
"""

from asyncio import get_running_loop
from collections.abc import Sequence
from typing import Any

import hiredis

from fencegate.clock import Clock
from fencegate.core.ports import Change, Conflict, Landed, TooLate, Unavailable
from fencegate_lockservice.stores.redis.alone import Alone
from fencegate_lockservice.stores.redis.line import Asked
from fencegate_lockservice.stores.redis.script import USED_BY_OTHERS
from fencegate_lockservice.stores.redis.server import Server
from fencegate_lockservice.stores.redis.together import MOST_KEYS, Commit, Together

GO_TOGETHER = 16


class Group(Asked, eq=False, gc=False):
    """Commits that go together: all that wait hear what became of theirs."""

    def done(self, _result: Any = None) -> None:
        awaited, self.awaited = self.awaited, ()
        _tell(awaited, None)

    def failed(self, error: Exception) -> None:
        awaited, self.awaited = self.awaited, ()
        _tell(awaited, error)


def _tell(awaited: Sequence[Landed], error: Exception | None) -> None:
    for landed in awaited:
        landed(error)


class Commits:
    """See the head of this file."""

    def __init__(self, server: Server, clock: Clock, writer: str) -> None:
        self._server = server
        self._clock = clock
        prefix, scripts = server.address.prefix, server.scripts
        self._alone = Alone(scripts.alone.sha, prefix, f"${len(writer)}\r\n{writer}\r\n")
        self._together = Together(scripts.commit.sha, prefix, writer)
        self._gathered: list[Commit] = []
        self._awaited: list[Landed] = []
        """Of those that are gathered."""
        self._keys = 0
        self._going = False
        self._heard = self._hear  # bound once, for all of them

    def add(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int, landed: Landed
    ) -> None:
        """What `commit_then` of a store does."""
        gathered = self._gathered
        if not gathered:
            line = self._server.line
            if line is None or line.is_idle():
                self._send([(changes, log, not_after_us)], [landed])
                return
            if not self._going:
                self._going = True
                get_running_loop().call_soon(self._end_turn)
        gathered.append((changes, log, not_after_us))
        self._awaited.append(landed)
        self._keys = keys = self._keys + len(changes)
        if keys > MOST_KEYS or len(gathered) >= GO_TOGETHER:
            self.go()

    def _end_turn(self) -> None:
        self._going = False
        self.go()

    def go(self) -> None:
        """Send those that are gathered."""
        if self._gathered:
            gathered, awaited = self._gathered, self._awaited
            self._gathered, self._awaited, self._keys = [], [], 0
            self._send(gathered, awaited)

    def _send(self, commits: list[Commit], awaited: list[Landed]) -> None:
        line = self._server.line
        if line is None:
            get_running_loop().call_soon(_tell, awaited, Unavailable(self._server.why))
            return
        try:
            packed = self._alone.pack(*commits[0]) if len(commits) == 1 else None
            if packed is None:
                packed = self._together.pack(commits)
        except ValueError as error:
            if len(commits) == 1:
                get_running_loop().call_soon(_tell, awaited, Unavailable(f"the store can't take this: {error}"))
                return
            for commit, landed in zip(commits, awaited, strict=True):  # the others are not to blame
                self._send([commit], [landed])
            return
        line.send(Group(packed, self._heard, self._clock.monotonic_us(), True, awaited))

    def _hear(self, asked: Asked, answer: Any) -> None:
        server = self._server
        if type(answer) is int:
            if asked.sent_us >= server.listens_at_us:
                server.heard(asked, answer)
            asked.done()
        elif isinstance(answer, hiredis.ReplyError):
            server.refused(asked, answer)
        elif len(answer) == 1:  # everything is gone, also what the comparisons rest on
            server.begin_anew()
            asked.failed(Conflict())
        else:
            server.heard(asked, answer[0])
            awaited, asked.awaited = asked.awaited, ()
            for landed, fate in zip(awaited, answer[1], strict=True):
                landed(self._error_of(fate))

    def _error_of(self, fate: bytes) -> Exception | None:
        if fate == b"done":
            return None
        if fate == b"conflict":
            return Conflict()
        if fate == b"late":
            return TooLate()
        return Unavailable(f"{self._server.address}: a key of the lock store is used by others: {USED_BY_OTHERS}")
