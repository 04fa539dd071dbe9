"""Objects over HTTP: bytes that stream both ways, with ranges, conditions and a listing."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from email.utils import formatdate

from fencegate.clock import Clock
from fencegate.core.errors import InvalidInput, NotFound, ResourceUnavailable
from fencegate.core.names import MAX_LOCK_KEY_BYTES, check_text
from fencegate.core.ports import Key, ObjectInfo, Objects
from fencegate.core.token import Token
from fencegate.gateway.bodies import Upload
from fencegate.gateway.call import Call
from fencegate.gateway.conditions import given_conditions, judge_date, judge_read, quoted, refuse_date
from fencegate.gateway.metadata import given_content_type, given_metadata, metadata_headers
from fencegate.gateway.paths import check_key
from fencegate.gateway.protected import Protected
from fencegate.gateway.ranges import wanted_range
from fencegate.gateway.resources import ResourceSettings
from fencegate.web.asgi import Headers, Reply, query_params
from fencegate.web.json import dumps

PAGE = 100
MAX_PAGE = 1000
TRIES = 5

_JUDGED = (b"range", b"if-match", b"if-none-match", b"if-unmodified-since")
_DIGITS = re.compile(r"[0-9]{1,9}", re.ASCII)


class ProtectedObjects(Protected):
    """The calls of a resource of objects."""

    def __init__(self, settings: ResourceSettings, objects: Objects, clock: Clock, within_s: float) -> None:
        super().__init__(settings, objects, clock, within_s)
        self._objects = objects
        self.calls = {"GET": self._get, "HEAD": self._head, "PUT": self._put, "DELETE": self._delete}

    def key_of(self, segments: Sequence[str], field: str = "key") -> Key:
        """`a%2Fb` and `a/b` are one object, since they have one name in a listing and one lock."""
        return tuple("/".join(check_key(segments, field)).split("/"))

    async def collection(self, call: Call) -> Reply:
        return await (self._list(call) if call.request.method in ("GET", "HEAD") else super().collection(call))

    async def _head(self, call: Call) -> Reply:
        info = await self._info(call, self.given(call))
        judge_date(call.request, info.modified_us)
        headers = [*_headers(info), (b"content-length", b"%d" % info.size)]
        return judge_read(call.request, info.etag) or Reply(200, headers=headers, content_type=_content_type(info))

    async def _get(self, call: Call) -> Reply:
        token = self.given(call)
        if any(call.request.headers(name) for name in _JUDGED):
            return await self._judged(call, token)
        async with self.answering("not-written" if token is None else "unknown"):
            info, body, seen = await self._objects.read(call.key, call.fence, token)
        call.saw(seen)
        if info is None:
            raise self._nothing(call)
        return self._content(info, body, None)

    async def _judged(self, call: Call, token: Token | None) -> Reply:
        """Judge what is known of the object, then read that same version of it, and no other."""
        for _ in range(TRIES):
            judged = await self._info(call, token)
            judge_date(call.request, judged.modified_us)
            not_modified = judge_read(call.request, judged.etag)
            if not_modified is not None:
                return not_modified
            byte_range = wanted_range(call.request, judged)
            async with self.answering("not-written"):
                info, body, _ = await self._objects.read(call.key, call.fence, None, byte_range)
            if info is not None and info.etag == judged.etag:
                return self._content(info, body, byte_range)
            await _close(body)
        raise ResourceUnavailable("the object is being replaced all the time; try again")

    def _content(self, info: ObjectInfo, body: AsyncIterator[bytes], byte_range: tuple[int, int] | None) -> Reply:
        headers = _headers(info)
        status, length = 200, info.size
        if byte_range is not None:
            first, last = byte_range
            status, length = 206, last - first + 1
            headers.append((b"content-range", b"bytes %d-%d/%d" % (first, last, info.size)))
        headers.append((b"content-length", b"%d" % length))
        return Reply(status, _relayed(body, self.within_s), headers, _content_type(info))

    async def _put(self, call: Call) -> Reply:
        token = self.required(call)
        request = call.request
        if request.header(b"content-range") is not None:
            raise InvalidInput("Content-Range", "an object is written as a whole")
        if any(text.lower() not in ("", "identity") for text in request.headers(b"content-encoding")):
            raise InvalidInput("Content-Encoding", "is not kept, so readers would not know; send the bytes as they are")
        refuse_date(request)
        conditions = given_conditions(request)
        content_type, metadata = given_content_type(request), given_metadata(request)
        upload = Upload(request, self._objects.max_bytes, self.within_s)
        try:
            async with self.answering("unknown") as limit:
                seen = await self._objects.write(
                    call.key,
                    call.fence,
                    token,
                    upload.parts(limit),
                    content_type=content_type,
                    metadata=metadata,
                    conditions=conditions,
                )
        except ResourceUnavailable:
            if upload.awaited:
                raise InvalidInput("body", f"stopped arriving for {self.within_s:g} s") from None
            raise
        call.saw(seen)
        headers: Headers = [(b"etag", quoted(seen.etag))] if seen.etag is not None else []
        return Reply(201 if seen.created else 204, headers=headers)

    async def _delete(self, call: Call) -> Reply:
        token = self.required(call)
        refuse_date(call.request)
        conditions = given_conditions(call.request)
        async with self.answering("unknown"):
            seen = await self._objects.delete(call.key, call.fence, token, conditions)
        call.saw(seen)
        return Reply(204)

    async def _list(self, call: Call) -> Reply:
        params = query_params(call.request.query, frozenset({"prefix", "cursor", "limit"}))
        for name in ("prefix", "cursor"):
            if params.get(name):
                check_text(name, params[name], MAX_LOCK_KEY_BYTES)
        limit = _limit(params.get("limit", str(PAGE)))
        async with self.answering("not-written"):
            found = await self._objects.list(params.get("prefix", ""), params.get("cursor", ""), limit + 1)
        page = found[:limit]
        return Reply(
            200,
            dumps(
                {
                    "objects": [_listed(key, info) for key, info in page],
                    "nextCursor": page[-1][0] if len(found) > limit else None,
                }
            ),
        )

    async def _info(self, call: Call, token: Token | None) -> ObjectInfo:
        async with self.answering("not-written" if token is None else "unknown"):
            info, seen = await self._objects.head(call.key, call.fence, token)
        call.saw(seen)
        if info is None:
            raise self._nothing(call)
        return info

    def _nothing(self, call: Call) -> NotFound:
        return NotFound("there is no such object", resource=self.settings.name, key=call.key_text)


def _headers(info: ObjectInfo) -> Headers:
    """What goes with the bytes. They are anybody's, so a browser must not take them for a page of ours."""
    headers: Headers = [
        (b"etag", quoted(info.etag)),
        (b"accept-ranges", b"bytes"),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"sandbox"),
        *metadata_headers(info.metadata),
    ]
    if info.modified_us:
        headers.append((b"last-modified", formatdate(info.modified_us / 1_000_000, usegmt=True).encode()))
    return headers


def _content_type(info: ObjectInfo) -> bytes:
    return info.content_type.encode("latin-1")


def _listed(key: str, info: ObjectInfo) -> dict[str, str | int]:
    return {
        "key": key,
        "size": info.size,
        "etag": info.etag,
        "contentType": info.content_type,
        "fencingToken": str(info.token),
        "modifiedAt": info.modified_us // 1000,
    }


def _limit(text: str) -> int:
    if _DIGITS.fullmatch(text) is None or not 1 <= int(text) <= MAX_PAGE:
        raise InvalidInput("limit", f"must be a whole number from 1 to {MAX_PAGE}")
    return int(text)


async def _relayed(body: AsyncIterator[bytes], within_s: float) -> AsyncIterator[bytes]:
    """The bytes of an object; a resource that stops midway breaks the connection, so that no part looks whole."""
    try:
        while True:
            async with asyncio.timeout(within_s):
                part = await anext(body, None)
            if part is None:
                return
            yield part
    finally:
        await _close(body)


async def _close(body: AsyncIterator[bytes]) -> None:
    if isinstance(body, AsyncGenerator):
        await body.aclose()
