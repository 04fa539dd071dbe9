"""Answers to callers of HTTP/1.0, who know neither chunks nor 100 Continue (RFC 9112, 6.1; RFC 9110, 10.1.1).

An answer whose length nobody knows ends with its connection. uvicorn sends chunks to everyone.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from fencegate.web.asgi import ABORT, App, Receive, Scope, Send

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_AT_ONCE = struct.pack("ii", 1, 0)


async def unchunked(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `app` for such a caller; `send` is uvicorn's own."""
    cycle: RequestResponseCycle = cast(Any, send).__self__
    cycle.waiting_for_100_continue = cycle.keep_alive = False
    cut = partial(_reset, cycle.transport)
    scope["extensions"] = {ABORT: {**scope["extensions"][ABORT], "cut": cut}}
    ends_with_the_connection = False

    async def send_on(message: MutableMapping[str, Any]) -> None:
        nonlocal ends_with_the_connection
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            ends_with_the_connection = b"content-length" not in names
            if ends_with_the_connection:
                cycle.chunked_encoding = False
        elif ends_with_the_connection:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    try:
        await app(scope, receive, send_on)
    finally:
        if ends_with_the_connection and not cycle.response_complete:
            cut()


def _reset(transport: asyncio.Transport) -> None:
    """Cut the connection so that its end is not taken for the end of an answer."""
    if (sock := transport.get_extra_info("socket")) is not None:
        with contextlib.suppress(OSError):  # it is closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()
