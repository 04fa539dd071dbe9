"""Bodies of requests: whole, or refused. A part of a body is never written as if it were all of it."""

import asyncio
import math
import re
from collections.abc import AsyncIterator
from typing import Any

from fencegate.core.errors import InvalidInput, TooLarge
from fencegate.web.asgi import Request
from fencegate.web.json import loads

MAX_DEPTH = 64
INT64 = range(-(2**63), 2**63)

_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")


def declared_length(request: Request, limit: int) -> int | None:
    """What Content-Length says; None when the body comes in chunks. TooLarge over `limit`, before a byte is read."""
    values = set(request.headers(b"content-length"))
    if not values:
        if any(coding.lower() != "chunked" for coding in request.headers(b"transfer-encoding")):
            raise InvalidInput("Transfer-Encoding", "can only be chunked: what else was done to the body is not undone")
        return None
    value = values.pop()
    if values or _LENGTH.fullmatch(value) is None:
        raise InvalidInput("Content-Length", "must be one whole number")
    if int(value) > limit:
        raise too_large(limit)
    return int(value)


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is over the resource's max_bytes, {limit}", maxBytes=limit)


def check_whole(received: int, declared: int | None) -> None:
    if declared is not None and received != declared:
        raise InvalidInput("Content-Length", f"says {declared}, but {received} bytes came")


async def json_object(request: Request, limit: int, within_s: float) -> dict[str, Any]:
    """The body as a JSON object whose every value means the same to every reader."""
    declared = declared_length(request, limit)
    try:
        body = await request.body(limit, within_s)
    except TooLarge:
        raise too_large(limit) from None
    check_whole(len(body), declared)
    value = loads(body)
    if not isinstance(value, dict):
        raise InvalidInput("body", "must be a JSON object")
    _check("body", value, MAX_DEPTH)
    return value


def _check(field: str, value: Any, depth: int) -> None:
    if isinstance(value, str):
        if not value.isascii() and _SURROGATE.search(value) is not None:
            raise InvalidInput(field, "holds half of a surrogate pair, which is no character")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(field, "is a number beyond what JSON readers can hold; send it as a string")
    elif isinstance(value, int):
        if value not in INT64:
            raise InvalidInput(field, "is an integer of more than 64 bits; send it as a string")
    elif isinstance(value, dict | list):
        if depth == 0:
            raise InvalidInput(field, f"is nested more than {MAX_DEPTH} deep")
        if isinstance(value, dict):
            for name in value:
                _check(field, name, depth)
        for name, item in value.items() if isinstance(value, dict) else ((field, item) for item in value):
            _check(name if field == "body" else field, item, depth - 1)


class Upload:
    """The body of a write on its way into a resource."""

    def __init__(self, request: Request, max_bytes: int, within_s: float) -> None:
        self._request = request
        self._declared = declared_length(request, max_bytes)
        self._within_s = within_s
        self.awaited = False
        """Whether the caller, and not the resource, is the one who is waited for."""

    async def parts(self, limit: asyncio.Timeout) -> AsyncIterator[bytes]:
        """`limit` is put off with every part that comes or goes: a large body may take its time, a stuck one not."""
        loop = asyncio.get_running_loop()

        def turn(*, awaited: bool) -> None:
            self.awaited = awaited
            limit.reschedule(loop.time() + self._within_s)

        received = 0
        turn(awaited=True)
        async for part in self._request.stream():
            received += len(part)
            turn(awaited=False)
            yield part
            turn(awaited=True)
        turn(awaited=False)
        check_whole(received, self._declared)
