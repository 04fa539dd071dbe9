"""Redis strings as objects: bytes under the user's own names, with their content type and metadata in a hash beside."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from fencegate.clock import SYSTEM, Clock
from fencegate.core.errors import TooLarge
from fencegate.core.ports import NO_CONDITIONS, Body, Conditions, Key, ObjectInfo, Seen
from fencegate_adapters.redis import names, script
from fencegate_adapters.redis.resource import WAIT_MS, Mode, RedisResource, spelled

DEFAULT_MAX_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 256 * 1024
PLAIN = "application/octet-stream"


class RedisStrings(RedisResource):
    """See the head of this file. The ETag is the SHA-1 of the bytes, so that a raw writer's change is seen."""

    form = "strings"

    def __init__(
        self,
        name: str,
        url: str,
        *,
        guard_template: str = "{resource}:{key}",
        mode: Mode = "enforce",
        max_bytes: int = DEFAULT_MAX_BYTES,
        wait_ms: int = WAIT_MS,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(name, url, guard_template=guard_template, mode=mode, wait_ms=wait_ms, clock=clock)
        self.max_bytes = max_bytes

    async def read(
        self, key: Key, fence: str, token: int | None = None, byte_range: tuple[int, int] | None = None
    ) -> tuple[ObjectInfo | None, AsyncIterator[bytes], Seen]:
        passed = await self._pass(script.STRING_READ, fence, token, self._keys(key), ("body",))
        if not passed.found:
            return None, _pieces(b""), passed.seen()
        size, body, about = passed.found
        info = _info(size, await _etag(body), about)
        first, last = byte_range or (0, size - 1)
        return info, _pieces(body[first : last + 1]), passed.seen(info.etag)

    async def head(self, key: Key, fence: str, token: int | None = None) -> tuple[ObjectInfo | None, Seen]:
        passed = await self._pass(script.STRING_READ, fence, token, self._keys(key), ("head",))
        if not passed.found:
            return None, passed.seen()
        size, etag, about = passed.found
        info = _info(size, etag.decode(), about)
        return info, passed.seen(info.etag)

    async def write(
        self,
        key: Key,
        fence: str,
        token: int,
        body: Body,
        *,
        content_type: str,
        metadata: Mapping[str, str],
        conditions: Conditions = NO_CONDITIONS,
    ) -> Seen:
        keys, name = self._keys(key), names.name_of(key)
        data = await self._received(body)
        etag = await _etag(data)
        about = (etag, content_type, json.dumps(dict(metadata)), self._clock.now_us())
        said = (*spelled(conditions), name, data, *about)
        passed = await self._pass(script.STRING_WRITE, fence, token, (*keys, self._index), said, "resource.write")
        return passed.seen(etag, created=passed.found[0] == 1)

    async def delete(self, key: Key, fence: str, token: int, conditions: Conditions = NO_CONDITIONS) -> Seen:
        keys, said = (*self._keys(key), self._index), (*spelled(conditions), names.name_of(key))
        passed = await self._pass(script.STRING_WRITE, fence, token, keys, said, "resource.write")
        return passed.seen()

    async def list(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, ObjectInfo]]:
        """What was written through the gateway, in the order of the names' UTF-8 bytes."""
        first, last = prefix.encode(errors="surrogatepass"), after.encode(errors="surrogatepass")
        lower = b"(" + last if last >= first else b"[" + first
        upper = b"(" + first + b"\xff"  # no UTF-8 text goes on with that byte
        listed: list[tuple[str, ObjectInfo]] = []
        while lower and len(listed) < limit:
            keys = [names.record_name(self._record.name), names.fence_name(""), self._index]
            page: list[str | bytes | int] = [lower, upper, limit - len(listed), self._prefix, names.ABOUT]
            said = [*self._record[1:], self._born, *page]
            told, found = self._judged(await self._run(script.STRING_LIST, keys, said, "not-written"))
            lower = b"(" + told if told else b""
            listed += [(name.decode(), _info(size, etag.decode(), about)) for name, size, etag, about in found]
        return listed

    def _keys(self, key: Key) -> tuple[str, str]:
        value = names.value_name(self._prefix, names.name_of(key))
        return value, names.ABOUT + value

    @property
    def _index(self) -> str:
        return names.index_name(self._record.name)

    async def _received(self, body: Body) -> bytes:
        data = bytearray()
        async for part in _pieces(body) if isinstance(body, bytes) else body:
            data += part
            if len(data) > self.max_bytes:
                raise TooLarge(f"a string has at most {self.max_bytes} bytes here", maxBytes=self.max_bytes)
        return bytes(data)


def _info(size: int, etag: str, about: list[Any]) -> ObjectInfo:
    """What is known of a string; of one that was written by others nothing but its bytes."""
    known_size, token, content_type, metadata, modified = about
    if known_size is None or int(known_size) != size:
        return ObjectInfo(size, etag, 0)
    return ObjectInfo(size, etag, int(token), content_type.decode(), json.loads(metadata), int(modified))


async def _etag(data: bytes) -> str:
    def digest() -> str:
        return hashlib.sha1(data, usedforsecurity=False).hexdigest()

    return digest() if len(data) <= PIECE_BYTES else await asyncio.to_thread(digest)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]
