"""`GET /v1/watch`: the change log as server-sent events, one connection for each watcher.

A watcher that reads slowly fills its own connection, and then nothing is read from the log for it; one that reads
nothing for a while is cut off, and finds its place again by `Last-Event-ID`. Events are gathered for a moment, so that
a busy log costs a watcher some writes a second and not one for each event.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, Self

from fencegate.clock import Clock
from fencegate.core.errors import InvalidInput, MethodNotAllowed, RateLimited, ShuttingDown
from fencegate.web import Handler, Reply, Request
from fencegate.web.asgi import query_params
from fencegate_lockservice.watch import Batch, Wanted, place_of

MAX_WATCHERS = 1000
KEEP_ALIVE_US = 10_000_000
GATHER_S = 0.05
FULL = 100
RETRY_MS = 1000
PART_BYTES = 32 * 1024
STUCK_S = 30.0
BEGIN_WITHIN_S = 5.0
"""How long a watcher may leave a part of the stream unread."""
CUT_AFTER_S = 0.5
"""How long one may take to read the end of it."""

_PATH = b"/v1/watch"
_QUERY = frozenset({"key", "prefix", "since"})
_CONTENT_TYPE = b"text/event-stream; charset=utf-8"
# It closes when the stream ends, so that cutting it then can't hit another request of the same client.
_HEADERS = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"), (b"connection", b"close")]


class CanFollow(Protocol):
    def follow(self, wanted: Wanted) -> AsyncGenerator[Batch, None]: ...


class WatchRoutes:
    """Routes `/v1/watch`, and knows its open streams."""

    def __init__(self, watch: CanFollow, clock: Clock, max_watchers: int = MAX_WATCHERS) -> None:
        self._watch = watch
        self._clock = clock
        self._max_watchers = max_watchers
        self._streams: set[_Stream] = set()
        self._stopping = False

    def route(self, method: str, path: bytes) -> Handler | None:
        if path != _PATH:
            return None
        return self._open if method in ("GET", "HEAD") else _wrong_method

    def stop(self) -> None:
        """End every stream, now."""
        self._stopping = True
        for stream in list(self._streams):
            stream.end()

    async def _open(self, request: Request) -> Reply:
        wanted = _wanted(request)
        if self._stopping:
            raise ShuttingDown("this server is stopping; ask another, or come back in a moment")
        if request.method == "HEAD":
            return Reply(200, b"", list(_HEADERS), _CONTENT_TYPE)
        if len(self._streams) >= self._max_watchers:
            raise RateLimited(f"{self._max_watchers} watchers are served already; come back later, or ask another")
        stream = _Stream(self._watch.follow(wanted), request, self._clock, self._streams.discard)
        self._streams.add(stream)
        try:
            await stream.begin()
        except BaseException:
            await stream.aclose()
            raise
        return Reply(200, stream, list(_HEADERS), _CONTENT_TYPE)


def _wanted(request: Request) -> Wanted:
    wanted = Wanted.of(query_params(request.query, _QUERY))
    last = [value for value in request.headers(b"last-event-id") if value]
    if len(last) > 1:
        raise InvalidInput("lastEventId", "is given twice")
    return replace(wanted, since=place_of(last[0], "lastEventId")) if last else wanted


class _Stream:
    """What one watcher is sent, as an iterator of parts. `aclose` it, even when it was never begun."""

    def __init__(
        self,
        batches: AsyncGenerator[Batch, None],
        request: Request,
        clock: Clock,
        closed: Callable[["_Stream"], None],
    ) -> None:
        self._batches = batches
        self._request = request
        self._clock = clock
        self._closed = closed
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._coming: asyncio.Future[Batch] | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._parts = self._run()

    async def begin(self) -> None:
        """Know where it begins before the head of the answer is sent: whoever has that misses nothing from then on.
        A store that does not answer is waited for in the stream."""
        self._coming = asyncio.ensure_future(anext(self._batches))
        ends = (self._coming, self._over)
        await asyncio.wait(ends, timeout=BEGIN_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Asked for again only when the connection has taken the part before."""
        self._was_read()
        part = await anext(self._parts)
        self._unread = asyncio.get_running_loop().call_later(STUCK_S, self._request.abort)
        return part

    def end(self) -> None:
        self._hung_up()
        asyncio.get_running_loop().call_later(CUT_AFTER_S, self._request.abort)

    async def aclose(self) -> None:
        self._closed(self)
        self._was_read()
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.wait([self._coming])
        await self._parts.aclose()
        await self._batches.aclose()

    async def _run(self) -> AsyncGenerator[bytes, None]:
        gone = asyncio.ensure_future(self._request.disconnected())
        gone.add_done_callback(self._hung_up)
        place = begun = said = 0
        try:
            due_us = self._clock.monotonic_us() + KEEP_ALIVE_US
            while not self._over.done():
                batch = await self._next(due_us)
                if batch is not None:
                    place = batch.place
                    for part in _parts(batch):
                        yield part
                if batch is not None and not begun:
                    begun, said = 1, place
                    yield b"retry: %d\nid: %d\n\n" % (RETRY_MS, place)
                elif self._clock.monotonic_us() >= due_us:
                    # An id by itself is no event, but moves the place from which the watcher will go on.
                    yield b"id: %d\n\n" % place if place != said else b":\n\n"
                    said = place
                    due_us = self._clock.monotonic_us() + KEEP_ALIVE_US
                if batch is not None and batch.lines < FULL:  # else it has much to catch up with
                    await asyncio.wait([self._over], timeout=GATHER_S)
        finally:
            gone.cancel()

    async def _next(self, due_us: int) -> Batch | None:
        """The next batch; None when something else is to be done first."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(anext(self._batches))
        left_s = max(0, due_us - self._clock.monotonic_us()) / 1e6
        await asyncio.wait((self._coming, self._over), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if not self._coming.done():
            return None
        coming, self._coming = self._coming, None
        return coming.result()

    def _hung_up(self, _: object = None) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _parts(batch: Batch) -> Iterator[bytes]:
    """The events of a batch as they go over the wire, in pieces of bounded size."""
    frames: list[bytes] = []
    size = 0
    for told in batch.told:
        frames.append(b"event: %b\nid: %d\ndata: %b\n\n" % (told.kind.encode(), told.id, told.data))
        size += len(frames[-1])
        if size >= PART_BYTES:
            yield b"".join(frames)
            frames, size = [], 0
    if frames:
        yield b"".join(frames)


async def _wrong_method(request: Request) -> Reply:
    raise MethodNotAllowed(f"{request.method} is not for this path; use GET", "GET, HEAD")


def openapi_path() -> dict[str, Any]:
    """The path item of `/v1/watch`."""
    described = {
        "key": "Only this lock",
        "prefix": "Only locks whose key starts with this",
        "since": "What comes after the event of this id; Last-Event-ID wins over it. From now on when not given.",
    }
    call = {
        "tags": ["locks"],
        "summary": "Follow what happens to locks, as server-sent events",
        "description": "Events: acquired, released, expired, renewed, forced, queued, revoked; and reset, when the "
        "place asked for is not in the log any more. Data: lockKey, ownerId, fencingToken, at, reason.",
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string"}, "description": text}
            for name, text in described.items()
        ],
        "responses": {
            "200": {"description": "A stream", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            "422": {"description": "INVALID_…: names the field"},
            "429": {"description": "RATE_LIMITED: too many watchers"},
            "501": {"description": "NOT_SUPPORTED_BY_STORE: these locks are kept in several stores"},
            "503": {"description": "SHUTTING_DOWN"},
        },
    }
    return {"get": call}
