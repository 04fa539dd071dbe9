"""A connection to Redis on which many commands are under way at once: answers come in the order of the commands.

There is no task and no timer for each of them. What is asked while others are under way is written in one go, at the
end of the turn of the event loop. A connection that does not answer in time is dropped for good, so that no answer is
ever taken for that of another command.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import hiredis
import msgspec

from fencegate.clock import Clock
from fencegate.core.ports import Ambiguous, Unavailable
from fencegate.redis_acl import is_login_refused
from fencegate_lockservice.stores.redis.awake import Awake
from fencegate_lockservice.stores.redis.url import Address

ANSWER_WITHIN_US = 5_000_000
CONNECT_WITHIN_S = 5.0
LOOK_EVERY_S = 0.5
MAX_UNDER_WAY = 20_000
RECEIVED_AT_ONCE = 64 * 1024
MAX_BYTES = 256 * 1024 * 1024

log = logging.getLogger("fencegate.store.redis")

pack = cast(Callable[[tuple[str | bytes | int, ...]], bytes], hiredis.pack_command)


class Overloaded(Unavailable):
    """It was not sent, since too much is under way already: that says nothing of the server."""


class Asked(msgspec.Struct, eq=False, gc=False):
    """A command, and who hears the answer: `hear` is given this and the answer (or an hiredis.ReplyError).

    When the connection breaks before the answer, one that `writes` is Ambiguous. Each kind says where its end is
    awaited."""

    packed: bytes
    hear: "Hear"
    sent_us: int
    writes: bool
    awaited: Any
    repeated: bool = False

    def done(self, result: Any = None) -> None:
        if not self.awaited.done():
            self.awaited.set_result(result)

    def failed(self, error: Exception) -> None:
        if not self.awaited.done():
            self.awaited.set_exception(error)


Hear = Callable[[Asked, Any], None]


def hear_plainly(asked: Asked, answer: Any) -> None:
    """The answer as it is; an error of the server is raised."""
    if isinstance(answer, hiredis.ReplyError):
        asked.failed(answer)
    else:
        asked.done(answer)


class LoginRefused(Unavailable):
    """The user or the password of the URL is not right: no outage."""


class Line(asyncio.BufferedProtocol):
    """See the head of this file. `lost` is called once, when it is of no use any more."""

    def __init__(self, clock: Clock, lost: Callable[["Line"], None]) -> None:
        self._clock = clock
        self._lost = lost
        self._reader = hiredis.Reader()
        self._feed = cast(Callable[[memoryview, int, int], None], self._reader.feed)  # it takes any buffer
        self._buffer = memoryview(bytearray(RECEIVED_AT_ONCE))  # of which asyncio's TLS takes slices, to write into
        self._transport: asyncio.Transport | None = None
        self._sent: deque[Asked] = deque()
        self._gathered: list[Asked] = []
        self._bytes = 0
        self._flushing = False
        self._full = False
        self._loop = asyncio.get_running_loop()
        self._awake = Awake(self._loop.call_soon, clock, self._sent)
        self._looking: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self.why = ""
        """Why it is of no use any more; empty while it is."""

    # --- to the server ---

    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._sent and not self._gathered

    def ask(self, packed: bytes, future: "asyncio.Future[Any]", hear: Hear) -> None:
        """Send a packed command that writes nothing."""
        asked = Asked(packed, hear, self._clock.monotonic_us(), False, future)
        if self._is_closed():
            asked.failed(self._refusal())
        elif self.is_idle():  # nobody to go with: the turn need not end
            self.send(asked)
        else:
            self._bytes += len(packed)
            self._gathered.append(asked)
            if not self._flushing:
                self._flushing = True
                self._loop.call_soon(self._flush)

    def send(self, asked: Asked) -> None:
        """Write it now, after what was gathered before it. Whoever waits for its end hears of it later, also when it
        can't be sent."""
        if self._is_closed():
            self._loop.call_soon(asked.failed, self._refusal())
            return
        self._bytes += len(asked.packed)
        if self._gathered or self._full:
            self._gathered.append(asked)
            self._flush()
        else:
            self._sent.append(asked)
            assert self._transport is not None
            self._transport.write(asked.packed)
            if asked.writes:
                self._awake.stay(asked.sent_us)

    def _is_closed(self) -> bool:
        """Whether nothing can be sent now: it is of no use any more, or too much is under way."""
        return bool(self.why) or self._bytes > MAX_BYTES or len(self._sent) + len(self._gathered) > MAX_UNDER_WAY

    def _refusal(self) -> Unavailable:
        return Unavailable(self.why) if self.why else Overloaded("too much waits for an answer of the store already")

    def again(self, asked: Asked) -> None:
        """Send it a second time: the server said that it has not run it."""
        asked.repeated = True
        self.send(asked)

    def call(self, *command: str | bytes | int) -> "asyncio.Future[Any]":
        """One command and its answer; hiredis.ReplyError when the server refuses it."""
        future = self._loop.create_future()
        self.ask(pack(command), future, hear_plainly)
        return future

    def _flush(self) -> None:
        self._flushing = False
        gathered = self._gathered
        if self._full or self.why or not gathered:
            return
        self._gathered = []
        self._sent += gathered
        assert self._transport is not None
        self._transport.write(b"".join([asked.packed for asked in gathered]))

    # --- from the server ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._looking = self._loop.call_later(LOOK_EVERY_S, self._look)

    def get_buffer(self, sizehint: int) -> memoryview:
        """One for all that comes: asyncio would map a quarter of a megabyte anew for each answer, and unmap it."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        gets, popleft, asked = self._reader.gets, self._sent.popleft, None
        try:
            self._feed(self._buffer, 0, nbytes)
            while not self.why and (answer := gets()) is not False:
                asked = popleft()
                self._bytes -= len(asked.packed)
                asked.hear(asked, answer)
        except Exception as error:  # after this no answer can be told from another
            log.exception("an answer of Redis can't be understood")
            self.drop(f"its answer can't be understood ({type(error).__name__})")
            if asked is not None:
                asked.failed(Ambiguous(self.why))
        if self._idle is not None:
            self._rest()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.drop(f"the connection was lost ({error})" if error is not None else "the connection was closed")
        if not self._gone.done():
            self._gone.set_result(None)

    def _look(self) -> None:
        """What was asked first has waited longest."""
        self._looking = self._loop.call_later(LOOK_EVERY_S, self._look)
        first = self._sent[0] if self._sent else self._gathered[0] if self._gathered else None
        if first is not None and self._clock.monotonic_us() - first.sent_us > ANSWER_WITHIN_US:
            self.drop(f"no answer came within {ANSWER_WITHIN_US // 1_000_000} s")

    # --- the end ---

    def drop(self, why: str) -> None:
        """Never use it again: what was sent has an unknown fate, what was not sent has none."""
        if self.why:
            return
        self.why = why
        if self._looking is not None:
            self._looking.cancel()
        if self._transport is not None:
            self._transport.abort()
        sent, gathered = list(self._sent), self._gathered
        self._gathered = []
        self._sent.clear()
        for asked in sent:
            asked.failed(Ambiguous(why) if asked.writes else Unavailable(why))
        for asked in gathered:
            asked.failed(Unavailable(why))
        self._rest()
        self._lost(self)

    def _rest(self) -> None:
        if self._idle is not None and not self._idle.done() and not self._sent and not self._gathered:
            self._idle.set_result(None)

    async def finish(self, within_s: float) -> None:
        """Wait for what is under way, but not for long; then hang up."""
        if not self.why and (self._sent or self._gathered):
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=within_s)
        await self.hang_up()

    async def hang_up(self) -> None:
        self.drop("the store is closed")
        if self._transport is not None:
            await asyncio.wait([self._gone], timeout=1.0)


async def dial(address: Address, clock: Clock, lost: Callable[[Line], None]) -> Line:
    """A connection on which one may speak. Unavailable when there is none to be had."""
    line = Line(clock, lost)
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            await asyncio.get_running_loop().create_connection(
                lambda: line, address.host, address.port, ssl=address.tls
            )
            await _greet(line, address)
    except BaseException as error:
        with suppress(Exception):
            await line.hang_up()
        if isinstance(error, hiredis.ReplyError | Unavailable):
            kind = LoginRefused if isinstance(error, LoginRefused) else Unavailable
            raise kind(f"{address}: {error}") from None
        if isinstance(error, TimeoutError):
            raise Unavailable(f"{address} does not answer") from None
        if isinstance(error, OSError | ValueError):
            raise Unavailable(f"{address} can't be reached: {error}") from None
        raise
    return line


async def _greet(line: Line, address: Address) -> None:
    if address.username or address.password:
        user = (address.username,) if address.username else ()
        try:
            await line.call("AUTH", *user, address.password)
        except hiredis.ReplyError as error:  # its whole text may hold what was sent
            kind = LoginRefused if is_login_refused(str(error)) else Unavailable
            raise kind(f"the server refuses the user or the password ({str(error).partition(' ')[0]})") from None
    if address.db:
        await line.call("SELECT", address.db)
    with suppress(hiredis.ReplyError):  # some proxies don't know it, and it is for people only
        await line.call("CLIENT", "SETNAME", "fencegate")
