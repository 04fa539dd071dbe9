"""`LeaseAuth`: the lease's headers on each request of an httpx client, and no request once the lease is lost."""

from collections.abc import AsyncGenerator, Generator
from typing import Any, NamedTuple, Protocol

import httpx

_OURS = (b"fencing-token", b"fencing-lock")
_LAST_MOMENT = "send_request_headers.started"


class Lease(Protocol):
    """What is needed of a lease; those of both faces of the client have it."""

    def ensure_held(self) -> None:
        """Raises LockLost unless it is held at this moment."""

    def headers(self) -> dict[str, str]:
        """The headers of the token; LockLost as above."""


class _Meant(NamedTuple):
    """Whom the headers are for."""

    host: str
    by_tls: bool


class LeaseAuth(httpx.Auth):
    """Puts `Fencing-Token` and `Fencing-Lock` on each request; LockLost instead of sending when the lease is lost.

    >>> httpx.Client(auth=LeaseAuth(lease)).put(url, json=row)

    The lease is asked once more when a connection is there and the first byte is about to leave: waiting for a
    connection may take longer than a lease. A redirect to another host, or from TLS to none, doesn't get the headers.
    `auth` is another one, of the service itself, to go with it.
    """

    def __init__(self, lease: Lease, auth: httpx.Auth | None = None) -> None:
        self._lease = lease
        self._auth = auth or httpx.Auth()
        # As the other one asks for it, httpx reads bodies before it is called.
        self.requires_request_body = self._auth.requires_request_body
        self.requires_response_body = self._auth.requires_response_body

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        before = request.extensions.get("trace")
        meant = self._dress(request)

        def trace(name: str, info: dict[str, Any]) -> None:
            self._last_look(name, info, meant)
            if before is not None:
                before(name, info)

        request.extensions["trace"] = trace
        try:
            yield from self._auth.sync_auth_flow(request)
        finally:
            _undress(request, before)

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        before = request.extensions.get("trace")
        meant = self._dress(request)

        async def trace(name: str, info: dict[str, Any]) -> None:
            self._last_look(name, info, meant)
            if before is not None:
                await before(name, info)

        request.extensions["trace"] = trace
        flow = self._auth.async_auth_flow(request)
        try:
            following = await anext(flow)
            while True:
                response = yield following
                following = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            _undress(request, before)
            await flow.aclose()

    def _dress(self, request: httpx.Request) -> _Meant:
        request.headers.update(self._lease.headers())
        return _Meant(request.headers["host"], request.url.scheme == "https")

    def _last_look(self, name: str, info: dict[str, Any], meant: _Meant) -> None:
        """httpx follows redirects below us, so this is where we see each of them go out."""
        if not name.endswith(_LAST_MOMENT):
            return
        self._lease.ensure_held()
        request = info["request"]
        host = next((value.decode("latin-1") for name, value in request.headers if name.lower() == b"host"), meant.host)
        if host != meant.host or (meant.by_tls and request.url.scheme != b"https"):
            request.headers[:] = [each for each in request.headers if each[0].lower() not in _OURS]


def _undress(request: httpx.Request, trace: object) -> None:
    """Who sends the request again may have another lease, and this one is not to be asked then."""
    if trace is None:
        request.extensions.pop("trace", None)
    else:
        request.extensions["trace"] = trace
