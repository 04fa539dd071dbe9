"""The gateway: routes calls to protected resources, opens them, and drains before it closes them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fencegate.clock import Clock
from fencegate.core.errors import NotFound, ShuttingDown
from fencegate.gateway.objects import ProtectedObjects
from fencegate.gateway.openapi import PATHS
from fencegate.gateway.paths import PREFIXES, parse
from fencegate.gateway.protected import Protected
from fencegate.gateway.resources import ResourceSettings, build_objects, build_rows
from fencegate.gateway.rows import ProtectedRows
from fencegate.web.asgi import Handler, Reply, Request

ANSWER_WITHIN_S = 30.0
DRAIN_WITHIN_S = 8.0


class Gateway:
    """Protected resources by name. It keeps no mark of its own: every check is made inside the resource.

    `within_s` bounds the wait for a resource.
    """

    def __init__(
        self, resources: Mapping[str, ResourceSettings], clock: Clock, *, within_s: float = ANSWER_WITHIN_S
    ) -> None:
        self._resources = {name: _protected(settings, clock, within_s) for name, settings in resources.items()}
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    def route(self, method: str, raw_path: bytes) -> Handler | None:
        return self._handle if raw_path.startswith(PREFIXES) else None

    def openapi_paths(self) -> dict[str, Any]:
        """The path items of these calls, for the documentation."""
        return dict(PATHS)

    async def open(self) -> None:
        """Open every resource, or none."""
        async with contextlib.AsyncExitStack() as opened:
            for protected in self._resources.values():
                opened.push_async_callback(protected.resource.close)
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
        async with contextlib.AsyncExitStack() as finish:
            finish.callback(self._end)
            self._begin()
            target = parse(request.path)
            protected = self._resources.get(target.resource)
            if protected is None:
                raise NotFound(f"there is no resource {target.resource!r}", resource=target.resource)
            reply = await protected.answer(request, target)
            if not isinstance(reply.body, bytes) and request.method != "HEAD":
                reply.body = self._until_sent(reply.body, finish.pop_all())
            return reply

    async def _until_sent(self, body: AsyncIterator[bytes], finish: contextlib.AsyncExitStack) -> AsyncIterator[bytes]:
        async with finish:
            async for part in body:
                yield part

    def _begin(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()


def _protected(settings: ResourceSettings, clock: Clock, within_s: float) -> Protected:
    if settings.kind == "rows":
        return ProtectedRows(settings, build_rows(settings), clock, within_s)
    return ProtectedObjects(settings, build_objects(settings), clock, within_s)
