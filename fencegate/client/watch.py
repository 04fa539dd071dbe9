"""Watching locks: what happens to them, in order and once each, across whatever becomes of the connection."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from fencegate.client.attempt import WORTH_REPEATING, pause_s
from fencegate.client.connection import Connection
from fencegate.client.transport import Heard
from fencegate.core.errors import InvalidInput
from fencegate.core.names import check_lock_key, check_text
from fencegate.core.token import Token

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Something that happened to a lock.

    `kind` is `acquired`, `released`, `expired`, `renewed`, `forced`, `queued` or `revoked`; or `reset`, when what
    happened since the place asked for can't be told any more: look at the locks, and go on.
    """

    kind: str
    lock_key: str
    owner_id: str
    token: Token | None
    """None when somebody queues, who has none yet."""
    at: float
    """When, in Unix seconds."""
    reason: str | None
    id: int
    """Give it as `since` to go on after this event."""


class Watcher:
    """An async iterator of WatchEvent that finds its place again when the connection breaks.

    With `async with` it follows from there on; otherwise from the first event that is asked for. It may be cancelled
    while it waits (`asyncio.timeout`) and asked again: nothing is missed.
    """

    def __init__(self, connection: Connection, key: str | None, prefix: str | None, since: int | None) -> None:
        if key is not None and prefix is not None:
            raise InvalidInput("prefix", "can't be given beside a key")
        if since is not None and since < 0:
            raise InvalidInput("since", "must be the id of an event")
        self._connection = connection
        self._query: dict[str, str] = {}
        if key is not None:
            self._query["key"] = check_lock_key(key, "key")
        if prefix:
            self._query["prefix"] = check_text("prefix", prefix, 1024)
        self._place = since
        self._ahead: Heard | None = None
        self._stream: AsyncGenerator[Heard, None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading: asyncio.Future[Heard] | None = None
        self._closed = False
        self._met = False
        self._failures = 0
        connection.watchers.add(self)  # when it is whole: it is closed with the client

    @property
    def id(self) -> int | None:
        """Where it stands: what another watcher gives as `since` to go on from here. None before it has begun."""
        return self._place

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        event = await self.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next_event(self) -> WatchEvent | None:
        """The next one, however long it takes; None when the watcher is closed."""
        while not self._closed:
            heard = self._ahead or await self._hear()
            self._ahead = None
            if heard is None:
                break
            self._place = heard[0]
            if heard[1]:
                return _event(heard)
        return None

    async def begin(self) -> Self:
        """Follow from now on: returns when nothing that happens can be missed any more."""
        if self._ahead is None:
            self._ahead = await self._hear()
            if self._ahead is not None and not self._ahead[1]:
                self._place = self._ahead[0]
        return self

    async def aclose(self) -> None:
        """Stop watching; whoever waits for an event gets the end of the iteration."""
        self._closed = True
        if self._reading is not None:
            self._reading.get_loop().call_soon_threadsafe(self._reading.cancel)
        elif self._loop is asyncio.get_running_loop():  # a stream is closed where it was opened, or with its loop
            await self._drop()

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _hear(self) -> Heard | None:
        """What is told next; None when the watcher was closed meanwhile. Read in a task, which `aclose` can end."""
        if self._reading is not None:
            raise RuntimeError("this watcher is being read by another task already")
        reading = self._reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait([reading])
        except asyncio.CancelledError:
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled() and reading.exception() is None:
                self._ahead = reading.result()  # it came at this very moment
            raise
        finally:
            self._reading = None
        return None if reading.cancelled() else reading.result()

    async def _read(self) -> Heard:
        while True:
            try:
                if self._stream is None:
                    self._loop = asyncio.get_running_loop()
                    transport = await self._connection.transport()
                    since = {} if self._place is None else {"since": str(self._place)}
                    self._stream = transport.watch({**self._query, **since})
                heard = await anext(self._stream)
            except StopAsyncIteration:  # the server is stopping
                pass
            except WORTH_REPEATING:
                if not self._met:  # there may be nothing at that address: whoever asked should hear of it
                    self._stream = None
                    raise
            except BaseException:
                self._stream = None
                raise
            else:
                self._met, self._failures = True, 0
                return heard
            await self._drop()
            self._failures += 1
            await asyncio.sleep(pause_s(self._failures, self._connection.clock, LONGEST_PAUSE_S))

    async def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()


def _event(heard: Heard) -> WatchEvent:
    place, kind, content = heard
    data: dict[str, Any] = msgspec.json.decode(content)
    token = data.get("fencingToken")
    return WatchEvent(
        kind=kind,
        lock_key=data.get("lockKey", ""),
        owner_id=data.get("ownerId", ""),
        token=Token.parse(token) if token is not None else None,
        at=data.get("at", 0) / 1000,
        reason=data.get("reason"),
        id=place,
    )
