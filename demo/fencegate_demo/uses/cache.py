"""Cache rebuild: one of many builds an expensive page, the others wait for it, and a late build never wins.

A build takes long, and its source may change meanwhile. The page goes through the gateway with the token of the lock,
so that a builder that was frozen can't put its old page over the newer one of its successor.

The gateway is told that a page is guarded by a lock of its own: `guard = "cache:{key}"`.

    async with connect() as locks, httpx.AsyncClient(base_url="http://127.0.0.1:7420/v1/resources/pages/") as pages:
        await refresh(locks, pages, "front", source)
"""

from typing import Protocol
from urllib.parse import quote

import httpx

from fencegate import Locks

VERSION = "X-Meta-Version"


class Source(Protocol):
    """What the page is built from."""

    async def version(self) -> str: ...
    async def build(self) -> bytes: ...


async def refresh(locks: Locks, pages: httpx.AsyncClient, name: str, source: Source, *, ttl: float = 30.0) -> bool:
    """See to it that the cached page is as new as its source. Whether it had to be built; usually another did it."""
    address = quote(name)
    async with locks.hold(f"cache:{name}", ttl=ttl, wait=60) as lease:
        cached = await pages.get(address, headers=lease.headers())  # a fenced read: older builders are out from here on
        if cached.status_code != 404:
            cached.raise_for_status()
        version = await source.version()  # before the build: a change during it is found the next time
        if cached.headers.get(VERSION) == version:
            return False
        page = await source.build()
        answer = await pages.put(address, content=page, headers={**lease.headers(), VERSION: version})
        answer.raise_for_status()  # 412: a newer holder has been here, and nothing was written
    return True
