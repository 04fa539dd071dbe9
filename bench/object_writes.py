"""The arms that write objects to a real S3 server from a Python process: fenced, and plainly by the same library.

Each client replaces an object of its own, again and again. With the fence it holds one lock all the while, so these are
a holder's further writes; without it the put has no condition, nor a frame. In between is a put with a condition and
nothing else, which tells what of the difference is the server's. Two sizes, because what a fence costs is the same for
each write, and weighs the more the smaller the object is.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from bench.arm import Sample
from bench.library import SharedServer
from bench.summary import WRITE
from fencegate.core.token import Token
from fencegate_demo.startable import seaweed

CONTENT_TYPE = "application/octet-stream"
"""Not text: SeaweedFS tries to compress that, a tenth of a large put, but no frame. The arms must be asked the same."""
TOKEN = Token(1_700_000_000_000_000)  # as a lease has it
BUCKET = "bench"
WARM_WRITES = 3

Write = Callable[[int], Awaitable[object]]


class _Seaweed(seaweed.SeaweedServer):
    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/objects?endpoint={self.endpoint}&region=us-east-1"


S3 = SharedServer(_Seaweed, seaweed.missing)


class ObjectWrites:
    """An arm; see the head of this file."""

    def __init__(self, kind: Literal["plain", "conditional", "fenced"], size_kib: int) -> None:
        self.name = f"{kind}-objects-{size_kib}k"
        self._body = os.urandom(size_kib * 1024)
        self._writes = {"plain": _plain, "conditional": _conditional, "fenced": _fenced}[kind]
        self._started = False

    @property
    def missing(self) -> str | None:
        return S3.missing()

    def start(self, folder: Path) -> None:
        os.environ |= {"AWS_ACCESS_KEY_ID": seaweed.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": seaweed.SECRET_KEY}
        S3.start(folder)
        self._started = True

    def run(self, clients: int, seconds: float) -> Sample:
        return asyncio.run(self._run(clients, seconds))

    def hand_over(self, waiters: int, seconds: float) -> Sample:
        raise NotImplementedError("objects are not handed over")

    def stop(self) -> None:
        if self._started:
            S3.stop()
            self._started = False

    async def _run(self, clients: int, seconds: float) -> Sample:
        latencies_us: Counter[int] = Counter()
        errors: list[str] = []

        async def client(number: int, write: Write) -> None:
            while time.perf_counter() < end_s:
                began_s = time.perf_counter()
                try:
                    await write(number)
                except Exception as error:
                    errors.append(f"{type(error).__name__}: {error}")
                    return
                latencies_us[int((time.perf_counter() - began_s) * 1_000_000)] += 1

        async with self._writes(S3.url, self.name, self._body) as write:
            for number in range(clients):
                for _ in range(WARM_WRITES):
                    await write(number)
            cpu_s, began_s = time.process_time(), time.perf_counter()
            end_s = began_s + seconds
            await asyncio.gather(*(client(number, write) for number in range(clients)))
            elapsed_s = time.perf_counter() - began_s
            load_cpu = (time.process_time() - cpu_s) / elapsed_s / (os.cpu_count() or 1)
        done = latencies_us.total()
        first_error = errors[0] if errors else ""
        return Sample(done, done / elapsed_s, len(errors), first_error, {WRITE: latencies_us}, load_cpu)


@asynccontextmanager
async def _fenced(url: str, name: str, data: bytes) -> AsyncIterator[Write]:
    from fencegate_adapters.objects import BucketObjects

    async def write(number: int) -> object:
        key, fence = (f"{number}",), f"files:{number}"
        return await objects.write(key, fence, TOKEN, data, content_type=CONTENT_TYPE, metadata={})

    objects = BucketObjects("files", url.replace("/objects?", f"/{name}?"), guard_template="{resource}:{key}")
    await objects.open()
    try:
        yield write
    finally:
        await objects.close()


@asynccontextmanager
async def _plain(url: str, name: str, data: bytes) -> AsyncIterator[Write]:
    import obstore

    store = _store(url, name)
    attributes = {"Content-Type": CONTENT_TYPE}

    async def write(number: int) -> object:
        return await obstore.put_async(store, f"{number}", data, attributes=attributes, use_multipart=False)

    yield write


@asynccontextmanager
async def _conditional(url: str, name: str, data: bytes) -> AsyncIterator[Write]:
    import obstore

    store = _store(url, name)
    attributes = {"Content-Type": CONTENT_TYPE}
    known: dict[int, Any] = {}

    async def write(number: int) -> object:
        mode = known.get(number, "overwrite")
        done = await obstore.put_async(store, f"{number}", data, attributes=attributes, mode=mode, use_multipart=False)
        known[number] = {"e_tag": done["e_tag"]}
        return done

    yield write


def _store(url: str, name: str) -> Any:
    """The library with the options that it has in the fenced arm."""
    from obstore.store import S3Store

    from fencegate_adapters.objects.bucket.blobs import CONNECT_WITHIN, FOR_EVER

    endpoint = url.partition("endpoint=")[2].partition("&")[0]
    within = timedelta(seconds=20)
    return S3Store(
        BUCKET,
        prefix=name,
        endpoint=endpoint,
        region="us-east-1",
        client_options={
            "allow_http": True,
            "connect_timeout": CONNECT_WITHIN,
            "timeout": FOR_EVER,
            "read_timeout": within,
        },
        retry_config={"max_retries": 0, "retry_timeout": within},
    )
