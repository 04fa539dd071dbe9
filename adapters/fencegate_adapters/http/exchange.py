"""One request to the service and its answer: how far it came, and until when it may go on.

httpcore itself, without httpx around it: nothing here may follow a redirect, keep a cookie, mend a path or look for a
proxy in the environment.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import h11
import httpcore

from fencegate.clock import Clock
from fencegate.core.errors import ResourceUnavailable
from fencegate.core.ports import Incoming
from fencegate.failpoint import reach
from fencegate_adapters.http import headers as rules
from fencegate_adapters.http.address import Address
from fencegate_adapters.http.connections import Connections

Broken = (httpcore.NetworkError, httpcore.ProtocolError, h11.ProtocolError, OSError)
TooSlow = (httpcore.TimeoutException, TimeoutError)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the service is waited for, and how much is taken from it."""

    connect_s: float = 5.0
    first_byte_s: float = 30.0
    idle_s: float = 30.0
    total_s: float = 60.0
    drain_s: float = 10.0
    answer_bytes: int = 1 << 30
    connections: int = 100


class Sending:
    """How far a request came. It goes on only before its deadline: past it, a newer holder may be at work."""

    def __init__(self, clock: Clock, deadline_us: int) -> None:
        self._clock = clock
        self._deadline_us = deadline_us
        self.begun = False
        """Whether a byte of it may have reached the service."""

    @property
    def outcome(self) -> str:
        return "unknown" if self.begun else "not-written"

    @property
    def left_s(self) -> float:
        return max(0.0, (self._deadline_us - self._clock.monotonic_us()) / 1_000_000)

    def check(self) -> None:
        if self._clock.monotonic_us() >= self._deadline_us:
            raise ResourceUnavailable("the request took longer than it may, and was given up", outcome=self.outcome)

    async def trace(self, event: str, _info: dict[str, Any]) -> None:
        """Called by httpcore at each step."""
        if event == "http11.send_request_headers.started":
            reach("upstream.send")
            self.check()
            self.begun = True

    async def parts(self, body: AsyncIterator[bytes], still: Callable[[], Awaitable[None]]) -> AsyncIterator[bytes]:
        """The body, whose last part is held back until it is known that it may still go: without it the request is
        not whole, and does nothing."""
        held: bytes | None = None
        async for part in body:
            if held is not None:
                yield held
            held = part
        await still()
        self.check()
        if held is not None:
            reach("upstream.last-part")
            yield held
        self.check()  # a body in chunks ends by one more piece


async def _one(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


class Service:
    """The service, and the connections to it."""

    def __init__(self, address: Address, limits: Limits, ca_file: str | None = None) -> None:
        self._address = address
        self._limits = limits
        self._connections = Connections(address, ca_file)

    async def ask(
        self,
        method: str,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes | AsyncIterator[bytes] | None,
        sending: Sending,
        still: Callable[[], Awaitable[None]],
    ) -> "Answer":
        """Send a request, and return when the head of the answer is there."""
        whole = _one(body or b"") if body is None or isinstance(body, bytes) else body
        request = httpcore.Request(
            method,
            httpcore.URL(
                scheme=self._address.scheme,
                host=self._address.host,
                port=self._address.port,
                target=self._address.target(target),
            ),
            headers=[(b"host", self._address.authority), *headers],
            content=sending.parts(whole, still),
            extensions={
                "timeout": {
                    "connect": self._limits.connect_s,
                    "write": self._limits.idle_s,
                    "read": self._limits.first_byte_s,
                },
                "trace": sending.trace,
            },
        )
        async with contextlib.AsyncExitStack() as undo:
            with _told(sending):
                connection = await self._connections.take()
                undo.push_async_callback(self._connections.give, connection)
                async with asyncio.timeout(sending.left_s):
                    response = await connection.handle_async_request(request)
            undo.push_async_callback(response.aclose)
            if not 200 <= response.status < 600:
                raise ResourceUnavailable(f"the service answered with {response.status}", outcome="unknown")
            headers = rules.back(response.headers)
            request.extensions["timeout"]["read"] = self._limits.idle_s
            return Answer(response, headers, sending, self._limits.answer_bytes, undo.pop_all())

    async def close(self) -> None:
        await self._connections.close()


class Answer:
    """The answer of the service, read piece by piece."""

    def __init__(
        self,
        response: httpcore.Response,
        headers: list[tuple[bytes, bytes]],
        sending: Sending,
        max_bytes: int,
        undo: contextlib.AsyncExitStack,
    ) -> None:
        self.status = response.status
        self.headers = headers
        self.raw_headers = response.headers
        self.complete = False
        """Whether it was read to its end."""
        self.on_close: Callable[[], None] = lambda: None
        self._parts = response.aiter_stream().__aiter__()
        self._sending = sending
        self._left = max_bytes
        self._undo = undo

    def incoming(self) -> Incoming:
        return Incoming(self.status, self.headers, self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            with _told(self._sending):
                async with asyncio.timeout(self._sending.left_s):
                    part = await anext(self._parts, None)
            if part is None:
                self.complete = True
                await self.aclose()
                raise StopAsyncIteration
            self._left -= len(part)
            if self._left < 0:
                raise ResourceUnavailable("the service's answer is over the limit", outcome="unknown")
        except ResourceUnavailable:
            await self.aclose()
            raise
        return part

    async def aclose(self) -> None:
        """Let go of the connection; one whose answer was not read to its end is cut."""
        closed, self.on_close = self.on_close, lambda: None
        try:
            with contextlib.suppress(*Broken):
                await self._undo.aclose()
        finally:
            closed()


@contextlib.contextmanager
def _told(sending: Sending) -> Iterator[None]:
    """What went wrong, in words of ours, with what is known of the outcome."""
    try:
        yield
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        why = str(error)[:120] or "no connection in time"
        raise ResourceUnavailable(f"the service can't be reached: {why}") from error
    except TooSlow as error:
        raise ResourceUnavailable("the service did not answer in time", outcome=sending.outcome) from error
    except Broken as error:
        raise ResourceUnavailable(
            f"the service broke the connection off ({type(error).__name__})", outcome=sending.outcome
        ) from error
