"""Commits on their way to ZooKeeper: each is one multi, and many are under way at once on one connection.

Those that come in one turn of the event loop go out in one write. A commit that failed because the segment of the
change log was full was not done, so it may be sent again, into the next one, before all that came after it.
"""

import asyncio
from collections.abc import Sequence

from fencegate.core.ports import Ambiguous, Change, Conflict, Unavailable
from fencegate_lockservice.stores.landing import Fate
from fencegate_lockservice.stores.zookeeper import wire
from fencegate_lockservice.stores.zookeeper.connection import Connection, Lost
from fencegate_lockservice.stores.zookeeper.entries import Entries, Passing
from fencegate_lockservice.stores.zookeeper.forget import Forgetting
from fencegate_lockservice.stores.zookeeper.line import Line
from fencegate_lockservice.stores.zookeeper.log import SEGMENT, SegmentedLog, encode_lines
from fencegate_lockservice.stores.zookeeper.tail import Tail
from fencegate_lockservice.stores.zookeeper.wire import Op, Refused

MAX_VALUE = 900_000
MAX_COMMIT = 1_000_000
"""ZooKeeper cuts the connection over a request of more than 1 MiB (`jute.maxbuffer`)."""
UNDER_WAY = 1000
AT_ONCE = 16
TRIES = 10
AGAIN_AFTER_S = 0.02

_COMPARED = frozenset((wire.NO_NODE, wire.BAD_VERSION, wire.NODE_EXISTS, wire.NOT_EMPTY))
_NOT_DONE = frozenset((wire.NO_AUTH, wire.UNIMPLEMENTED, -112, -118, -122))


class Commit:
    """A commit, and where its outcome is awaited."""

    __slots__ = ("future", "lines", "log", "made", "ops", "passing", "tries")

    def __init__(
        self,
        entries: Entries,
        changes: Sequence[Change],
        log: Sequence[tuple[str, bytes]],
        future: Fate,
    ) -> None:
        self.ops: list[Op] = entries.ops(changes)
        self.log = log
        self.lines = encode_lines(log) if log else b""
        self.made = [key for key, expected, *_ in changes if expected is None]
        self.passing = [
            Passing(key, version, until_us)
            for key, _, version, value, _, until_us in changes
            if until_us is not None and value is not None
        ]
        self.future = future
        self.tries = 0

    @property
    def size(self) -> int:
        return len(self.lines) + sum(len(op.body) + 9 for op in self.ops)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Commits:
    """See the head of this file."""

    def __init__(
        self, line: Line, entries: Entries, segments: SegmentedLog, tail: Tail, forgetting: Forgetting
    ) -> None:
        self._line = line
        self._entries = entries
        self._log = segments
        self._tail = tail
        self._forgetting = forgetting
        self._gathered: list[Commit] = []
        self._back: list[Commit] = []
        """Sent, and not done, since the segment was full."""
        self._sending = False
        self._advancing: asyncio.Task[None] | None = None
        self._trimming: asyncio.Task[None] | None = None
        self._under_way = 0
        self._closed = False
        self._quiet = asyncio.Event()

    def add(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], future: Fate) -> None:
        try:
            commit = Commit(self._entries, changes, log, future)
            if commit.size > MAX_COMMIT:
                raise Unavailable(f"a commit of {commit.size} bytes is more than ZooKeeper takes ({MAX_COMMIT})")
            if self._closed:
                raise Unavailable("the store is closed")
            _ = self._line.connection
        except UnicodeError as error:
            future.set_exception(Unavailable(f"the store can't take this: {error}"))
            return
        except Unavailable as error:
            future.set_exception(error)
            return
        self._gathered.append(commit)
        if len(self._gathered) >= AT_ONCE and self._advancing is None:
            self._send_now()  # ZooKeeper may begin while we are still making the others
        elif not self._sending:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._sending = False
        self._send_now()

    def _send_now(self) -> None:
        if self._advancing is not None:
            return
        try:
            connection = self._line.connection
        except Unavailable as error:
            self._give_up(error)
            return
        room = UNDER_WAY - self._under_way
        some, self._gathered = self._gathered[:room], self._gathered[room:]
        self._entries.make_folders(connection, [key for commit in some for key in commit.made])
        passing = [one for commit in some for one in commit.passing]
        if passing:
            self._forgetting.note(connection, passing)
        for commit in some:
            self._send_one(connection, commit)
        connection.flush()

    def _send_one(self, connection: Connection, commit: Commit) -> None:
        start, ops = self._log.start, commit.ops
        if commit.lines:
            check, line = self._log.ops(commit.lines)
            ops = [check, *ops, line]
        self._under_way += 1
        connection.send(wire.multi(ops), lambda answer: self._heard(connection, commit, start, answer))

    # --- what came of it ---

    def _heard(self, connection: Connection, commit: Commit, start: int, answer: object) -> None:
        self._under_way -= 1
        if isinstance(answer, Refused):
            self._refused(connection, commit, start, answer)
        elif isinstance(answer, Lost):
            commit.fail(Ambiguous(f"sent to ZooKeeper, and not answered: {answer}"))
        else:
            if commit.lines:
                self._logged(connection, commit, start, answer)
            if not commit.future.done():
                commit.future.set_result(None)
        if self._gathered and not self._sending and self._advancing is None:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._send)
        if not self._under_way:
            self._quiet.set()

    def _logged(self, connection: Connection, commit: Commit, start: int, results: object) -> None:
        assert isinstance(results, list)
        number = int(results[-1].rpartition("/")[2])
        self._tail.committed(start + number, commit.log)
        if number >= SEGMENT - 1:
            self._advance(connection, start)

    def _refused(self, connection: Connection, commit: Commit, start: int, refused: Refused) -> None:
        place, code = refused.place, refused.code
        if commit.lines and place == 0 and code in (wire.BAD_VERSION, wire.NO_NODE):
            commit.tries += 1
            if commit.tries > TRIES:
                commit.fail(Unavailable("the change log in ZooKeeper can't be written"))
                return
            self._back.append(commit)
            self._advance(connection, start)
            return
        kind = commit.ops[place - bool(commit.lines)].kind if place - bool(commit.lines) < len(commit.ops) else 0
        if code == wire.NO_NODE and kind in (wire.CREATE, 0):
            commit.fail(Unavailable("the folders of the store in ZooKeeper are gone; they are made anew"))
            connection.abort("the folders of the store are gone")
        elif code in _COMPARED:
            commit.fail(Conflict())
        elif code in _NOT_DONE:
            commit.fail(Unavailable(f"ZooKeeper refused the commit: {refused}"))
        else:
            commit.fail(Ambiguous(f"ZooKeeper answered the commit with: {refused}"))

    # --- the next segment ---

    def _advance(self, connection: Connection, full: int) -> None:
        if self._advancing is None and (self._back or full == self._log.start):
            self._advancing = asyncio.get_running_loop().create_task(self._go_on(connection, full))

    async def _go_on(self, connection: Connection, full: int) -> None:
        try:
            # What is under way is answered before what is asked now: by then all that has to be sent again is known.
            await self._log.advance(connection, full)
            if self._log.start == full:
                await asyncio.sleep(AGAIN_AFTER_S)
            elif self._trimming is None or self._trimming.done():
                self._trimming = asyncio.get_running_loop().create_task(self._log.trim(connection))
        except (Lost, Refused):
            await asyncio.sleep(AGAIN_AFTER_S)
        finally:
            self._advancing = None
            self._gathered = self._back + self._gathered
            self._back = []
            self._send()

    # --- the end ---

    def on_lost(self) -> None:
        """What was under way was told so; what was not sent was not done."""
        self._give_up(Unavailable("the connection to ZooKeeper broke before this was sent"))

    def _give_up(self, error: Exception) -> None:
        waiting, self._back, self._gathered = self._back + self._gathered, [], []
        for commit in waiting:
            commit.fail(error)

    async def close(self, within_s: float) -> None:
        """Take nothing more; finish what was begun, if that does not take too long."""
        self._closed = True
        try:
            async with asyncio.timeout(within_s):
                while self._gathered or self._back or self._under_way or self._advancing is not None:
                    if self._advancing is not None:
                        await asyncio.wait([self._advancing])
                    elif not self._under_way:
                        await asyncio.sleep(0)
                    else:
                        self._quiet.clear()
                        await self._quiet.wait()
        except TimeoutError:
            pass
        for task in (self._advancing, self._trimming):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._give_up(Unavailable("the store was closed"))
