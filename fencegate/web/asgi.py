"""Requests and replies straight on ASGI.

A framework's routing and validation costs more than a durable lock does, so the hot calls come through here; what is
not routed here goes on to `fallback`, the FastAPI app with the documentation.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote_to_bytes

from fencegate.core.errors import FencegateError, InvalidInput, OutcomeUnknown, TooLarge
from fencegate.limits import within
from fencegate.web.problems import problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

MAX_JSON_BYTES = 64 * 1024
BODY_WITHIN_S = 30.0
ABORT = "fencegate.abort"
"""The extension of the scope whose `cut` cuts the connection, and whose `gone` tells whether it is no more."""

_STOPPED = "this server was stopped before it had an answer; repeat with the same requestId to find out"

log = logging.getLogger("fencegate.web")


class Disconnected(Exception):
    """The client went away before its request was whole."""


class Request:
    """One HTTP request."""

    __slots__ = ("_arrived", "_by_name", "_receive", "_scope", "method", "path")

    def __init__(self, scope: Scope, receive: Receive, arrived: bytes | None = None) -> None:
        """`arrived`: the whole body, if it is there already."""
        self._scope = scope
        self._receive = receive
        self._arrived = arrived
        self._by_name: dict[bytes, list[str]] | None = None
        self.method: str = scope["method"]
        self.path: bytes = scope.get("raw_path") or scope["path"].encode()
        """The raw path, percent-encoded: `%2F` in it belongs to a name, `/` separates."""

    @property
    def query(self) -> bytes:
        return bytes(self._scope.get("query_string", b""))

    @property
    def peer(self) -> tuple[str, str]:
        """The address that the request came from, as far as it is known, and by which scheme."""
        client = self._scope.get("client")
        return (client[0] if client else "unknown"), self._scope.get("scheme", "http")

    def headers(self, name: bytes) -> list[str]:
        """Every value of the header `name` (in lower case)."""
        if self._by_name is None:
            self._by_name = {}
            for header, value in self._scope["headers"]:
                self._by_name.setdefault(header, []).append(value.decode("latin-1"))
        return self._by_name.get(name, [])

    def header(self, name: bytes) -> str | None:
        values = self.headers(name)
        return values[0] if values else None

    def all_headers(self) -> Headers:
        return list(self._scope["headers"])

    async def body(self, limit: int = MAX_JSON_BYTES, within_s: float = BODY_WITHIN_S) -> bytes:
        """The whole body; TooLarge over `limit`, InvalidInput when it does not come."""
        if self._arrived is not None and len(self._arrived) <= limit:  # no need to wait
            return self._arrived
        try:
            return await within(self._whole(limit), within_s)
        except TimeoutError:
            raise InvalidInput("body", f"did not arrive within {within_s:g} s") from None

    async def _whole(self, limit: int) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise TooLarge(f"the body is over {limit} bytes")
        if not message.get("more_body", False):  # the common case: one message
            return body
        parts = [body]
        size = len(body)
        async for part in self.stream():
            size += len(part)
            if size > limit:
                raise TooLarge(f"the body is over {limit} bytes")
            parts.append(part)
        return b"".join(parts)

    async def stream(self) -> AsyncIterator[bytes]:
        """The body, part by part."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return

    async def disconnected(self) -> None:
        """Return when the client has gone away. Only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    @property
    def gone(self) -> bool:
        """Whether nobody is there any more to be answered, as far as the server lets us know."""
        is_gone = self._scope.get("extensions", {}).get(ABORT, {}).get("gone")
        return is_gone is not None and bool(is_gone())

    def abort(self) -> None:
        """Cut the connection at once, with whatever was not read of the answer; where the server lets us."""
        cut = self._scope.get("extensions", {}).get(ABORT, {}).get("cut")
        if cut is not None:
            cut()


def whole_request(method: str, raw_path: bytes, headers: Headers, body: bytes) -> Request:
    """A request that has arrived with all of its body."""

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "method": method, "raw_path": raw_path, "headers": headers}, receive, body)


class Reply:
    """One HTTP answer: its body is bytes, or an iterator of them."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        status: int,
        body: bytes | AsyncIterator[bytes] = b"",
        headers: Headers | None = None,
        content_type: bytes = b"application/json",
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers or []
        self.content_type = content_type

    @classmethod
    def of_error(cls, error: FencegateError, headers: Headers | None = None) -> "Reply":
        status, body, extra = problem(error)
        return cls(status, body, [*extra, *(headers or [])], b"application/problem+json")


Handler = Callable[[Request], Awaitable[Reply]]
Router = Callable[[str, bytes], Handler | None]


class ThinApp:
    """An ASGI app: `route(method, raw_path)` gives the handler; what it doesn't know goes to `fallback`."""

    def __init__(self, route: Router, fallback: App) -> None:
        self._route = route
        self._fallback = fallback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = None
        if scope["type"] == "http":
            handler = self._route(scope["method"], scope.get("raw_path") or scope["path"].encode())
        if handler is None:
            await self._fallback(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            reply = await answered(handler(request), request.path)
            await _send(reply, send, head=scope["method"] == "HEAD")
        except Disconnected:
            return


async def answered(answer: Awaitable[Reply], about: bytes) -> Reply:
    """The answer; an error becomes its problem document, and one that nobody expected is logged."""
    try:
        return await answer
    except FencegateError as error:
        return Reply.of_error(error)
    except asyncio.CancelledError:
        # The server's time to stop is up; nobody else cancels a request. What a store was sent may come to be.
        return Reply.of_error(OutcomeUnknown(_STOPPED))
    except Disconnected:
        raise
    except Exception:
        log.exception("unexpected error in %s", about[:200])
        return Reply.of_error(FencegateError("an unexpected error; it was logged"))


async def _send(reply: Reply, send: Send, *, head: bool) -> None:
    headers: Headers = list(reply.headers)
    if (reply.body or head) and reply.content_type:
        headers.insert(0, (b"content-type", reply.content_type))
    if isinstance(reply.body, bytes):
        if reply.status not in (204, 304) and not (
            head and any(name == b"content-length" for name, _ in reply.headers)
        ):
            headers.append((b"content-length", b"%d" % len(reply.body)))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if head else reply.body})
        return
    try:
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        if not head:
            async for part in reply.body:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        if (close := getattr(reply.body, "aclose", None)) is not None:
            await close()


def decode_name(raw: bytes, field: str) -> str:
    """A percent-decoded piece of a raw path; invalid UTF-8 is refused, not replaced."""
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(field, "is not UTF-8") from None


def query_params(query: bytes, allowed: frozenset[str]) -> dict[str, str]:
    """The query's parameters, each at most once; an unknown one is refused."""
    found: dict[str, str] = {}
    for pair in query.split(b"&") if query else ():
        raw_name, _, raw_value = pair.replace(b"+", b" ").partition(b"=")
        name = decode_name(raw_name, "query")
        if name not in allowed:
            raise InvalidInput(name or "query", "is not a parameter of this call")
        if name in found:
            raise InvalidInput(name, "is given twice")
        found[name] = decode_name(raw_value, name)
    return found
