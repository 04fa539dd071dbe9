"""uvicorn's HTTP protocol, with a short way for the calls that matter most.

A hot call that arrives whole, in one piece and in the plainest form, is answered straight from here: half of what HTTP
costs is building what such a call has no use for. Anything else, and anything in doubt, is uvicorn's.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fencegate.core.errors import InvalidRequest
from fencegate.serve.outgoing import Outgoing
from fencegate.serve.unchunked import unchunked
from fencegate.serve.unswitched import Unswitched
from fencegate.web import problem
from fencegate.web.asgi import ABORT, Headers, Reply, answered

Hot = Callable[[bytes, bytes], Awaitable[Reply] | None]
"""Given raw path and body of a POST: its answer; None when it has to go the long way."""
HotWrite = Callable[[str, bytes, Headers, bytes], Awaitable[Reply] | None]
"""The same of a PUT or PATCH: given its method, raw path, headers and body."""

MAX_HEADERS = 256
MAX_HEAD_BYTES = 65536
"""Of a head, or a trailer, that comes in many pieces; one that comes in one is no longer than what is read at once."""
HEAD_WITHIN_S = 30.0
"""From the first byte of a head to its end."""

# There is one way only to read a header, else the time to refuse many of them would double with each.
_HEAD = re.compile(
    rb"POST (/v1/[!$-;=@-Z_a-z~%]{1,2048}) HTTP/1\.1\r\n((?:[0-9A-Za-z-]{1,64}:[\x20-\x7e\t]*\r\n){1,32})\r\n"
)
_WRITE_HEAD = re.compile(
    rb"(PUT|PATCH) (/v1/resources/[!$-;=@-Z_a-z~%]{1,2048}) HTTP/1\.1\r\n"
    rb"((?:[0-9A-Za-z-]{1,64}:[\x20-\x7e\t]*\r\n){1,32})\r\n"
)
# Whatever changes where a message ends, or what becomes of the connection, is not plain.
_NOT_PLAIN = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"})

_OF_LENGTH = (b"content-length", b"transfer-encoding")

_REFUSED = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]


def plain_post(data: bytes) -> tuple[bytes, bytes] | None:
    """Raw path and body, if `data` is exactly one POST in its plainest form."""
    head = _HEAD.match(data)
    if head is None or not _is_one(_headers(head[2]), len(data) - head.end()):
        return None
    return head[1], data[head.end() :]


def plain_write(data: bytes) -> tuple[str, bytes, Headers, bytes] | None:
    """Method, raw path, headers and body, if `data` is exactly one PUT or PATCH of a resource in its plainest form."""
    head = _WRITE_HEAD.match(data)
    if head is None:
        return None
    headers = _headers(head[3])
    if not _is_one(headers, len(data) - head.end()):
        return None
    return head[1].decode(), head[2], headers, data[head.end() :]


def _headers(lines: bytes) -> Headers:
    split = [line.partition(b":") for line in lines.split(b"\r\n")]
    return [(name.lower(), value.strip(b" \t")) for name, _, value in split[:-1]]


def _is_one(headers: Headers, rest: int) -> bool:
    """Whether what follows the head is its body, all of it and nothing else. No header may be there twice."""
    by_name = dict(headers)
    length = by_name.get(b"content-length", b"")
    return (
        len(by_name) == len(headers)
        and _NOT_PLAIN.isdisjoint(by_name)
        and by_name.get(b"connection", b"keep-alive").lower() == b"keep-alive"
        and length.isdigit()
        and len(length) <= 6
        and int(length) == rest
    )


class ShortWayProtocol(HttpToolsProtocol):
    """See the head of this file. One request at a time goes the short way; what comes meanwhile waits for it."""

    def __init__(self, *args: Any, hot: Hot, hot_write: HotWrite | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unswitched = Unswitched(self, self._framing)
        self.parser = cast(Any, self._unswitched)
        self._hot = hot
        self._hot_write = hot_write
        self._in_message = False
        self._in_head = False
        self._only_head = False
        self._head_bytes = 0
        self._begun: object = None
        """The request that was begun by the bytes which are being read: it has not run yet."""
        self._refused: object = None
        self._app, self.app = self.app, self._unless_refused
        self._answering = False
        self._stopping = False
        self._waiting = b""
        self._broken = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Outgoing(transport, self.loop, self._is_answered_early)))
        self._wait_until(self.loop.time() + self.timeout_keep_alive)

    def _framing(self) -> bytes:
        return b"".join(b"%b: %b\r\n" % header for header in self.headers if header[0] in _OF_LENGTH)

    def on_message_begin(self) -> None:
        if self._unswitched.repeating:
            return
        self._in_message = True
        self._in_head = True
        self._only_head = False
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"cut": self.transport.abort, "gone": self.transport.is_closing}}

    def on_header(self, name: bytes, value: bytes) -> None:
        # The trailer of a chunked body comes here too, and would become headers that no proxy before us has seen. (So
        # does a head that is repeated.)
        if self._in_head:
            if len(self.headers) == MAX_HEADERS:
                raise ValueError("too many headers")  # uvicorn answers 400, and closes
            super().on_header(name, value.strip(b" \t"))  # the parser leaves the blanks behind it

    def on_headers_complete(self) -> None:
        if self._unswitched.repeating:
            return
        self._in_head = False
        if b"#" in self.url:  # what follows it would be dropped, and the path before it is another one
            raise ValueError("a fragment in the target")
        served = self.cycle is not None and not self.cycle.response_complete
        super().on_headers_complete()
        self._begun = None if served else self.cycle

    def on_body(self, body: bytes) -> None:
        self._only_head = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._unswitched.ends_too_early:
            return
        self._in_message = False
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._answering:
            self._waiting += data
            if len(self._waiting) > 65536:
                self.flow.pause_reading()
            return
        # Whoever reads no answers goes the long way, which waits for that.
        between = not self._in_message and (self.cycle is None or self.cycle.response_complete)
        if between and not self.flow.write_paused:
            answer = self._short(data)
            if answer is not None:
                self._unset_keepalive_if_required()
                self._answering = True
                task = self.loop.create_task(self._answer(answer))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
                return
        self._only_head = self._in_message
        self._begun = None
        waits, was_in_head = self.timeout_keep_alive_task, self._in_head
        super().data_received(data)
        if waits is not None:
            due_s = waits.when()
            if self._in_head and not was_in_head:
                due_s = self.loop.time() + HEAD_WITHIN_S
            elif self._in_message and not self._in_head:  # the rest of a body that was answered early
                due_s = self.loop.time() + self.timeout_keep_alive
            self._wait_until(due_s)
        # The parser keeps what it has of a header until all of it is there: without an end, all that is ever sent.
        self._head_bytes = self._head_bytes + len(data) if self._only_head else 0
        if self._head_bytes > MAX_HEAD_BYTES and self._in_message and not self.transport.is_closing():
            if self._in_head:
                self.send_400_response("The head of the request is too long.")
            else:  # its trailer is: an answer may be under way
                self.transport.abort()

    def _wait_until(self, due_s: float) -> None:
        """Close the connection then, unless a request has come by that time; uvicorn waits so after an answer only."""
        served = self.cycle is not None and not self.cycle.response_complete
        if not served and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_at(due_s, self.timeout_keep_alive_handler)

    def send_400_response(self, msg: str) -> None:
        """Whoever is being served would take it for the answer to what it asked for, and that may be done: it is only
        cut off. What came with these bytes is refused, and not begun."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle is not self._begun:
                self.transport.close()
                return
            self._refused = self.cycle.scope
            self.cycle.disconnected = True
        self._broken = True
        _, body, _ = problem(InvalidRequest(msg))
        headers = b"".join(b"%b: %b\r\n" % header for header in [*self.server_state.default_headers, *_REFUSED])
        self.transport.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (STATUS_LINE[400], headers, len(body), body))
        self.transport.close()

    def _is_answered_early(self) -> bool:
        """Whether the answer went out before the request was there, so that its caller may still be sending."""
        served = self.cycle is not None and self.cycle.response_complete
        return self._broken or (served and self._in_message and not self._in_head)

    async def _unless_refused(self, scope: Any, receive: Any, send: Any) -> None:
        if scope is self._refused:
            return
        if scope["http_version"] == "1.1":
            await self._app(scope, receive, send)
        else:
            await unchunked(self._app, scope, receive, send)

    def _short(self, data: bytes) -> Awaitable[Reply] | None:
        request = plain_post(data)
        if request is not None:
            return self._hot(*request)
        write = plain_write(data) if self._hot_write is not None else None
        return self._hot_write(*write) if write is not None and self._hot_write is not None else None

    async def _answer(self, answer: Awaitable[Reply]) -> None:
        reply = await answered(answer, b"a hot call")
        self._answering = False
        if self.transport.is_closing():
            return
        headers = [*self.server_state.default_headers, *reply.headers]
        body = cast(bytes, reply.body)
        if body:
            headers.append((b"content-type", reply.content_type))
        if reply.status != 204:
            headers.append((b"content-length", b"%d" % len(body)))
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        whole = cast(Outgoing, self.transport)
        whole.write_whole(b"%b%b\r\n%b" % (STATUS_LINE[reply.status], lines, body))
        if self._stopping:
            self.transport.close()
            return
        self.on_response_complete()
        if self._waiting:
            data, self._waiting = self._waiting, b""
            self.data_received(data)

    def shutdown(self) -> None:
        if self._answering:
            self._stopping = True
        else:
            super().shutdown()
