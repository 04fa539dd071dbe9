"""The gateway: routes calls to protected resources, opens them, and drains before it closes them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Self

from fencegate.clock import Clock
from fencegate.core.errors import NotFound, ResourceUnavailable, ShuttingDown
from fencegate.gateway.objects import ProtectedObjects
from fencegate.gateway.openapi import PATHS
from fencegate.gateway.paths import PREFIXES, parse
from fencegate.gateway.protected import Protected
from fencegate.gateway.resources import ObjectsSettings, ResourceSettings, RowsSettings, UpstreamSettings
from fencegate.gateway.rows import ProtectedRows
from fencegate.gateway.upstream import ProtectedUpstream
from fencegate.web.asgi import Disconnected, Handler, Headers, Reply, Request, whole_request

DRAIN_WITHIN_S = 8.0
PIECE_BYTES = 256 * 1024


class Gateway:
    """Protected resources by name. It keeps no mark of its own: every check is made inside the resource.

    `within_s` bounds the wait for a resource, instead of what its settings say.
    """

    def __init__(
        self, resources: Mapping[str, ResourceSettings], clock: Clock, *, within_s: float | None = None
    ) -> None:
        self._resources = {name: _protected(settings, clock, within_s) for name, settings in resources.items()}
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    def route(self, method: str, raw_path: bytes) -> Handler | None:
        return self._handle if raw_path.startswith(PREFIXES) else None

    def hot(self, method: str, raw_path: bytes, headers: Headers, body: bytes) -> Awaitable[Reply] | None:
        """The short way of a row that is written, by a request that came whole; None when it is for the long one."""
        protected = self._resources.get(raw_path.split(b"/", 4)[3].decode("latin-1"))
        if not isinstance(protected, ProtectedRows):
            return None
        return self._handle(whole_request(method, raw_path, headers, body))

    def openapi_paths(self) -> dict[str, Any]:
        """The path items of these calls, for the documentation."""
        return dict(PATHS)

    async def open(self) -> None:
        """Open every resource, or none."""
        async with contextlib.AsyncExitStack() as opened:
            for protected in self._resources.values():
                opened.push_async_callback(protected.resource.close)
                with protected.settings.blamed():
                    await protected.resource.open()
            opened.pop_all()

    async def close(self) -> None:
        """Refuse what comes, finish what is under way, and let go of the resources."""
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_WITHIN_S):
                await self._idle.wait()
        for protected in self._resources.values():
            await protected.resource.close()

    async def _handle(self, request: Request) -> Reply:
        if self._closing:
            raise ShuttingDown("this gateway is stopping; ask another, or retry in a moment")
        self._begin()
        to_be_sent = False
        try:
            target = parse(request.path)
            protected = self._resources.get(target.resource)
            if protected is None:
                raise NotFound(f"there is no resource {target.resource!r}", resource=target.resource)
            reply = await protected.answer(request, target)
            if not isinstance(reply.body, bytes) and request.method != "HEAD":
                to_be_sent = True
                reply.body = _UntilSent(reply.body, self._end, request, protected.within_s)
            return reply
        except asyncio.CancelledError:
            # The server's time to stop is up; nobody else cancels a request. What the resource was sent may come to be.
            raise ResourceUnavailable("this gateway was stopped before it had an answer", outcome="unknown") from None
        finally:
            if not to_be_sent:
                self._end()

    def _begin(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()


class _UntilSent:
    """The body of an answer, which is under way until it is closed. No generator: one that never began, since the head
    could not be sent, runs no `finally`.

    A caller that takes less than a piece of it in `within_s` is cut off: it would keep its place at the resource for
    ever.
    """

    def __init__(
        self, body: AsyncIterator[bytes], closed: Callable[[], None], request: Request, within_s: float
    ) -> None:
        self._body = body
        self._closed = closed
        self._request = request
        self._within_s = within_s
        self._stuck: asyncio.TimerHandle | None = None
        self._part = b""
        self._at = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._taken()
        if self._request.gone:
            raise Disconnected
        if self._at >= len(self._part):
            self._part, self._at = await anext(self._body), 0
        piece = self._part[self._at : self._at + PIECE_BYTES]
        self._at += PIECE_BYTES
        self._stuck = asyncio.get_running_loop().call_later(self._within_s, self._request.abort)
        return piece

    def _taken(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()

    async def aclose(self) -> None:
        self._taken()
        try:
            if (close := getattr(self._body, "aclose", None)) is not None:
                await close()
        finally:
            self._closed()


def _protected(settings: ResourceSettings, clock: Clock, within_s: float | None) -> Protected:
    within_s = settings.timeout_s if within_s is None else within_s
    with settings.blamed():
        if isinstance(settings, RowsSettings):
            return ProtectedRows(settings, settings.build(), clock, within_s)
        if isinstance(settings, ObjectsSettings):
            return ProtectedObjects(settings, settings.build(), clock, within_s)
        assert isinstance(settings, UpstreamSettings), f"{settings.name} is of a kind that the gateway has no calls for"
        return ProtectedUpstream(settings, settings.build(), clock, within_s)
