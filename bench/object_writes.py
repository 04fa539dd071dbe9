"""The arms that write objects to a real server from a Python process: fenced, and plainly by the same library.

Each client replaces an object of its own, again and again. With the fence it holds one lock all the while, so these are
a holder's further writes; without it the put has no condition, nor a frame. In between is a put with a condition and
nothing else, which tells what of the difference is the server's. Two sizes, because what a fence costs is the same for
each write, and weighs the more the smaller the object is. Two servers, because a condition has its price in one of them
and none in the other.

The arms of one server and size run in turns (`turns.py`).
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from bench.arm import Sample
from bench.library import SharedServer
from bench.turns import Turns, in_turns
from fencegate.core.token import Token
from fencegate_demo.startable import azurite, seaweed

CONTENT_TYPE = "application/octet-stream"
"""Not text: SeaweedFS tries to compress that, a tenth of a large put, but no frame. The arms must be asked the same."""
TOKEN = Token(1_700_000_000_000_000)  # as a lease has it
BUCKET = "bench"
TURN = 10
"""So many writes of each client of one arm, then as many of the next."""

Write = Callable[[int], Awaitable[object]]


class _Seaweed(seaweed.SeaweedServer):
    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{{folder}}?endpoint={self.endpoint}&region=us-east-1"


class _Azurite(azurite.AzuriteServer):
    @property
    def url(self) -> str:
        return f"az://{BUCKET}/{{folder}}?endpoint={self.endpoint}&account={azurite.ACCOUNT}"

    def start(self) -> Self:
        super().start()
        self.make_container(BUCKET)
        return self


S3 = SharedServer(_Seaweed, seaweed.missing)
AZURE = SharedServer(_Azurite, azurite.missing)
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": seaweed.ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": seaweed.SECRET_KEY,
    "AZURE_STORAGE_ACCOUNT_KEY": azurite.KEY,
}


class Writes(Protocol):
    """How to write these bytes under a folder of the bucket at a URL."""

    def __call__(self, url: str, folder: str, data: bytes) -> Any: ...


class ObjectWrites:
    """An arm; see the head of this file."""

    def __init__(self, name: str, server: SharedServer, writes: Writes, size_kib: int) -> None:
        self.name = name
        self._server = server
        self._writes = writes
        self._body = os.urandom(size_kib * 1024)
        self.others: Sequence[ObjectWrites] = ()
        """That run in turns with it, and itself."""
        self._started = False
        self._taken: dict[int, list[Sample]] = {}
        """By the number of clients: in the turns of others, and not asked for yet."""

    @property
    def missing(self) -> str | None:
        return self._server.missing()

    def start(self, folder: Path) -> None:
        os.environ |= CREDENTIALS
        self._server.start(folder)
        self._started = True

    def run(self, clients: int, seconds: float) -> Sample:
        if not self._taken.get(clients):
            arms = [arm for arm in self.others if arm._started]
            for arm, sample in zip(arms, asyncio.run(_in_turns(arms, clients, seconds)), strict=True):
                arm._taken.setdefault(clients, []).append(sample)
        return self._taken[clients].pop()

    def hand_over(self, waiters: int, seconds: float) -> Sample:
        raise NotImplementedError("objects are not handed over")

    def stop(self) -> None:
        if self._started:
            self._server.stop()
            self._started = False

    async def writer(self, stack: AsyncExitStack) -> Write:
        """What is measured."""
        write: Write = await stack.enter_async_context(self._writes(self._server.url, self.name, self._body))
        return write


async def _in_turns(arms: Sequence[ObjectWrites], clients: int, seconds: float) -> list[Sample]:
    async with AsyncExitStack() as stack:
        writers = [await arm.writer(stack) for arm in arms]
        return await in_turns([partial(_turn, write, clients) for write in writers], clients * TURN, seconds)


async def _turn(write: Write, clients: int, turns: Turns) -> None:
    async def client(number: int) -> None:
        now_s = time.perf_counter()
        try:
            for _ in range(TURN):
                await write(number)
                now_s = turns.written(now_s)
        except Exception as error:
            turns.failed(error)

    with turns.one():
        await asyncio.gather(*(client(number) for number in range(clients)))


# --- what is compared ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _fenced(url: str, folder: str, data: bytes) -> AsyncIterator[Write]:
    from fencegate_adapters.objects import BucketObjects

    async def write(number: int) -> object:
        key, fence = (f"{number}",), f"files:{number}"
        return await objects.write(key, fence, TOKEN, data, content_type=CONTENT_TYPE, metadata={})

    objects = BucketObjects("files", url.format(folder=folder), guard_template="{resource}:{key}")
    await objects.open()
    try:
        yield write
    finally:
        await objects.close()


@asynccontextmanager
async def _plain(url: str, folder: str, data: bytes) -> AsyncIterator[Write]:
    import obstore

    store = _store(url, folder)
    attributes = {"Content-Type": CONTENT_TYPE}

    async def write(number: int) -> object:
        return await obstore.put_async(store, f"{number}", data, attributes=attributes, use_multipart=False)

    yield write


@asynccontextmanager
async def _conditional(url: str, folder: str, data: bytes) -> AsyncIterator[Write]:
    import obstore

    store = _store(url, folder)
    attributes = {"Content-Type": CONTENT_TYPE}
    known: dict[int, Any] = {}

    async def write(number: int) -> object:
        mode = known.get(number, "overwrite")
        done = await obstore.put_async(store, f"{number}", data, attributes=attributes, mode=mode, use_multipart=False)
        known[number] = {"e_tag": done["e_tag"]}
        return done

    yield write


def _store(url: str, folder: str) -> Any:
    """The library with the options that it has in the fenced arm."""
    import certifi
    from obstore.store import AzureStore, S3Store

    from fencegate_adapters.objects.bucket.blobs import CONNECT_WITHIN, FOR_EVER

    endpoint = url.partition("endpoint=")[2].partition("&")[0]
    within = timedelta(seconds=20)
    options: Any = {
        "endpoint": endpoint,
        "client_options": {
            "allow_http": True,
            "connect_timeout": CONNECT_WITHIN,
            "timeout": FOR_EVER,
            "read_timeout": within,
            "root_certificate": Path(certifi.where()).read_bytes(),  # it wants some, even where there is no TLS
        },
        "retry_config": {"max_retries": 0, "retry_timeout": within},
    }
    if url.startswith("az:"):
        return AzureStore(BUCKET, prefix=folder, account_name=azurite.ACCOUNT, **options)
    return S3Store(BUCKET, prefix=folder, region="us-east-1", **options)


_KINDS: dict[str, Writes] = {"plain": _plain, "conditional": _conditional, "fenced": _fenced}


def arms() -> list[ObjectWrites]:
    """Of each server and size: `fenced-objects-16k`, `plain-azure-16k`, …"""
    found: list[ObjectWrites] = []
    for label, server in (("objects", S3), ("azure", AZURE)):
        for size_kib in (16, 256):
            group = [
                ObjectWrites(f"{kind}-{label}-{size_kib}k", server, writes, size_kib) for kind, writes in _KINDS.items()
            ]
            for arm in group:
                arm.others = group
            found += group
    return found
