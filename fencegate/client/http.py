"""The lock calls over HTTP: the only module of the client that knows httpx."""

import logging
import re
import ssl
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from fencegate.client.sse import EventReader
from fencegate.client.transport import Heard, Json
from fencegate.core import errors
from fencegate.core.errors import FencegateError, InvalidInput, OutcomeUnknown, StoreUnavailable

# uvicorn and most proxies drop an idle connection after 5 s or more; one that we drop first can't be cut under a call.
_KEEP_IDLE_S = 3.0

# A watch says something every 10 s at least; one that doesn't is dead.
_SILENCE_S = 30.0

_REFUSALS: Mapping[str, type[FencegateError]] = {
    kind.code: kind
    for kind in (
        errors.LockHeld,
        errors.NotOwner,
        errors.LockExpired,
        errors.MaxHoldReached,
        errors.SessionNotFound,
        errors.SessionExpired,
        errors.LockFree,
        errors.RequestIdReused,
        errors.TooManyWaiters,
        errors.RateLimited,
        errors.TooLarge,
        errors.NotSupported,
        errors.StoreUnavailable,
        errors.OutcomeUnknown,
        errors.ShuttingDown,
    )
}
_NOT_CALLS = frozenset({errors.NotFound.code, errors.MethodNotAllowed.code})
_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "detail", "error"})


class _WithoutSessionIds(logging.Filter):
    """httpx logs the address of every request, and the id of a session, which is part of it, is a secret."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_hidden(part) for part in record.args)
        return True


def _hidden(part: object) -> object:
    return _SESSION_ID.sub(r"\1…", str(part)) if isinstance(part, str | httpx.URL) else part


_SESSION_ID = re.compile(r"(/v1/sessions/)[^/]+")
logging.getLogger("httpx").addFilter(_WithoutSessionIds())


class HttpTransport:
    """REST calls to a lock service.

    Connections are not limited in number: a waiting acquire occupies one, and must not keep a renewal from leaving.
    How long an answer may take is up to the caller; only connecting has a limit here.
    """

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._shown = re.sub("//[^/]*@", "//…@", self._url)
        self._connect_timeout_s = connect_timeout_s
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=connect_timeout_s),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_IDLE_S),
            verify=ssl.create_default_context() if url.startswith("https:") else False,
            trust_env=False,
        )

    def straight(self, _lock_key: str) -> None:
        return None

    async def acquire(self, lock_key: str, body: Mapping[str, Any]) -> Json:
        return await self._post_lock(lock_key, "acquire", body)

    async def renew(self, lock_key: str, body: Mapping[str, Any]) -> Json:
        return await self._post_lock(lock_key, "renew", body)

    async def release(self, lock_key: str, body: Mapping[str, Any]) -> Json:
        return await self._post_lock(lock_key, "release", body)

    async def force_release(self, lock_key: str, body: Mapping[str, Any]) -> Json:
        return self._with("status", await self._post_lock(lock_key, "force-release", body), OutcomeUnknown)

    async def status(self, lock_key: str) -> Json:
        return self._with("locked", await self._send("GET", f"/v1/locks/{quote(lock_key, safe='')}"))

    async def list_locks(
        self, *, prefix: str = "", namespace: str | None = None, limit: int = 100, cursor: str = ""
    ) -> Json:
        query: dict[str, str | int] = {"limit": limit}
        given = {"prefix": prefix, "namespace": namespace, "cursor": cursor}
        query |= {name: value for name, value in given.items() if value}
        return self._with("locks", await self._send("GET", "/v1/locks", params=query))

    async def history(self, lock_key: str, *, limit: int = 100, cursor: str = "") -> Json:
        query: dict[str, str | int] = {"lockKey": lock_key, "limit": limit}
        query |= {"cursor": cursor} if cursor else {}
        return self._with("history", await self._send("GET", "/v1/history", params=query))

    async def watch(self, query: Mapping[str, str]) -> AsyncGenerator[Heard, None]:
        """Ends when the server ends it; StoreUnavailable when the connection breaks, or falls silent."""
        reader = EventReader()
        timeout = httpx.Timeout(self._connect_timeout_s, read=_SILENCE_S)
        try:
            call = self._http.stream("GET", f"{self._url}/v1/watch", params=dict(query), timeout=timeout)
            async with call as response:
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    await response.aread()
                    self._with("events", self._answer(response))
                async for part in response.aiter_bytes():
                    for heard in reader.feed(part):
                        yield heard
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ValueError) as error:
            raise StoreUnavailable(f"{self._shown} can't be watched ({_why(error)})") from error

    async def multi_acquire(self, body: Mapping[str, Any]) -> Json:
        return await self._post("/v1/multi/acquire", body)

    async def multi_renew(self, body: Mapping[str, Any]) -> Json:
        return await self._post("/v1/multi/renew", body)

    async def multi_release(self, body: Mapping[str, Any]) -> Json:
        return await self._post("/v1/multi/release", body)

    async def open_session(self, body: Mapping[str, Any]) -> Json:
        return await self._post("/v1/sessions", body)

    async def renew_session(self, session_id: str, body: Mapping[str, Any]) -> Json:
        return await self._post(f"/v1/sessions/{quote(session_id, safe='')}/renew", body)

    async def end_session(self, session_id: str) -> Json:
        return await self._send("DELETE", f"/v1/sessions/{quote(session_id, safe='')}")

    async def close(self) -> None:
        await self._http.aclose()

    async def _post_lock(self, lock_key: str, verb: str, body: Mapping[str, Any]) -> Json:
        return await self._post(f"/v1/locks/{quote(lock_key, safe='')}/{verb}", body)

    async def _post(self, path: str, body: Mapping[str, Any]) -> Json:
        try:
            content = msgspec.json.encode(body)
        except TypeError as error:
            raise InvalidInput("metadata", f"is not JSON ({error})") from None
        headers = {"content-type": "application/json"}
        return await self._send("POST", path, content=content, headers=headers)

    async def _send(self, method: str, path: str, **parts: Any) -> Json:
        if self._http.is_closed:
            raise StoreUnavailable("this client was closed under the call; nothing was sent")
        try:
            response = await self._http.request(method, self._url + path, **parts)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise StoreUnavailable(
                f"no lock service answers at {self._shown} ({_why(error)}); is it running?"
            ) from error
        except httpx.HTTPError as error:
            raise OutcomeUnknown(f"{self._shown} was asked, but its answer was lost ({_why(error)})") from error
        return self._answer(response)

    def _answer(self, response: httpx.Response) -> Json:
        try:
            document = msgspec.json.decode(response.content)
        except msgspec.DecodeError:
            document = None
        if response.is_success and isinstance(document, dict):
            return document
        if response.is_success and response.request.method == "GET":
            raise StoreUnavailable(self._no_lock_service())
        raise _refusal(response.status_code, document if isinstance(document, dict) else {}, self._shown)

    def _with(
        self, member: str, answer: Json, otherwise: type[StoreUnavailable | OutcomeUnknown] = StoreUnavailable
    ) -> Json:
        """The answer, if it is one of a lock service: what anybody else says must not pass for one."""
        if member not in answer:
            raise otherwise(self._no_lock_service())
        return answer

    def _no_lock_service(self) -> str:
        return f"what answers at {self._shown} is no lock service, or of another version; is the address right?"


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _refusal(status: int, document: Json, where: str) -> FencegateError:
    """The error that a problem document stands for."""
    code = document.get("error")
    detail = str(document.get("detail") or f"the lock service answered {status}")
    members = {name: value for name, value in document.items() if name not in _PROBLEM_MEMBERS}
    if 400 <= status < 500 and (not isinstance(code, str) or code in _NOT_CALLS):
        # A path that is missing, a proxy that lets nobody in: whoever it was, no lock service was asked.
        return StoreUnavailable(f"what answers at {where} is no lock service (status {status}); is the address right?")
    if isinstance(code, str) and code in _REFUSALS:
        return _REFUSALS[code](detail, **members)
    if isinstance(code, str) and code.startswith("INVALID_"):
        field = str(document.get("field") or "body")
        return InvalidInput(field, detail.removeprefix(f"{field}: "))
    if 400 <= status < 500:
        return FencegateError(detail, error=code, **members)
    # Not in our words: a proxy, or a server that failed half way. It may have been done.
    return OutcomeUnknown(f"{detail} (status {status})", **members)
