"""How a client reaches the lock service: over HTTP, or through an engine in this very process."""

import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from fencegate.core.errors import InvalidInput
from fencegate.core.model import Hold

Json = dict[str, Any]
"""A JSON object as the lock service speaks it: camelCase, lengths in milliseconds."""


Heard = tuple[int, str, bytes]
"""What a watch brings: the id of an event, its kind, and its data as JSON. No kind: only the place has moved."""


class Straight(Protocol):
    """Plain locks of an engine in this process, without the bodies and answers of REST. See `Transport`."""

    def acquire(
        self,
        lock_key: str,
        owner_id: str,
        ttl_ms: int,
        request_id: str,
        wait_ms: int,
        fresh: bool,
        limit_s: float,
        standing: Callable[[], None] | None = None,
    ) -> Coroutine[Any, Any, Hold]:
        """`fresh`: the request id was made for this call, which is its first. OutcomeUnknown when it takes longer than
        `limit_s` beside the waiting. `standing` is called when it begins to wait."""

    def release(self, lock_key: str, lock_token: str, owner_id: str, limit_s: float) -> Coroutine[Any, Any, None]: ...

    def remaining_ms(self, hold: Hold) -> int:
        """How long the hold lasts from now."""


class Transport(Protocol):
    """The lock calls, one to one, with the bodies and answers of the REST calls. Belongs to one event loop.

    What the lock service refuses is raised as the error of `fencegate.core.errors` that has its code. A call that
    surely didn't arrive raises StoreUnavailable, one that may have arrived OutcomeUnknown.
    """

    def straight(self, lock_key: str) -> Straight | None:
        """The straight way to a lock; None where it leads over a wire."""

    async def acquire(self, lock_key: str, body: Mapping[str, Any]) -> Json: ...

    async def renew(self, lock_key: str, body: Mapping[str, Any]) -> Json: ...

    async def release(self, lock_key: str, body: Mapping[str, Any]) -> Json: ...

    async def force_release(self, lock_key: str, body: Mapping[str, Any]) -> Json: ...

    async def status(self, lock_key: str) -> Json: ...

    async def list_locks(
        self, *, prefix: str = "", namespace: str | None = None, limit: int = 100, cursor: str = ""
    ) -> Json: ...

    async def history(self, lock_key: str, *, limit: int = 100, cursor: str = "") -> Json: ...

    def watch(self, query: Mapping[str, str]) -> AsyncGenerator[Heard, None]: ...

    async def multi_acquire(self, body: Mapping[str, Any]) -> Json: ...

    async def multi_renew(self, body: Mapping[str, Any]) -> Json: ...

    async def multi_release(self, body: Mapping[str, Any]) -> Json: ...

    async def open_session(self, body: Mapping[str, Any]) -> Json: ...

    async def renew_session(self, session_id: str, body: Mapping[str, Any]) -> Json: ...

    async def end_session(self, session_id: str) -> Json: ...

    async def close(self) -> None: ...


def check_url(url: str) -> str:
    """Refuse at once what can't be an address; whether a server is there shows at the first call."""
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme or (scheme in ("http", "https") and not _names_a_server(url)):
        shown = "what was given" if "@" in url else repr(url)  # there may be a password in it
        raise InvalidInput("url", f"{shown} is not an address; try http://127.0.0.1:7420 or sqlite:///locks.db")
    return url


def _names_a_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not re.search(r"[\s\x00-\x1f?#]", url)
    except ValueError:  # brackets that don't match, or a port that is none
        return False


async def open_transport(url: str, timeout_s: float) -> Transport:
    """A transport for the running event loop. Its library is loaded here, so that importing us stays quick."""
    if url.startswith(("http://", "https://")):
        from fencegate.client.http import HttpTransport

        return HttpTransport(url, timeout_s)
    from fencegate_lockservice.embedded import open_api

    return await open_api(url)
