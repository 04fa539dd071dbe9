"""An HTTP service behind the gateway: its requests are passed on, and those that write need a token."""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, InvalidInput
from fencegate.core.names import MAX_LOCK_KEY_BYTES, check_text
from fencegate.core.ports import Incoming, Key, Outgoing, Streamed, Upstream
from fencegate.gateway.bodies import check_whole, declared_length, too_large
from fencegate.gateway.call import Call
from fencegate.gateway.kinds.upstream import UpstreamSettings
from fencegate.gateway.paths import names
from fencegate.gateway.protected import Answer, Protected
from fencegate.gateway.service_routes import Match, check_segment
from fencegate.web.asgi import Disconnected, Reply, Request

READ_AHEAD = 64 * 1024
MAX_QUERY_BYTES = 16 * 1024

_QUERY = re.compile(rb"[!-~]*")
_UNRESERVED = "-._~!$&'()*+,=:@"

log = logging.getLogger("fencegate.gateway")


class _Place(NamedTuple):
    """Where in the service a path leads."""

    segments: tuple[str, ...]
    path: bytes
    """As it goes on."""
    match: Match


class ProtectedUpstream(Protected):
    """The calls of a service: whatever is not about its fences is passed on."""

    def __init__(self, settings: UpstreamSettings, upstream: Upstream, clock: Clock, within_s: float) -> None:
        super().__init__(settings, upstream, clock, within_s)
        self._upstream = upstream
        self._max_bytes = settings.max_body_bytes
        self._routes = settings.service_routes()
        self._claims = settings.upstream_claims
        self._prefix = f"/v1/resources/{settings.name}".encode()

    def key_of(self, segments: Sequence[str], field: str = "key") -> Key:
        for segment in segments:
            check_text(field, check_segment(segment), MAX_LOCK_KEY_BYTES)
        if segments:
            check_text(field, "/".join(segments), MAX_LOCK_KEY_BYTES)
        return tuple(segments)

    def verb(self, method: str, segments: Sequence[bytes]) -> Answer | None:
        return partial(self._pass_on, self._place(segments))

    def _name(self, call: Call, segments: tuple[bytes, ...]) -> None:
        place = self._place(segments)
        call.key, call.fence = place.segments, place.match.lock_key

    def _place(self, segments: Sequence[bytes]) -> _Place:
        """A path with a slash at its end is another path to many services, but no other name for a lock."""
        slash = segments[-1:] == (b"",)
        key = self.key_of(names(segments[:-1] if slash else segments))
        return _Place(key, _spelt(key) + b"/" * slash, self._routes.match(key))

    async def _claim(self, call: Call) -> Reply:
        """The fence here is raised in any case; a service that has a claim of its own is asked for it too."""
        reply = await super()._claim(call)
        if not self._claims:
            return reply
        headers, via = call.request.all_headers(), self._told(call.request)
        claim = Outgoing("POST", _spelt(call.key) + b"/claim", headers, writes=True, via=via)
        answer, seen = await self._upstream.forward(claim, call.fence, call.token)
        call.saw(seen)
        if 200 <= answer.status < 300:
            await _whole(answer.body)
            return reply
        return await _reply(call.request, answer)

    async def _pass_on(self, place: _Place, call: Call) -> Reply:
        request = call.request
        call.key, call.fence = place.segments, place.match.lock_key
        writes = place.match.route.writing(request.method)
        token = self.required(call) if writes else self.given(call)
        query = request.query
        if len(query) > MAX_QUERY_BYTES or _QUERY.fullmatch(query) is None:
            raise InvalidInput("query", f"must be at most {MAX_QUERY_BYTES} printable ASCII characters")
        body, length = await self._body(request)
        outgoing = Outgoing(
            request.method,
            place.path + (b"?" + query if query else b""),
            request.all_headers(),
            body,
            length,
            writes,
            self._told(request),
        )
        answer, seen = await self._upstream.forward(outgoing, call.fence, None if call.tokenless else token)
        call.saw(seen)
        return await _reply(request, answer)

    def _told(self, request: Request) -> dict[bytes, bytes]:
        """What the service is told of the caller: what was seen here, not what the caller says of itself."""
        address, scheme = request.peer
        told = {
            b"x-forwarded-for": address.encode(),
            b"x-forwarded-proto": scheme.encode(),
            b"x-forwarded-prefix": self._prefix,
        }
        host = request.header(b"host")
        return told | ({b"x-forwarded-host": host.encode("latin-1")} if host else {})

    # --- the body of a request ---------------------------------------------------------------------------------------

    async def _body(self, request: Request) -> tuple[bytes | AsyncIterator[bytes] | None, int | None]:
        """A small body is waited for, so that no caller that stops midway is ever at the service; a larger one is
        passed on as it comes."""
        length = declared_length(request, self._max_bytes)
        if length is None and not request.headers(b"transfer-encoding"):
            return None, None
        parts = self._parts(request, length)
        ahead = bytearray()
        async for part in parts:
            ahead += part
            if len(ahead) >= READ_AHEAD:
                return _chained(bytes(ahead), parts), length
        return bytes(ahead), None

    async def _parts(self, request: Request, length: int | None) -> AsyncIterator[bytes]:
        received = 0
        stream = request.stream()
        while True:
            try:
                async with asyncio.timeout(self.within_s):
                    part = await anext(stream, None)
            except TimeoutError:
                raise InvalidInput("body", f"stopped arriving for {self.within_s:g} s") from None
            if part is None:
                break
            received += len(part)
            if received > self._max_bytes:
                raise too_large(self._max_bytes)
            yield part
        check_whole(received, length)


def _spelt(key: Sequence[str]) -> bytes:
    """The path, spelt in one way, however the caller spelt it."""
    return b"".join(b"/" + quote(segment, safe=_UNRESERVED).encode() for segment in key)


async def _chained(ahead: bytes, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield ahead
    async for part in parts:
        yield part


# --- the answer ------------------------------------------------------------------------------------------------------


async def _reply(request: Request, answer: Incoming) -> Reply:
    """All headers are the service's own, also the type of a body that is empty."""
    headers = list(answer.headers)
    length = next((int(value) for name, value in headers if name == b"content-length"), None)
    if request.method == "HEAD" or answer.status in (204, 304):
        await _whole(answer.body)
        if request.method != "HEAD":  # the server would wait for as many bytes as these say
            headers = [(name, value) for name, value in headers if name != b"content-length"]
        return Reply(answer.status, _nothing(), headers, b"")
    if length is not None and length <= READ_AHEAD:
        headers = [(name, value) for name, value in headers if name != b"content-length"]
        return Reply(answer.status, await _whole(answer.body), headers, b"")
    return Reply(answer.status, _Relayed(request, answer.body), headers, b"")


async def _whole(body: Streamed) -> bytes:
    return b"".join([part async for part in body])


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


class _Relayed:
    """The answer as it comes. One that breaks off breaks the caller's connection too, so that no part looks whole."""

    def __init__(self, request: Request, body: Streamed) -> None:
        self._request = request
        self._body = body
        self._gone: asyncio.Future[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._gone is None:
            self._gone = asyncio.ensure_future(self._request.disconnected())
        part = asyncio.ensure_future(_next(self._body))
        either: set[asyncio.Future[Any]] = {part, self._gone}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not part.done():
                part.cancel()
        if not part.done():
            with contextlib.suppress(asyncio.CancelledError):
                await part
            raise Disconnected
        try:
            found = part.result()
        except FencegateError as error:
            log.warning("an answer broke off on its way through: %s", error.detail)
            self._request.abort()
            raise Disconnected from None
        if found is None:
            raise StopAsyncIteration
        return found

    async def aclose(self) -> None:
        if self._gone is not None:
            self._gone.cancel()
        await self._body.aclose()


async def _next(body: Streamed) -> bytes | None:
    return await anext(body, None)
