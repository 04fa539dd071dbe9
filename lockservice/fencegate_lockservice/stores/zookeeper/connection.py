"""One connection to a ZooKeeper server, which is one session: requests go out as they come, and are answered in order.

It lives in the event loop: what is asked in one turn of it is one write. A session is never resumed by another
connection: nothing of ours is tied to it but watches, and those are set anew.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from fencegate.clock import Clock
from fencegate_lockservice.stores.zookeeper import wire
from fencegate_lockservice.stores.zookeeper.wire import Op, Refused, Stat

SESSION_MS = 10_000
ANSWER_WITHIN_US = 5_000_000
TICK_S = 0.5
MAX_ANSWER = 256 * 1024 * 1024
RECEIVED_AT_ONCE = 64 * 1024


class Lost(Exception):
    """The connection broke: what was sent and not answered may have been done."""


Heard = Callable[[object], None]
"""Called with what was answered, or with the Lost or Refused that came instead. It must not raise."""


class Connection(asyncio.BufferedProtocol):
    """See the head of this file. Made by `connect`."""

    def __init__(self, clock: Clock, on_event: Callable[[int, str], None], on_lost: Callable[[str], None]) -> None:
        self._clock = clock
        self._on_event = on_event
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._welcome: asyncio.Future[wire.Welcome] = self._loop.create_future()
        self._room = memoryview(bytearray(RECEIVED_AT_ONCE))
        self._unread = bytearray()
        self._unsent: list[bytes] = []
        self._asked: deque[tuple[int, Heard, int]] = deque()
        self._xid = 0
        self._sent_us = self._pinged_us = 0
        self._overdue: object = None
        self._ticking: asyncio.TimerHandle | None = None
        self._timeout_us = 0
        self._why = "ZooKeeper closed the connection"
        self.session = wire.Welcome(0, 0, b"")
        self.turn = 0
        """Counts the writes: what is asked in one turn goes out after all that was asked before it."""
        self.lost = False
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def under_way(self) -> int:
        return len(self._asked)

    # --- asking ---

    def send(self, op: Op, heard: Heard) -> None:
        """Ask, and have `heard` called with the answer; at once, with Lost, when the connection is gone."""
        if self.lost:
            heard(Lost(self._why))
            return
        self._xid = self._xid % 0x7FFFFFFF + 1
        self._asked.append((op.kind, heard, self._clock.monotonic_us()))
        self.idle.clear()
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(wire.packet(self._xid, op))

    def _ask(self, op: Op) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()

        def heard(answer: object) -> None:
            if future.done():
                return
            if isinstance(answer, Exception):
                future.set_exception(answer)
                future.exception()  # whoever stopped waiting need not look at it
            else:
                future.set_result(answer)

        self.send(op, heard)
        return future

    def create(self, path: str, data: bytes, acl: bytes) -> "asyncio.Future[str]":
        return self._ask(wire.create(path, data, acl))

    def delete(self, path: str) -> "asyncio.Future[None]":
        return self._ask(wire.delete(path))

    def put(self, path: str, data: bytes, version: int = -1) -> "asyncio.Future[Stat]":
        return self._ask(wire.put(path, data, version))

    def get(self, path: str) -> "asyncio.Future[tuple[bytes, Stat]]":
        return self._ask(wire.get(path))

    def exists(self, path: str) -> "asyncio.Future[Stat]":
        """Refused with NO_NODE when it is not there."""
        return self._ask(wire.exists(path))

    def children(self, path: str) -> "asyncio.Future[tuple[list[str], Stat]]":
        return self._ask(wire.children(path))

    def multi(self, ops: list[Op]) -> "asyncio.Future[Any]":
        return self._ask(wire.multi(ops))

    def watch(self, path: str, mode: int) -> "asyncio.Future[None]":
        return self._ask(wire.add_watch(path, mode))

    def unwatch(self, path: str) -> "asyncio.Future[None]":
        return self._ask(wire.remove_watches(path))

    def flush(self) -> None:
        """Send now what was asked; otherwise it goes out at the end of this turn of the event loop."""
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and unsent:
            self.turn += 1
            self._sent_us = self._clock.monotonic_us()
            self._transport.write(b"".join(unsent))

    # --- life ---

    async def greet(self, user: str, password: str) -> None:
        """Open the session, and say who we are."""
        assert self._transport is not None
        self._transport.write(wire.hello(SESSION_MS))
        self.session = await self._welcome
        if self.session.timeout_ms <= 0:
            raise Lost("ZooKeeper refused the session")
        self._timeout_us = self.session.timeout_ms * 1000
        self._sent_us = self._clock.monotonic_us()
        if user or password:
            self._transport.write(wire.auth(user, password))
        self._ticking = self._loop.call_later(TICK_S, self._tick)

    async def close(self) -> None:
        """End the session, so that the server need not keep it; not for long."""
        if not self.lost:
            self.send(Op(wire.CLOSE, b""), lambda _: None)
            try:
                async with asyncio.timeout(1):
                    await self.idle.wait()
            except TimeoutError:
                pass
        self.abort("the store was closed")

    def abort(self, why: str) -> None:
        if not self.lost:
            self._why = why
            if self._transport is not None:
                self._transport.abort()
            self._end()

    def _tick(self) -> None:
        """Is it alive? What is overdue at two looks is: one alone may come from a pause of our own."""
        now_us = self._clock.monotonic_us()
        waits_for: object = None
        if self._asked and now_us - self._asked[0][2] > ANSWER_WITHIN_US:
            waits_for = self._asked[0]
        elif self._pinged_us and now_us - self._pinged_us > ANSWER_WITHIN_US:
            waits_for = self._pinged_us
        if waits_for is not None and waits_for == self._overdue:
            self.abort("ZooKeeper did not answer in time")
            return
        self._overdue = waits_for
        if now_us - self._sent_us > self._timeout_us // 4 and not self._pinged_us and self._transport is not None:
            self._sent_us = self._pinged_us = now_us
            self._transport.write(wire.packet(wire.PING_XID, Op(wire.PING, b"")))
        self._ticking = self._loop.call_later(TICK_S, self._tick)

    # --- what comes ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """One for all that comes: asyncio would map a quarter of a megabyte anew for each answer, and unmap it."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        unread = self._unread
        unread += self._room[:nbytes]
        at, end = 0, len(unread)
        while end - at >= 4:
            length = int.from_bytes(unread[at : at + 4], "big", signed=True)
            if not 0 <= length <= MAX_ANSWER:
                self.abort("what answers there is no ZooKeeper server")
                return
            if end - at - 4 < length:
                break
            self._received(bytes(unread[at + 4 : at + 4 + length]))
            at += 4 + length
            if self.lost:
                return
        del unread[:at]
        if not self._asked:
            self.idle.set()

    def _received(self, raw: bytes) -> None:
        if not self._welcome.done():
            self._welcome.set_result(wire.read_welcome(raw))
            return
        xid, error = wire.read_reply(raw)
        if xid == wire.EVENT_XID:
            self._on_event(*wire.read_event(raw))
        elif xid == wire.PING_XID:
            self._pinged_us = 0
        elif xid == wire.AUTH_XID:
            if error:
                self.abort("ZooKeeper refused user and password")
        else:
            kind, heard, _ = self._asked.popleft()
            heard(_answer(kind, error, raw))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.lost:
            self._why = f"the connection to ZooKeeper broke: {exc}"
        self._end()

    def _end(self) -> None:
        if self.lost:
            return
        self.lost = True
        if self._ticking is not None:
            self._ticking.cancel()
        if not self._welcome.done():
            self._welcome.set_exception(Lost(self._why))
            self._welcome.exception()
        self._unsent.clear()
        asked, self._asked = self._asked, deque()
        for _, heard, _ in asked:
            heard(Lost(self._why))
        self.idle.set()
        self._on_lost(self._why)


def _answer(kind: int, error: int, raw: bytes) -> object:
    if error:
        return Refused(error)
    try:
        return wire.read_answer(kind, raw)
    except Refused as refused:
        return refused


async def connect(
    address: tuple[str, int], make: Callable[[], Connection], user: str, password: str, within_s: float
) -> Connection:
    """A connection with an open session. Lost or OSError when that fails, TimeoutError when it takes too long."""
    connection = make()
    try:
        async with asyncio.timeout(within_s):
            await asyncio.get_running_loop().create_connection(lambda: connection, *address)
            await connection.greet(user, password)
    except BaseException:
        connection.abort("the session could not be opened")
        raise
    return connection
