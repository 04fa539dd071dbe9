"""The connections to the service, kept for the next request.

httpcore's own pool asks the kernel about every connection that it has in every request: with 32 callers at once that
took half of the processor time of a request. Here the one that was used last is asked, and no other.
"""

import asyncio
import contextlib
import ssl
from collections import deque

import httpcore

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.http.address import Address

KEEP_IDLE_S = 3.0
"""Less than what services keep idle connections for: one that they are just closing makes an outcome unknown."""


class Connections:
    """How many there are is bounded by who takes them."""

    def __init__(self, address: Address, ca_file: str | None) -> None:
        self._origin = httpcore.Origin(address.scheme.encode(), address.host.encode(), address.port)
        self._ssl = _tls(address, ca_file)
        self._idle: deque[httpcore.AsyncHTTPConnection] = deque()
        self._closing: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self) -> httpcore.AsyncHTTPConnection:
        """One that is free, or a new one, which connects with its first request."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await _close(connection)
        return httpcore.AsyncHTTPConnection(
            self._origin, ssl_context=self._ssl, keepalive_expiry=KEEP_IDLE_S, http1=True, http2=False, retries=0
        )

    async def give(self, connection: httpcore.AsyncHTTPConnection) -> None:
        """Keep it for the next request, if it is whole; a request that broke off breaks its connection."""
        if not connection.is_idle() or _has_more(connection):
            await _close(connection)
            return
        self._idle.append(connection)
        if self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(2 * KEEP_IDLE_S, self._close_old)

    def _close_old(self) -> None:
        self._closing = None
        while self._idle and self._idle[0].has_expired():
            task = asyncio.ensure_future(_close(self._idle.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._idle:
            self._closing = asyncio.get_running_loop().call_later(2 * KEEP_IDLE_S, self._close_old)

    async def close(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        while self._idle:
            await _close(self._idle.pop())
        if self._tasks:
            await asyncio.gather(*self._tasks)


def _tls(address: Address, ca_file: str | None) -> ssl.SSLContext | None:
    try:
        return ssl.create_default_context(cafile=ca_file) if address.scheme == "https" else None
    except OSError as error:
        raise UnsafeConfiguration(f"ca_file: can't be read ({error.strerror or error})") from None


async def reach(address: Address, ca_file: str | None, within_s: float) -> None:
    """Connect once, certificate and all, and send nothing."""
    tls = _tls(address, ca_file)
    try:
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    except OSError as error:  # a TimeoutError, and what TLS has to say, are among them
        why = str(error) or f"no answer within {within_s:g} s"
        raise ResourceUnavailable(f"nothing answers at {address.authority.decode()}: {why}") from None
    writer.transport.abort()


def _has_more(connection: httpcore.AsyncHTTPConnection) -> bool:
    """Whether the service said more than its answer, such as a body to a HEAD. It would be taken for the answer to the
    next request, and a write that nobody has seen for done. httpcore keeps it, and has no call that tells."""
    spoken = connection._connection
    return isinstance(spoken, httpcore.AsyncHTTP11Connection) and spoken._h11_state.trailing_data[0] != b""


async def _close(connection: httpcore.AsyncHTTPConnection) -> None:
    with contextlib.suppress(httpcore.NetworkError, OSError):
        await connection.aclose()
