"""The line to one Redis node: commands go out together at the end of a turn of the event loop, answers come in order.

A command that can't be sent, or is not answered, raises `NodeDown`. Whoever asks never waits for a node alone: a
majority of them is enough.
"""

import asyncio
import hashlib
import logging
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from typing import Any, cast

import hiredis

from fencegate.clock import Clock
from fencegate.redis_acl import is_forbidden, is_login_refused, is_not_allowed, lacking
from fencegate_lockservice.stores.redlock.keys import Keys
from fencegate_lockservice.stores.redlock.url import Seat, Settings

CONNECT_WITHIN_S = 3.0
ANSWER_WITHIN_S = 4.0
FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
MAX_UNANSWERED = 20_000
MAX_UNSENT_BYTES = 64_000_000
RECEIVED_AT_ONCE = 64 * 1024

log = logging.getLogger("fencegate.store.redlock")

Part = str | bytes | int

_FORBIDDEN = "it does not allow what votes need"
_WHOLE_LINE = "the whole line of ACL SETUSER is in docs/stores/redlock.md"
_NOT_YET = object()
_pack: Callable[[tuple[Part, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment] # its types know of one part


class NodeDown(Exception):
    """The node can't be reached, does not answer, or refuses."""


class Refusal(NodeDown):
    """It answered that it won't."""


class NodeRefuses(NodeDown):
    """It is there, and does not let the user of the URL in, or not do what is needed: no outage."""


class Script:
    """A Lua script beside this module, known to a node by its digest."""

    def __init__(self, name: str) -> None:
        self.text = resources.files(__package__).joinpath(f"{name}.lua").read_text()
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


PREPARE, ACCEPT, READ, NAMES, COPY, MEMBER, WITNESS, RIGHTS = SCRIPTS = tuple(
    Script(name) for name in ("prepare", "accept", "read", "names", "copy", "member", "witness", "rights")
)


class Line(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)
        self._feed = cast(Callable[[memoryview, int, int], None], self._reader.feed)  # it takes any buffer
        self._room = memoryview(bytearray(RECEIVED_AT_ONCE))  # of which asyncio's TLS takes slices, to write into
        self._transport: asyncio.Transport | None = None
        self._unanswered: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self.lost: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has one of its own

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def get_buffer(self, sizehint: int) -> memoryview:
        """One for all that comes: asyncio would map a quarter of a megabyte anew for each answer, and unmap it."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._feed(self._room, 0, nbytes)
            while (answer := self._reader.gets()) is not _NOT_YET:
                future, _ = self._unanswered.popleft()
                if future.done():
                    continue
                if isinstance(answer, hiredis.ReplyError):
                    _fail(future, str(answer), Refusal)
                    self._refused(str(answer))
                else:
                    future.set_result(answer)
        except (hiredis.ProtocolError, IndexError):
            self.abort()

    def _refused(self, error: str) -> None:
        if error.startswith(("NOSCRIPT", "LOADING", "NOAUTH", "READONLY", "MASTERDOWN")):
            self.abort()  # connect anew: scripts are loaded then, and another server may be there

    def call(self, *command: Part) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done() or self._transport is None:
            return _fail(future, "the line is cut")
        if len(self._unanswered) >= MAX_UNANSWERED or self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            return _fail(future, "too much is under way")
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(_pack(command))
        self._unanswered.append((future, self._loop.time()))
        return future

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and not self.lost.done():
            self._transport.write(b"".join(unsent))

    def is_silent_for(self, seconds: float) -> bool:
        return bool(self._unanswered) and self._loop.time() - self._unanswered[0][1] > seconds

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _end(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        unanswered, self._unanswered = self._unanswered, deque()
        for future, _ in unanswered:
            if not future.done():
                _fail(future, "the line was cut")


class Node:
    """One node of the store: connected again and again, for as long as it is wanted.

    Behind a new line there may be a node that was restored and forgot its votes. So a line carries votes and what is
    read of registers only after it was `admitted`, when somebody has looked at what the node says over it.
    """

    def __init__(self, number: int, seat: Seat, settings: Settings, clock: Clock, moved: Callable[[], None]) -> None:
        self.number = number
        self.seat = seat
        self.error = "it was not reached yet"
        self.refuses = False
        """Whether `error` is that it does not let us in."""
        self._settings = settings
        self._clock = clock
        self._moved = moved
        self._line: Line | None = None
        self._admitted: Line | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        return self._line is not None

    @property
    def line(self) -> Line | None:
        return self._line

    @property
    def admitted(self) -> bool:
        return self._line is not None and self._admitted is self._line

    def admit(self, line: Line | None) -> None:
        """Let it vote over this line, unless there is another one by now."""
        self._admitted = line if line is self._line else None

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        self._drop()

    def _drop(self) -> None:
        line, self._line, self._admitted = self._line, None, None
        if line is not None:
            line.abort()

    def call(self, *command: Part) -> "asyncio.Future[Any]":
        if self._line is None:
            return _fail(asyncio.get_running_loop().create_future(), self.error)
        return self._line.call(*command)

    def run(self, script: Script, keys: list[str], *arguments: Part) -> "asyncio.Future[Any]":
        return self.call("EVALSHA", script.digest, len(keys), *keys, *arguments)

    def vote(self, script: Script, keys: list[str], *arguments: Part) -> "asyncio.Future[Any]":
        """Run a script that counts on what the node remembers."""
        if self._line is not None and not self.admitted:
            return _fail(asyncio.get_running_loop().create_future(), "it was not looked at since it is back")
        return self.run(script, keys, *arguments)

    async def connect(self) -> Line:
        """A line of its own, ready to be used: for commands that hold one up."""
        loop = asyncio.get_running_loop()
        seat, settings = self.seat, self._settings
        tls = ssl.create_default_context() if settings.tls else None
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                _, line = await loop.create_connection(Line, seat.host, seat.port, ssl=tls)
                try:
                    if settings.user or settings.password:
                        await self._log_in(line, settings.password)
                    if settings.database:
                        await line.call("SELECT", settings.database)
                    await asyncio.gather(*(line.call("SCRIPT", "LOAD", script.text) for script in SCRIPTS))
                    await self._check_rights(line)
                except BaseException:
                    line.abort()
                    raise
        except Refusal as error:
            if is_forbidden(str(error)):
                raise NodeRefuses(f"{_FORBIDDEN}: {error}; {_WHOLE_LINE}") from None
            if is_not_allowed(str(error)):
                raise NodeRefuses(f"it wants a password: put it into the URL ({error})") from None
            raise
        except (OSError, TimeoutError) as error:
            raise NodeDown(str(error) or "it does not answer") from None
        return line

    async def _log_in(self, line: Line, password: str) -> None:
        try:
            await line.call("AUTH", *([self._settings.user] if self._settings.user else []), password)
        except Refusal as error:  # its whole text may hold what was sent
            why = f"it refuses the user or the password ({str(error).partition(' ')[0]})"
            raise (NodeRefuses(why) if is_login_refused(str(error)) else NodeDown(why)) from None

    async def _check_rights(self, line: Line) -> None:
        failed = await line.call("EVALSHA", RIGHTS.digest, 0, *Keys(self._settings.prefix).looked_at)
        if forbidden := lacking(failed, self._settings.user, [self._settings.prefix]):
            raise NodeRefuses(f"{_FORBIDDEN} {forbidden}; {_WHOLE_LINE}")

    async def _run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                line = await self.connect()
            except NodeDown as error:
                refused, self.refuses = self.refuses, isinstance(error, NodeRefuses)
                self.error = str(error)
                if self.refuses and not refused:
                    log.error("%s: %s", self.seat.name, error)
                    self._moved()
                await asyncio.sleep(backoff_s * (0.5 + self._clock.jitter()))
                backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
                continue
            backoff_s = FIRST_BACKOFF_S
            self._line, self.refuses = line, False
            self._moved()
            await _until_lost(line)  # cancelled with all tasks of a loop that ends: those who release still need it
            self._drop()
            self.error = "the line was cut"
            log.warning("the line to %s was cut", self.seat.name)
            self._moved()


def _fail(future: "asyncio.Future[Any]", error: str, kind: type[NodeDown] = NodeDown) -> "asyncio.Future[Any]":
    future.set_exception(kind(error))
    future.exception()  # whoever asked may have its majority already, and not look
    return future


async def _until_lost(line: Line) -> None:
    while not line.lost.done():
        await asyncio.wait([line.lost], timeout=0.5)
        if line.is_silent_for(ANSWER_WITHIN_S):
            line.abort()
