"""Connections to a MySQL server: made when they are needed, dropped at the first doubt.

When the server does not answer, or can't be connected to, everybody is told so at once from then on, and a task in the
background tries to connect, for ever, until it can.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import aiomysql
import pymysql

from fencegate.clock import Clock
from fencegate.core.ports import Unavailable
from fencegate_lockservice.stores.mysql.address import Address
from fencegate_lockservice.stores.mysql.statements import sql
from fencegate_lockservice.stores.server_time import ServerTime

CONNECT_WITHIN_S = 3.0
TURNS_AT_ONCE = 2
IDLE_S = 15.0
"""A connection that was idle for longer is not trusted: the server, or something on the way, may have dropped it."""
BACKOFF_S = (0.05, 1.0)
READ_ONLY = {1290, 1792, 1836}
"""Said by a server that takes no writes (any more): what it knows of the locks may be old."""

_REFUSALS = {
    1044: "the user of the URL may not use this database",
    1045: "it refuses the user or the password of the URL",
    1049: "it has no database of this name: CREATE DATABASE first",
    1130: "it lets nobody in from this machine",
    1698: "it refuses the user or the password of the URL",
    1820: "the password of its user has expired",
    1862: "the password of its user has expired",
    3118: "the account of its user is locked",
    3159: "it wants TLS: ?tls=verify",
    4151: "the account of its user is locked",
}

log = logging.getLogger("fencegate.store.mysql")

Rows = Sequence[tuple[Any, ...]]


class Refused(Exception):
    """The server answered one of the statements with an error, and ran none of those after it."""

    def __init__(self, statement: int, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.statement = statement
        self.code = code


class Broken(Exception):
    """The statements were sent, and no answer came: some of them, or all, may have run."""

    def __init__(self, text: str, *, silent: bool = False) -> None:
        super().__init__(text)
        self.silent = silent
        """Whether the connection just said nothing, which others will not do either."""


class Line:
    """One connection, used by one at a time."""

    def __init__(self, connection: Any, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._used_us = clock.monotonic_us()
        self.is_outdated = False
        """Whether it leads to a server that is not, or may not be, the one that takes the commits."""

    @property
    def is_fresh(self) -> bool:
        """Whether it is open as far as can be seen, and was used not long ago."""
        if self._connection.closed or self._connection._reader.at_eof():
            return False
        return self._clock.monotonic_us() - self._used_us < IDLE_S * 1_000_000

    async def run(self, statements: Sequence[str], within_s: float) -> list[Rows]:
        """Send all of them in one packet: the server runs one after the other, and stops at the first error.

        Gives the rows of each. Raises Refused or Broken; the connection is closed after the latter.
        """
        answers: list[Rows] = []
        try:
            async with asyncio.timeout(within_s), self._connection.cursor() as cursor:
                await cursor.execute(";".join(statements))
                answers.append(await cursor.fetchall())
                while await cursor.nextset():
                    answers.append(await cursor.fetchall())
        except TimeoutError:
            self.close()
            raise Broken(f"it did not answer within {within_s:.0f} s", silent=True) from None
        except pymysql.err.MySQLError as error:
            code, text = _read_error(error)
            if code < 2000 or code >= 3000:  # 2000 to 2999 are the client's own
                self.is_outdated |= code in READ_ONLY
                raise Refused(len(answers), code, text) from None
            self.close()
            raise Broken(text) from None
        except Exception as error:  # also whatever the driver stumbles over in bytes that no MySQL server sends
            self.close()
            raise Broken(f"{type(error).__name__}: {error}"[:200]) from None
        self._used_us = self._clock.monotonic_us()
        return answers

    def close(self) -> None:
        self._connection.close()

    async def say_goodbye(self) -> None:
        """So that the server does not log an aborted connection."""
        with suppress(Exception):
            async with asyncio.timeout(1.0):
                await self._connection.ensure_closed()
        self.close()


class Lines:
    """Some connections. How many there are is bounded by who uses them: each user has one at a time, and those of whom
    there may be any number take turns."""

    def __init__(self, address: Address, clock: Clock, time: ServerTime) -> None:
        self._address = address
        self._clock = clock
        self._time = time
        self._free: list[Line] = []
        self._used: set[Line] = set()
        self._turns = asyncio.Semaphore(TURNS_AT_ONCE)
        self._closed = False
        self._down = ""
        self._reconnecting: asyncio.Task[None] | None = None
        self._identity = ""
        self.servers_seen = 0
        """Rises when another server answers under the same address: what is known of the last one may not hold."""

    def line(self) -> "_Lent":
        """A connection for as long as the block runs. It is dropped when the block fails, however that may be."""
        return _Lent(self)

    async def lend(self) -> Line:
        line = await self._take()
        self._used.add(line)
        return line

    async def give_back(self, line: Line, error: BaseException | None) -> None:
        try:
            if isinstance(error, Broken):
                self._distrust()
                if error.silent:
                    self._is_down(f"{self._address.server} does not answer")
            elif error is not None:
                line.close()
                if line.is_outdated:
                    self._outdate()
            elif line.is_outdated:
                line.close()
            elif self._closed:
                await line.say_goodbye()
            else:
                self._free.append(line)
        finally:
            self._used.discard(line)

    async def run(self, statements: Sequence[str], within_s: float) -> list[Rows]:
        """For what can be asked twice: Unavailable when no answer comes, or an error."""
        try:
            async with self.line() as line:
                return await line.run(statements, within_s)
        except (Refused, Broken) as error:
            raise Unavailable(f"{self._address.server}: {error}") from None

    async def run_in_turn(self, statements: Sequence[str], within_s: float) -> list[Rows]:
        """The same, for what any number of clients may ask at once: a server has connections for others too."""
        async with self._turns:
            return await self.run(statements, within_s)

    async def close(self) -> None:
        """Drop all connections, also those in use: whoever uses one is told that it broke."""
        self._closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
        free, self._free = self._free, []
        for line in list(self._used):
            line.close()
        await asyncio.gather(*(line.say_goodbye() for line in free))
        await asyncio.sleep(0)  # a socket is closed in the next turn of the loop

    async def _take(self) -> Line:
        if self._closed:
            raise Unavailable("the store is closed")
        while self._free:
            line = self._free.pop()
            if line.is_fresh:
                return line
            line.close()
        if self._down:
            raise Unavailable(self._down)
        try:
            return await self._connect()
        except Unavailable as error:
            self._is_down(str(error))
            raise

    def _distrust(self) -> None:
        """One connection broke: the others are likely to have, and would make the next commits ambiguous."""
        for line in self._free:
            line.close()
        self._free.clear()

    def _outdate(self) -> None:
        """Another server takes the commits now: those who were connected to the last one would be told of locks as
        they were. Connections in use go when they are given back."""
        self._distrust()
        for line in self._used:
            line.is_outdated = True

    def _is_down(self, why: str) -> None:
        if not self._down and not self._closed:
            log.warning("%s", why)
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())
        self._down = why

    async def _reconnect(self) -> None:
        pause_s, most_s = BACKOFF_S
        while self._down:
            await asyncio.sleep(pause_s * (0.5 + self._clock.jitter() / 2))
            pause_s = min(pause_s * 2, most_s)
            try:
                self._free.append(await self._connect())
            except Unavailable as error:
                self._down = str(error)
            else:
                self._down = ""
                log.info("%s answers again", self._address.server)

    async def _connect(self) -> Line:
        address = self._address
        connection = aiomysql.Connection(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            db=address.database,
            unix_socket=address.socket,
            ssl=address.tls,
            charset="utf8mb4",
            autocommit=None,
            program_name="fencegate",
        )
        line = Line(connection, self._clock)
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await connection.ping()  # which connects; `aiomysql.connect` leaks the socket when it is cancelled
                if address.tls is not None and not connection._secure:
                    raise Unavailable(f"{address.server} has no TLS, and the URL asks for it")
                sent_us = self._clock.monotonic_us()
                *_, ((identity, now_us),) = await line.run(
                    [sql("session"), sql("isolation"), sql("identity")], CONNECT_WITHIN_S
                )
        except TimeoutError:
            line.close()
            raise Unavailable(f"{address.server} can't be reached within {CONNECT_WITHIN_S:.0f} s") from None
        except Unavailable:
            line.close()
            raise
        except Exception as error:  # of the driver too, when what answers does not speak as a MySQL server does
            line.close()
            raise _cannot_connect(address, error) from None
        except BaseException:
            line.close()
            raise
        if identity != self._identity:
            self._identity = identity
            self.servers_seen += 1
            self._outdate()
            self._time.forget()
        self._time.heard(sent_us, now_us)
        return line


class Misconfigured(Unavailable):
    """Reached, and refused for what the URL says: no use to go on at start; later it may be put right."""


def _cannot_connect(address: Address, error: Exception) -> Unavailable:
    if isinstance(error, Refused):
        kind = Misconfigured if error.code in _REFUSALS else Unavailable
        return kind(f"{address.server} can't be used: {_REFUSALS.get(error.code, error)}")
    if not isinstance(error, pymysql.err.MySQLError | Broken | OSError | RuntimeError):
        return Unavailable(f"{address.server} does not answer as a MySQL server does ({type(error).__name__})")
    code, text = _read_error(error)
    if code in _REFUSALS:
        return Misconfigured(f"{address.server} can't be used: {_REFUSALS[code]}")
    if "'cryptography'" in text:
        return Misconfigured(
            f"{address.server} asks for a password in a way that needs TLS (?tls=verify), or: pip install cryptography"
        )
    cause = f" ({error.__cause__})"[:200] if error.__cause__ is not None else ""
    return Unavailable(f"{address.server} can't be reached: {text}{cause}")


def _read_error(error: Exception) -> tuple[int, str]:
    """Drivers put a number first; the words of the server may quote a statement, so only their beginning is kept."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 2000
    text = str(error.args[-1]) if error.args else type(error).__name__
    return code, text[:200]


class _Lent:
    """A connection in use. Not a generator: those that are open are closed when their event loop ends, under whoever
    gives a lock back at that moment."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._line: Line | None = None

    async def __aenter__(self) -> Line:
        self._line = await self._lines.lend()
        return self._line

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._line is not None, "left without having been entered"
        await self._lines.give_back(self._line, error)
