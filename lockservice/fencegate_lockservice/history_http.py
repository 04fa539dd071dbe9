"""`GET /v1/history` over HTTP, and its page in the documentation."""

from functools import partial
from typing import Any, Protocol

from fencegate.core.errors import InvalidInput, MethodNotAllowed
from fencegate.web import Handler, Reply, Request, dumps
from fencegate.web.asgi import query_params
from fencegate_lockservice.history import DEFAULT_LIMIT, MAX_LIMIT, Answer

_PATH = b"/v1/history"
_QUERY = frozenset({"lockKey", "limit", "cursor"})
_NO_STORE = [(b"cache-control", b"no-store")]


class HasHistory(Protocol):
    async def history(self, lock_key: str, *, limit: int = ..., cursor: str = ...) -> Answer: ...


class HistoryRoutes:
    def __init__(self, locks: HasHistory) -> None:
        self._locks = locks

    def route(self, method: str, path: bytes) -> Handler | None:
        if path != _PATH:
            return None
        return self._answer if method in ("GET", "HEAD") else partial(_wrong_method, "GET, HEAD")

    async def _answer(self, request: Request) -> Reply:
        asked = query_params(request.query, _QUERY)
        if "lockKey" not in asked:
            raise InvalidInput("lockKey", "must be given: /v1/history?lockKey=…")
        limit = asked.get("limit", str(DEFAULT_LIMIT))
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 6):
            raise InvalidInput("limit", f"must be a whole number from 1 to {MAX_LIMIT}")
        found = await self._locks.history(asked["lockKey"], limit=int(limit), cursor=asked.get("cursor", ""))
        return Reply(200, dumps(found), _NO_STORE)


async def _wrong_method(allow: str, request: Request) -> Reply:
    raise MethodNotAllowed(f"{request.method} is not for this path; use {allow}", allow)


def _may_be_null(kind: str, description: str = "") -> dict[str, Any]:
    return {"type": [kind, "null"], **({"description": description} if description else {})}


def components() -> dict[str, Any]:
    hold = {
        "ownerId": {"type": "string"},
        "fencingToken": {"type": "string"},
        "mode": {"type": "string", "enum": ["exclusive", "shared"]},
        "slot": {"type": "integer", "description": "Which of the permits it was"},
        "acquiredAt": {"type": "integer", "description": "Unix milliseconds"},
        "endedAt": _may_be_null("integer", "Unix milliseconds; null while it is held"),
        "ending": _may_be_null("string", "released, expired or forced; null while it is held"),
        "reason": {"type": "string", "description": "Why it was released by force"},
    }
    answer = {
        "lockKey": {"type": "string"},
        "history": {"type": "array", "items": {"$ref": "#/components/schemas/PastHold"}},
        "nextCursor": _may_be_null("string"),
        "complete": {
            "type": "boolean",
            "description": "False when something may be missing in the time that this answer covers",
        },
    }
    return {"PastHold": {"type": "object", "properties": hold}, "History": {"type": "object", "properties": answer}}


def paths() -> dict[str, Any]:
    problem = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    found = {"application/json": {"schema": {"$ref": "#/components/schemas/History"}}}
    parameters = [
        {"name": "lockKey", "in": "query", "required": True, "schema": {"type": "string"}},
        {"name": "limit", "in": "query", "schema": {"type": "integer", "default": DEFAULT_LIMIT, "maximum": MAX_LIMIT}},
        {"name": "cursor", "in": "query", "schema": {"type": "string"}},
    ]
    call = {
        "tags": ["locks"],
        "summary": "Who held the lock, newest first, and how each hold ended",
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done", "content": found},
            "422": {"description": "INVALID_…: names the parameter", **problem},
            "501": {"description": "NOT_SUPPORTED_BY_STORE: the store keeps no history", **problem},
            "503": {"description": "STORE_UNAVAILABLE", **problem},
        },
    }
    return {"/v1/history": {"get": call}}
