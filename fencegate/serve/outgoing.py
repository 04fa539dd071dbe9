"""What stands between uvicorn and a connection: an answer leaves in one piece, and reaches who is still sending."""

import asyncio
from collections.abc import Callable
from typing import Any

LISTEN_ON_S = 2.0


class Outgoing:
    """A transport that holds back the head of an answer until its body comes, or this turn of the loop ends: uvicorn
    writes them one by one, and each write is a system call and a packet.

    Where `is_answered_early` when it is closed, what still comes is read for a while, and dropped: a connection that is
    closed with bytes unread is reset, and its answer may be lost with it (RFC 9112, 9.6).
    """

    __slots__ = ("_head", "_is_answered_early", "_listens_on", "_loop", "_transport")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, is_answered_early: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._is_answered_early = is_answered_early
        self._head: bytes | None = None
        self._listens_on = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head is not None:
            data, self._head = self._head + data, None
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n"):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def write_whole(self, data: bytes) -> None:
        """An answer that nothing follows, though it may look like a head."""
        self._flush()
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._listens_on or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        self._flush()
        if not self._is_answered_early():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the caller is gone already; asyncio's own loop says so here, and would never close it
            self._transport.close()
            return
        self._listens_on = True
        self._transport.resume_reading()
        self._loop.call_later(LISTEN_ON_S, self._transport.close)

    def _flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)
