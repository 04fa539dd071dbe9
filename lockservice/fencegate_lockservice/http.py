"""The lock calls over HTTP: from raw path and body to a call of `LockApi`, and back."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fencegate.core.errors import InvalidInput, MethodNotAllowed, NotFound
from fencegate.core.names import check_text
from fencegate.web import Handler, Reply, Request, dumps
from fencegate.web.asgi import MAX_JSON_BYTES, Disconnected, decode_name, query_params
from fencegate.web.json import convert_value, loads
from fencegate_lockservice.answers import Answer
from fencegate_lockservice.api import LockApi
from fencegate_lockservice.bodies import (
    AcquireBody,
    Body,
    ForceReleaseBody,
    MultiAcquireBody,
    MultiBody,
    MultiReleaseBody,
    MultiRenewBody,
    OpenSessionBody,
    ReleaseBody,
    RenewBody,
    RenewSessionBody,
    StatusBody,
)
from fencegate_lockservice.routed import RoutedApi

Api = LockApi | RoutedApi

_LOCKS = b"/v1/locks"
_BODIES: dict[bytes, type[Body]] = {
    b"acquire": AcquireBody,
    b"renew": RenewBody,
    b"release": ReleaseBody,
    b"force-release": ForceReleaseBody,
    b"status": StatusBody,
}
_MULTI: dict[bytes, type[MultiBody]] = {
    b"acquire": MultiAcquireBody,
    b"renew": MultiRenewBody,
    b"release": MultiReleaseBody,
}
_HOT = frozenset({b"acquire", b"renew", b"release"})
_LIST = frozenset({"namespace", "prefix", "limit", "cursor"})
_JSON_GET = [(b"cache-control", b"no-store")]


class LockRoutes:
    """Routes the lock calls of CONTRACT; everything else is somebody else's."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._sessions = SessionRoutes(api)
        self._calls: dict[bytes, Callable[[str, Any], Awaitable[Answer]]] = {
            b"acquire": api.acquire,
            b"renew": api.renew,
            b"release": api.release,
            b"force-release": api.force_release,
            b"status": lambda lock_key, _: api.status(lock_key),
        }
        self._multi: dict[bytes, Callable[[Any], Awaitable[Answer]]] = {
            b"acquire": api.multi_acquire,
            b"renew": api.multi_renew,
            b"release": api.multi_release,
        }

    def route(self, method: str, path: bytes) -> Handler | None:
        if path.startswith(b"/v1/locks/"):
            raw_key, slash, verb = path[10:].rpartition(b"/")
            if method == "POST":
                if slash and verb in _BODIES and verb != b"status":
                    return partial(self._call, verb, raw_key)
                return partial(_no_verb, path)
            if method in ("GET", "HEAD"):
                return partial(self._status, path[10:])
            return partial(_wrong_method, "GET, HEAD, POST")
        if path == _LOCKS:
            return self._list if method in ("GET", "HEAD") else partial(_wrong_method, "GET, HEAD")
        if path.startswith(b"/v1/multi/") and path[10:] in _MULTI:
            return partial(self._several, path[10:]) if method == "POST" else partial(_wrong_method, "POST")
        if path == b"/v1/sessions" or path.startswith(b"/v1/sessions/"):
            return self._sessions.route(method, path[12:])
        if path.startswith(b"/v1/") and path[4:] in _BODIES:
            return partial(self._call, path[4:], None) if method == "POST" else partial(_wrong_method, "POST")
        return None

    def hot(self, path: bytes, content: bytes) -> Awaitable[Reply] | None:
        """The answer to a POST that doesn't wait; None for all others."""
        if b'"wait' in content or len(content) > MAX_JSON_BYTES or not path.startswith(b"/v1/locks/"):
            return None
        if b"\\" in content:  # an escape may spell `wait` as well
            return None
        raw_key, _, verb = path[10:].rpartition(b"/")
        return self._at_once(verb, raw_key, content) if verb in _HOT else None

    async def _at_once(self, verb: bytes, raw_key: bytes, content: bytes) -> Reply:
        return Reply(200, dumps(await self._calls[verb](*_parsed(verb, raw_key, content))))

    async def _call(self, verb: bytes, raw_key: bytes | None, request: Request) -> Reply:
        lock_key, body = _parsed(verb, raw_key, await request.body())
        call = self._calls[verb](lock_key, body)
        if isinstance(body, AcquireBody) and (body.wait or body.waitMillis):
            return Reply(200, dumps(await _while_connected(call, request)))
        return Reply(200, dumps(await call))

    async def _several(self, verb: bytes, request: Request) -> Reply:
        body = convert_value(_json(await request.body()), _MULTI[verb])
        call = self._multi[verb](body)
        if isinstance(body, MultiAcquireBody) and (body.wait or body.waitMillis):
            return Reply(200, dumps(await _while_connected(call, request)))
        return Reply(200, dumps(await call))

    async def _status(self, raw_key: bytes, _request: Request) -> Reply:
        return Reply(200, dumps(await self._api.status(decode_name(raw_key, "lockKey"))), _JSON_GET)

    async def _list(self, request: Request) -> Reply:
        asked = query_params(request.query, _LIST)
        for name in ("namespace", "prefix", "cursor"):
            if asked.get(name):
                check_text(name, asked[name], 1024)
        limit = asked.get("limit", "100")
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 6):
            raise InvalidInput("limit", "must be a whole number from 1 to 1000")
        found = await self._api.list_locks(
            prefix=asked.get("prefix", ""),
            namespace=asked.get("namespace") or None,
            limit=int(limit),
            cursor=asked.get("cursor", ""),
        )
        return Reply(200, dumps(found), _JSON_GET)


class SessionRoutes:
    """The calls about sessions, by what follows `/v1/sessions`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def route(self, method: str, path: bytes) -> Handler:
        raw_id, _, verb = path[1:].partition(b"/")
        if not raw_id:
            return self._open if method == "POST" else partial(_wrong_method, "POST")
        if verb == b"renew":
            return partial(self._renew, raw_id) if method == "POST" else partial(_wrong_method, "POST")
        if verb:
            return partial(_nothing, path)
        calls = {"GET": self._look, "HEAD": self._look, "DELETE": self._end}
        return partial(calls[method], raw_id) if method in calls else partial(_wrong_method, "GET, HEAD, DELETE")

    async def _open(self, request: Request) -> Reply:
        body = convert_value(_json(await request.body()), OpenSessionBody)
        return Reply(200, dumps(await self._api.open_session(body)))

    async def _renew(self, raw_id: bytes, request: Request) -> Reply:
        body = convert_value(_json(await request.body()), RenewSessionBody)
        return Reply(200, dumps(await self._api.renew_session(decode_name(raw_id, "sessionId"), body)))

    async def _end(self, raw_id: bytes, _request: Request) -> Reply:
        return Reply(200, dumps(await self._api.end_session(decode_name(raw_id, "sessionId"))))

    async def _look(self, raw_id: bytes, _request: Request) -> Reply:
        return Reply(200, dumps(await self._api.session(decode_name(raw_id, "sessionId"))), _JSON_GET)


def _json(content: bytes) -> dict[str, Any]:
    data = loads(content) if content else {}
    if not isinstance(data, dict):
        raise InvalidInput("body", "must be a JSON object")
    return data


def _parsed(verb: bytes, raw_key: bytes | None, content: bytes) -> tuple[str, Body]:
    """The lock key, from the path or (None) from the body; and the rest of the body."""
    data = _json(content)
    if raw_key is not None:
        lock_key = decode_name(raw_key, "lockKey")
        if data.pop("lockKey", lock_key) != lock_key:
            raise InvalidInput("lockKey", "is not the one that the path names")
        return lock_key, convert_value(data, _BODIES[verb])
    lock_key = data.pop("lockKey", None)
    if not isinstance(lock_key, str):
        raise InvalidInput("lockKey", "must be given, as a string")
    return lock_key, convert_value(data, _BODIES[verb])


async def _while_connected(call: Awaitable[Answer], request: Request) -> Answer:
    """Wait for the lock as long as the client does: one that hung up must not stand in the queue, nor be granted."""
    work = asyncio.ensure_future(call)
    gone = asyncio.ensure_future(request.disconnected())
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise Disconnected
    finally:
        gone.cancel()
        work.cancel()


async def _no_verb(path: bytes, _request: Request) -> Reply:
    verbs = ", ".join(verb.decode() for verb in _BODIES if verb != b"status")
    raise NotFound(f"there is no call {path.decode('latin-1')[:200]!r}; after the lock key comes one of {verbs}")


async def _nothing(path: bytes, _request: Request) -> Reply:
    raise NotFound(f"there is nothing at {path.decode('latin-1')[:200]!r} of a session; its call is renew")


async def _wrong_method(allow: str, request: Request) -> Reply:
    raise MethodNotAllowed(f"{request.method} is not for this path; use {allow}", allow)
