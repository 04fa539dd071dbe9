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
from fencegate_lockservice.api import Answer, LockApi
from fencegate_lockservice.bodies import AcquireBody, Body, ForceReleaseBody, ReleaseBody, RenewBody, StatusBody

_LOCKS = b"/v1/locks"
_BODIES: dict[bytes, type[Body]] = {
    b"acquire": AcquireBody,
    b"renew": RenewBody,
    b"release": ReleaseBody,
    b"force-release": ForceReleaseBody,
    b"status": StatusBody,
}
_HOT = frozenset({b"acquire", b"renew", b"release"})
_LIST = frozenset({"namespace", "prefix", "limit", "cursor"})
_JSON_GET = [(b"cache-control", b"no-store")]


class LockRoutes:
    """Routes the lock calls of CONTRACT; everything else is somebody else's."""

    def __init__(self, api: LockApi) -> None:
        self._api = api
        self._calls: dict[bytes, Callable[[str, Any], Awaitable[Answer]]] = {
            b"acquire": api.acquire,
            b"renew": api.renew,
            b"release": api.release,
            b"force-release": api.force_release,
            b"status": lambda lock_key, _: api.status(lock_key),
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


def _parsed(verb: bytes, raw_key: bytes | None, content: bytes) -> tuple[str, Body]:
    """The lock key, from the path or (None) from the body; and the rest of the body."""
    data = loads(content) if content else {}
    if not isinstance(data, dict):
        raise InvalidInput("body", "must be a JSON object")
    if raw_key is not None:
        return decode_name(raw_key, "lockKey"), convert_value(data, _BODIES[verb])
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


async def _wrong_method(allow: str, request: Request) -> Reply:
    raise MethodNotAllowed(f"{request.method} is not for this path; use {allow}", allow)
