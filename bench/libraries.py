"""The ways to lock that are compared: each makes clients that acquire and release one lock, over and over."""

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Protocol
from urllib.parse import urlsplit

TTL_S = 30


class AsyncClient(Protocol):
    async def acquire(self) -> object: ...

    async def release(self) -> object: ...


class SyncClient(Protocol):
    def acquire(self) -> object: ...

    def release(self) -> object: ...


MakeAsync = Callable[[str, Sequence[str]], AbstractAsyncContextManager[list[AsyncClient]]]
"""Clients of the server at a URL, one for each name (which may be the same)."""
MakeSync = Callable[[str, Sequence[str]], AbstractContextManager[list[SyncClient]]]


# --- Fencegate -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def fencegate(url: str, names: Sequence[str]) -> AsyncIterator[list[AsyncClient]]:
    """As `connect(URL)` is used: with a fencing token, a queue, a change log, and renewal on a thread of its own."""
    from fencegate import connect

    async with connect(url) as locks:
        yield [locks.hold(name, ttl=TTL_S, wait=TTL_S) for name in names]


@contextmanager
def fencegate_sync(url: str, names: Sequence[str]) -> Iterator[list[SyncClient]]:
    from fencegate.sync import connect

    with connect(url) as locks:
        yield [locks.hold(name, ttl=TTL_S, wait=TTL_S) for name in names]


# --- Redis -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def redis_py(url: str, names: Sequence[str]) -> AsyncIterator[list[AsyncClient]]:
    from redis.asyncio import Redis

    async with Redis.from_url(url) as client:
        yield [client.lock(name, timeout=TTL_S) for name in names]


@contextmanager
def redis_py_sync(url: str, names: Sequence[str]) -> Iterator[list[SyncClient]]:
    from redis import Redis

    with Redis.from_url(url) as client:
        yield [client.lock(name, timeout=TTL_S) for name in names]


@contextmanager
def python_redis_lock(url: str, names: Sequence[str]) -> Iterator[list[SyncClient]]:
    import redis_lock
    from redis import Redis

    with Redis.from_url(url) as client:
        yield [redis_lock.Lock(client, name, expire=TTL_S) for name in names]


# --- etcd ------------------------------------------------------------------------------------------------------------


class EtcdLock:
    """etcd's own v3 lock through its JSON gateway. The lease is granted beforehand."""

    def __init__(self, client: Any, lease: str, name: str) -> None:
        self._client = client
        self._body = {"name": base64.b64encode(name.encode()).decode(), "lease": lease}
        self._key = ""

    async def acquire(self) -> None:
        self._key = (await self._post("/v3/lock/lock", self._body))["key"]

    async def release(self) -> None:
        await self._post("/v3/lock/unlock", {"key": self._key})

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        answer = await self._client.post(path, content=json.dumps(body))
        answer.raise_for_status()
        return answer.json()


@asynccontextmanager
async def etcd_python(url: str, names: Sequence[str]) -> AsyncIterator[list[AsyncClient]]:
    import httpx

    limits = httpx.Limits(max_connections=len(names), max_keepalive_connections=len(names))
    async with httpx.AsyncClient(base_url=f"http://{urlsplit(url).netloc}", limits=limits, timeout=30) as client:
        clients: list[AsyncClient] = []
        for name in names:
            lease = (await client.post("/v3/lease/grant", content=json.dumps({"TTL": 3600}))).json()["ID"]
            clients.append(EtcdLock(client, lease, name))
        yield clients


# --- ZooKeeper -------------------------------------------------------------------------------------------------------


@contextmanager
def kazoo(url: str, names: Sequence[str]) -> Iterator[list[SyncClient]]:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=urlsplit(url).netloc)
    client.start()
    try:
        yield [client.Lock(f"/bench/{name.replace(':', '-')}", f"client-{number}") for number, name in enumerate(names)]
    finally:
        client.stop()
        client.close()


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


class AdvisoryLock:
    """A session-level advisory lock, on a connection of its own, as it has to be."""

    def __init__(self, connection: Any, number: int) -> None:
        self._connection = connection
        self._number = number

    def acquire(self) -> None:
        self._connection.execute("SELECT pg_advisory_lock(%s)", [self._number])

    def release(self) -> None:
        self._connection.execute("SELECT pg_advisory_unlock(%s)", [self._number])


@contextmanager
def advisory(url: str, names: Sequence[str]) -> Iterator[list[SyncClient]]:
    import psycopg

    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    with ExitStack() as stack:
        yield [
            AdvisoryLock(stack.enter_context(psycopg.connect(url, autocommit=True)), numbers[name]) for name in names
        ]


ASYNC: Mapping[str, MakeAsync] = {"fencegate": fencegate, "redis-py": redis_py, "etcd-python": etcd_python}
SYNC: Mapping[str, MakeSync] = {
    "fencegate-sync": fencegate_sync,
    "redis-py-sync": redis_py_sync,
    "python-redis-lock": python_redis_lock,
    "kazoo": kazoo,
    "advisory": advisory,
}
