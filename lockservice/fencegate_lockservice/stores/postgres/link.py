"""A connection to PostgreSQL that is made again when it breaks, and says whether a statement was sent."""

import asyncio
import contextlib
import logging
import os
import select
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import AsyncConnection, pq
from psycopg.sql import Composed

from fencegate.clock import Clock
from fencegate.core.ports import Unavailable
from fencegate_lockservice.stores.server_time import ServerTime

ANSWER_WITHIN_S = 5.0
RECONNECT_WITHIN_S = 1.0
"""How long a call waits for a connection that has just been lost; no longer when the server is known to be away."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
CLOSE_WITHIN_S = 0.3

log = logging.getLogger("fencegate.store.postgresql")

Row = tuple[Any, ...]
Connection = AsyncConnection[Row]
Query = LiteralString | Composed
Connect = Callable[[], Awaitable[Connection]]
CLOCK: LiteralString = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


class Refused(Exception):
    """The server answered with an error: the statement was undone."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Cut(Exception):
    """The statement was sent, and no answer came: it may have been carried out."""


class Link:
    """One connection, used by one task at a time. `silent` is told when the server did not answer in time."""

    def __init__(
        self, connect: Connect, server: str, time: ServerTime, clock: Clock, silent: Callable[[], None]
    ) -> None:
        self._make = connect
        self._server = server
        self._time = time
        self._clock = clock
        self._silent = silent
        self._connection: Connection | None = None
        self._fresh: Connection | None = None
        self._using = asyncio.Lock()
        self._connecting: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._patient = True
        self._trouble = "no answer"
        self._closed = False

    async def open(self) -> None:
        """Connect for the first time; whatever goes wrong is raised."""
        self._connection = await self._connect()

    async def ask(self, query: Query, arguments: Sequence[Any], *, timed: bool = False) -> list[Row]:
        """Run one statement by itself. Unavailable when it was not sent; Refused or Cut when it was.

        With `timed`, the first column of its first row, if there is one, is the server's time.
        """
        async with self._using:
            connection = await self._connected()
            timer = asyncio.get_running_loop().call_later(ANSWER_WITHIN_S, self._silent)
            try:
                sent_us = self._clock.monotonic_us()
                rows = await (await connection.execute(query, arguments)).fetchall()
                if timed and rows:
                    self._time.heard(sent_us, rows[0][0])
                return rows
            except (psycopg.Error, OSError, UnicodeError) as error:
                raise self._judged(connection, error) from None
            except BaseException:  # left in the middle of an answer: it is of no use to the next one
                self._drop(connection)
                raise
            finally:
                timer.cancel()

    def suspect(self) -> None:
        """The server has been silent: who waits hears so now, and who comes before it is back hears so at once."""
        self._patient = False
        if self._connection is not None:
            cut(self._connection)
            if not self._using.locked():
                self._drop(self._connection)
                self._begin_to_connect()

    async def close(self) -> None:
        self._closed = True
        if self._fresh is not None:
            cut(self._fresh)
        if self._connecting is not None:  # it had better end by itself: a driver that is cancelled may leave a socket
            await asyncio.wait({self._connecting}, timeout=CLOSE_WITHIN_S)
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        if self._connection is not None:
            self._drop(self._connection)

    async def _connected(self) -> Connection:
        """The connection, as good as can be known; Unavailable while there is none."""
        if self._connection is not None and _is_broken(self._connection):
            self._drop(self._connection)
        if self._connection is None and not self._closed:
            self._begin_to_connect()
            if self._patient:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RECONNECT_WITHIN_S):
                        await self._tried.wait()
        if self._connection is None:
            self._patient = False
            raise Unavailable("the store is closed" if self._closed else f"{self._server}: {self._trouble}")
        return self._connection

    def _judged(self, connection: Connection, error: Exception) -> Exception:
        idle = pq.TransactionStatus.IDLE
        if not _is_broken(connection) and connection.pgconn.transaction_status == idle:
            # The server has said that it is ready for the next one, or never heard of this one.
            diagnosis = error.diag if isinstance(error, psycopg.Error) else None
            said = diagnosis.message_primary if diagnosis is not None else None
            return Refused((diagnosis.sqlstate if diagnosis is not None else None) or "", said or in_one_line(error))
        self._trouble = in_one_line(error)
        self._drop(connection)
        self._begin_to_connect()
        return Cut(f"{self._server}: {self._trouble}")

    def _drop(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
        connection.pgconn.finish()

    def _begin_to_connect(self) -> None:
        if not self._closed and self._connecting is None:
            self._tried.clear()
            self._connecting = asyncio.get_running_loop().create_task(self._keep_connecting())

    async def _keep_connecting(self) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while not self._closed:
                try:
                    self._connection = await self._connect()
                    self._patient = True
                    return
                except (psycopg.Error, OSError) as error:
                    self._trouble = in_one_line(error)
                    log.warning("%s can't be reached: %s", self._server, self._trouble)
                self._tried.set()
                self._patient = False
                await asyncio.sleep(pause_s * (0.5 + self._clock.jitter()))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._connecting = None
            self._tried.set()

    async def _connect(self) -> Connection:
        self._fresh = connection = await self._make()
        timer = asyncio.get_running_loop().call_later(ANSWER_WITHIN_S, cut, connection)
        try:
            sent_us = self._clock.monotonic_us()
            row = await (await connection.execute("SELECT " + CLOCK)).fetchone()
            assert row is not None
            self._time.forget()  # it may be another server than before
            self._time.heard(sent_us, row[0])
        except BaseException:
            connection.pgconn.finish()
            raise
        finally:
            self._fresh = None
            timer.cancel()
        return connection


def _is_broken(connection: Connection) -> bool:
    """Whether an idle connection is no longer one: the server says nothing by itself but farewell."""
    if connection.closed or connection.pgconn.status != pq.ConnStatus.OK:
        return True
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def cut(connection: Connection) -> None:
    """Shut the socket down: the driver sees that, and raises. Cancelling it instead may wait for the server."""
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
