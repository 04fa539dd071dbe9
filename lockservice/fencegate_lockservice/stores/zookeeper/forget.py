"""Forgets entries past their time. What may be forgotten is noted in ZooKeeper before it is written.

`ROOT/until/T` is for what ends by T (Unix seconds). A note there names entries and their versions; it goes out right
before the commits that write them. A note without its entries is harmless, for whoever wants to forget them finds
nothing; an entry without its note would stay for ever. Whoever wrote a note sees to it when the time has come; when it
is long past, anybody does.
"""

import asyncio
import logging
from collections.abc import Awaitable
from heapq import heappop, heappush

import msgspec

from fencegate.clock import Clock
from fencegate.core.ports import Unavailable
from fencegate_lockservice.stores.zookeeper import wire
from fencegate_lockservice.stores.zookeeper.connection import Connection, Lost
from fencegate_lockservice.stores.zookeeper.entries import Entries, Passing
from fencegate_lockservice.stores.zookeeper.line import Line
from fencegate_lockservice.stores.zookeeper.pulse import Pulse
from fencegate_lockservice.stores.zookeeper.wire import Refused

SPAN_S = 60
IN_A_NOTE = 250
AT_ONCE = 50
MAX_NOTED = 50_000
OVERDUE_S = 120
LOOK_EVERY_S = 60.0
TURN_S = 0.25
NOTES_A_TURN = 32

log = logging.getLogger("fencegate.store.zookeeper")

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(list[Passing]).decode


class Forgetting:
    """See the head of this file."""

    def __init__(self, root: str, acl: bytes, line: Line, entries: Entries, pulse: Pulse, clock: Clock) -> None:
        self.path = f"{root}/until"
        self._acl = acl
        self._line = line
        self._entries = entries
        self._pulse = pulse
        self._clock = clock
        self._name = clock.random_id(6)
        self._count = 0
        self._noted: list[tuple[int, str]] = []
        self._folders: set[str] = set()
        self._working: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._working = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)

    def forget(self) -> None:
        """Another tree may be there from now on: folders have to be made again."""
        self._folders.clear()

    # --- noting ---

    def note(self, connection: Connection, passing: list[Passing]) -> None:
        """Send a note of these, before the commits that write them."""
        spans: dict[int, list[Passing]] = {}
        now_us = self._clock.now_us()
        for one in passing:  # what ends at once, or long ago, goes where nobody clears away yet
            spans.setdefault(max(one.until_us, now_us) // (SPAN_S * 1_000_000), []).append(one)
        for span, some in spans.items():
            for first in range(0, len(some), IN_A_NOTE):
                self._send(connection, f"{self.path}/{(span + 1) * SPAN_S}", some[first : first + IN_A_NOTE])

    def _send(self, connection: Connection, folder: str, some: list[Passing]) -> None:
        if folder not in self._folders:
            if len(self._folders) > 1000:
                self._folders.clear()
            connection.create(folder, b"", self._acl)
            self._folders.add(folder)
        self._count += 1
        path = f"{folder}/{self._name}-{self._count}"
        noted = connection.create(path, _encode(some), self._acl)
        noted.add_done_callback(lambda done: self._again(connection, folder, some, done))
        if len(self._noted) < MAX_NOTED:
            heappush(self._noted, (max(one.until_us for one in some), path))

    def _again(self, connection: Connection, folder: str, some: list[Passing], done: "asyncio.Future[str]") -> None:
        """The folder was cleared away before the note came: only when we were stopped for long."""
        error = done.exception() if not done.cancelled() else None
        if isinstance(error, Refused) and error.code == wire.NO_NODE and not connection.lost:
            self._folders.discard(folder)
            self._send(connection, folder, some)

    # --- forgetting ---

    async def _work(self) -> None:
        look_us = 0
        while True:
            await asyncio.sleep(TURN_S)
            try:
                await self._forget_own()
                if self._clock.monotonic_us() >= look_us:
                    await self._forget_overdue()
                    look_us = self._clock.monotonic_us() + int(LOOK_EVERY_S * (0.5 + self._clock.jitter()) * 1_000_000)
            except (Lost, Unavailable):
                pass  # it will be done when ZooKeeper is there again
            except Refused as refused:
                log.warning("what is past its time can't be forgotten: %s", refused)
            except Exception:  # it must not end, or the store would grow for ever
                log.exception("what is past its time can't be forgotten")

    def _ready(self) -> Connection:
        """Unavailable also when our clock is off: what it calls past would be lost to all replicas."""
        connection = self._line.connection
        self._pulse.time.now()
        return connection

    async def _forget_own(self) -> None:
        connection = self._ready()
        now_us = self._clock.now_us()
        while self._noted and self._noted[0][0] <= now_us:
            due = [heappop(self._noted)]
            while len(due) < NOTES_A_TURN and self._noted and self._noted[0][0] <= now_us:
                due.append(heappop(self._noted))
            try:
                await self._forget_notes(connection, [path for _, path in due])
            except BaseException:
                for note in due:
                    heappush(self._noted, note)
                raise

    async def _forget_overdue(self) -> None:
        """Those of others, who should have done it long ago."""
        connection = self._ready()
        folders, _ = await connection.children(self.path)
        past_s = self._clock.now_us() // 1_000_000 - OVERDUE_S
        for folder in sorted(folder for folder in folders if folder.isdecimal() and int(folder) < past_s):
            path = f"{self.path}/{folder}"
            notes, _ = await connection.children(path)
            for first in range(0, len(notes), NOTES_A_TURN):
                some = [f"{path}/{note}" for note in notes[first : first + NOTES_A_TURN]]
                await self._forget_notes(connection, some)
            self._folders.discard(path)
            await _whatever_comes(connection.delete(path))  # it may have been used again

    async def _forget_notes(self, connection: Connection, paths: list[str]) -> None:
        await asyncio.gather(*(self._forget_note(connection, path) for path in paths))

    async def _forget_note(self, connection: Connection, path: str) -> None:
        try:
            note, _ = await connection.get(path)
        except Refused as refused:
            if refused.code == wire.NO_NODE:  # another was faster
                return
            raise
        try:
            some = _decode(note)
        except msgspec.MsgspecError:  # somebody else put it there: it is left, and must not keep us from the others
            log.warning("%s is no note of what may be forgotten; take it away", path)
            return
        for first in range(0, len(some), AT_ONCE):
            await self._remove(connection, some[first : first + AT_ONCE])
        await _whatever_comes(connection.delete(path))

    async def _remove(self, connection: Connection, some: list[Passing]) -> None:
        """All in one step; when one was written anew, or is gone, each by itself."""
        steps = [[op for one in some for op in self._entries.removal(one.key, one.version)]]
        if await _whatever_comes(connection.multi(steps[0])) and len(some) > 1:
            steps = [[*self._entries.removal(one.key, one.version)] for one in some]
            await asyncio.gather(*(_whatever_comes(connection.multi(step)) for step in steps))


async def _whatever_comes(asked: Awaitable[object]) -> bool:
    """Whether it was refused. Lost when nobody knows."""
    try:
        await asked
    except Refused:
        return True
    return False
