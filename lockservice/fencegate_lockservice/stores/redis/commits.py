"""Commits on their way to Redis: those of one turn of the event loop go together, as one call of one script.

A call of a script costs the server several times what a comparison and a write in it do. The first that finds nothing
under way goes at once; a few that came together don't wait for the end of the turn, so that the server works on them
while we make the others.
"""

from asyncio import get_running_loop
from collections.abc import Sequence
from typing import Any

import hiredis
import msgspec

from fencegate.clock import Clock
from fencegate.core.model import DONE
from fencegate.core.ports import Change, Conflict, Landed, TooLate, Unavailable
from fencegate_lockservice.stores.redis import log as redis_log
from fencegate_lockservice.stores.redis.line import Asked
from fencegate_lockservice.stores.redis.script import USED_BY_OTHERS
from fencegate_lockservice.stores.redis.server import Server

GO_TOGETHER = 16
MOST_KEYS = 1000
"""So many go together, and a commit may be about twice as many: a script can't name many more in one call."""

UNLISTED = DONE
"""What became of a request is asked for by its name: no scan has to find it, and most of what is kept is that."""


class Group(Asked, eq=False, gc=False):
    """Commits that go together: all that wait hear what became of theirs. What commit.lua is given, in parts."""

    keys: int = 0
    names: str = ""
    words: str = ""
    values: list[bytes] = msgspec.field(default_factory=list)
    """Each after its length."""

    def done(self, _result: Any = None) -> None:
        awaited, self.awaited = self.awaited, ()
        for landed in awaited:
            landed(None)

    def failed(self, error: Exception) -> None:
        awaited, self.awaited = self.awaited, ()
        for landed in awaited:
            landed(error)


class Commits:
    """See the head of this file."""

    def __init__(self, server: Server, clock: Clock, writer: str) -> None:
        self._server = server
        self._clock = clock
        self._group: Group | None = None
        """Those that are gathered."""
        self._going = False
        prefix, sha = server.address.prefix, server.scripts.commit.sha
        self._prefix = prefix
        self._script = f"$7\r\nEVALSHA\r\n${len(sha)}\r\n{sha}\r\n"
        self._writer = f"${len(writer)}\r\n{writer}\r\n"
        self._heard = self._hear  # bound once, for all of them

    def add(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int, landed: Landed
    ) -> None:
        """What `commit_then` of a store does."""
        server = self._server
        line = server.line
        if line is None:
            get_running_loop().call_soon(landed, Unavailable(server.why))
            return
        prefix, names, words = self._prefix, "", f"{not_after_us} {len(changes)} "
        try:
            if len(changes) > 2 * MOST_KEYS:
                raise ValueError(f"{len(changes)} keys are too many for one commit")
            lines = redis_log.encode(log)
            values = [f"\r\n${len(lines)}\r\n".encode(), lines]
            for key, expected, version, value, compare_only, keep_until_us in changes:
                kind, slash, rest = key.partition("/")
                name = f"{prefix}{kind}:{rest}" if slash and kind and ":" not in kind else f"{prefix}:{key}"
                names += f"${len(name) if name.isascii() else len(name.encode())}\r\n{name}\r\n"
                if compare_only or value is None:
                    how = "=" if compare_only else "-"
                else:
                    values += (f"\r\n${len(version) + 1 + len(value)}\r\n{version}\n".encode(), value)
                    if keep_until_us is None:
                        how = "+"
                    else:
                        how = f"{'~' if key.startswith(UNLISTED) else ''}{-(-keep_until_us // 1000)}"
                words += f"{expected or '-'} {how} "
        except ValueError as error:
            get_running_loop().call_soon(landed, Unavailable(f"the store can't take this: {error}"))
            return
        group = self._group
        if group is not None:
            group.keys += len(changes)
            group.names += names
            group.words += words
            group.values += values
            group.awaited.append(landed)
            if len(group.awaited) >= GO_TOGETHER or group.keys > MOST_KEYS:
                self.go()
            return
        # None of those that will go with it left before now, as far as anybody counts from there.
        now_us = self._clock.monotonic_us()
        self._group = Group(b"", self._heard, now_us, True, [landed], False, len(changes), names, words, values)
        if line.is_idle():
            self.go()
        elif not self._going:
            self._going = True
            get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._going = False
        self.go()

    def go(self) -> None:
        """Send those that are gathered."""
        group, self._group = self._group, None
        if group is None:
            return
        keys, words, values = f"{group.keys}", group.words, group.values
        head = f"*{5 + group.keys + len(values) // 2}\r\n{self._script}${len(keys)}\r\n{keys}\r\n{group.names}"
        values[0] = f"{head}{self._writer}${len(words)}\r\n{words}".encode() + values[0]
        values.append(b"\r\n")
        group.packed = b"".join(values)
        line = self._server.line
        if line is not None:
            line.send(group)
        else:
            get_running_loop().call_soon(group.failed, Unavailable(self._server.why))

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
