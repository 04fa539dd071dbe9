"""A model of a bucket as S3 has it, under the real adapter: each request is one step, an ETag is the MD5 of the body.

So identical bytes have the same ETag, whoever wrote them and when. Requests and answers are lost or late, as the
network has it; and in bad weather the servers before the bucket do what such servers do: they say 503, say 500 after
the write, say 409, send a write twice and hand on the second answer (and may be down right after it), or hold it up and
break the connection.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

from fencegate.verify.sim.network import CALM, Network
from fencegate.verify.sim.world import Process
from fencegate_adapters.objects.bucket.keys import PROBES

NAME = "bucket"
TROUBLE = 0.15
"""How often in bad weather the servers before the bucket do something odd with a write."""
ODD = ("503", "409", "500", "twice", "twice, then down", "held up", "held up")
HELD_UP_US = (500_000, 4_400_000)


class Held(NamedTuple):
    """What is under a key."""

    data: bytes
    e_tag: str


class BucketServer:
    """Bytes under keys. It forgets nothing, and compares while it writes."""

    def __init__(self, odd: tuple[str, ...] = ODD) -> None:
        self.objects: dict[str, Held] = {}
        self.odd = odd
        self.when_odd: Callable[[Process], None] = lambda _process: None
        """Told of every write with which something odd was done, and of who sent it."""

    def get(self, key: str, if_match: str | None) -> Held:
        found = self.objects.get(key)
        if found is None:
            raise FileNotFoundError(f"Object at location {key} not found")
        if if_match is not None and if_match != found.e_tag:
            raise PreconditionError(f"Object at location {key} is not {if_match}")
        return found

    def put(self, key: str, data: bytes, mode: Any) -> str:
        found = self.objects.get(key)
        if mode == "create" and found is not None:
            raise AlreadyExistsError(f"Object at location {key} already exists")
        if isinstance(mode, dict) and (found is None or found.e_tag != mode["e_tag"]):
            raise PreconditionError(f"Object at location {key} is not {mode['e_tag']}")
        e_tag = self.e_tag(data)
        self.objects[key] = Held(data, e_tag)
        return e_tag

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def keys(self, prefix: str, after: str) -> list[str]:
        return sorted(key for key in self.objects if key.startswith(prefix) and key > after)

    @staticmethod
    def e_tag(data: bytes) -> str:
        return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class _Found:
    """What obstore gives for a get."""

    def __init__(self, held: Held, start: int, end: int | None) -> None:
        self._data = held.data[start:end]
        self.meta = {"size": len(held.data), "e_tag": held.e_tag, "version": None}

    async def bytes_async(self) -> bytes:
        return self._data

    async def stream(self, min_chunk_size: int) -> AsyncIterator[bytes]:
        yield self._data


class BucketLink:
    """The bucket as one process reaches it: what obstore's stores are for the adapter."""

    def __init__(self, network: Network, server: BucketServer, process: Process) -> None:
        self._network = network
        self._server = server
        self._process = process
        self._unread = 0
        """How many reads are refused yet, since what is before the bucket is down."""

    async def get_async(self, path: str, *, options: Any = None) -> Any:
        asked = options or {}
        start, end = asked.get("range", (0, None))
        held: Held = await self._ask(lambda: self._get(path, asked.get("if_match")))
        return _Found(held, start, end)

    def _get(self, key: str, if_match: str | None) -> Held:
        if self._unread:
            self._unread -= 1
            raise GenericError("Server returned non-2xx status code: 503 Service Unavailable")
        return self._server.get(key, if_match)

    async def put_async(
        self,
        path: str,
        file: bytes | Sequence[bytes] | AsyncIterator[bytes],
        *,
        attributes: Any = None,
        mode: Any = None,
        use_multipart: bool | None = None,
        chunk_size: int = 0,
        max_concurrency: int = 0,
    ) -> Any:
        if isinstance(file, AsyncIterator):
            file = [part async for part in file]
        data = file if isinstance(file, bytes) else b"".join(file)
        e_tag: str = await self._ask(lambda: self._put(path, data, mode))
        return {"e_tag": e_tag, "version": None}

    async def delete_async(self, paths: str) -> None:
        await self._ask(lambda: self._server.delete(paths))

    async def list(
        self, prefix: str | None = None, *, offset: str | None = None, chunk_size: int = 50
    ) -> AsyncIterator[Sequence[Any]]:
        within = f"{prefix}/" if prefix else ""
        keys: list[str] = await self._ask(lambda: self._server.keys(within, offset or ""))
        for first in range(0, len(keys), chunk_size):
            yield [{"path": key} for key in keys[first : first + chunk_size]]

    def _put(self, key: str, data: bytes, mode: Any) -> str:
        odd = self._odd(key)
        if odd == "503":
            raise GenericError("Server returned non-2xx status code: 503 Service Unavailable")
        if odd == "409":
            raise GenericError("Server returned non-2xx status code: 409 Conflict")
        if odd == "held up":
            late_us = self._network.world.chance.randint(*HELD_UP_US)
            self._network.world.after(late_us, lambda: self._put_late(key, data, mode))
            raise GenericError("error reading a body from connection: connection reset")
        e_tag = self._server.put(key, data, mode)
        if odd == "500":
            raise GenericError("Server returned non-2xx status code: 500 Internal Server Error")
        if mode is None or not odd.startswith("twice"):
            return e_tag
        self._unread = 2 if odd == "twice, then down" else 0
        return self._server.put(key, data, mode)

    def _put_late(self, key: str, data: bytes, mode: Any) -> None:
        with suppress(AlreadyExistsError, PreconditionError):
            self._server.put(key, data, mode)

    def _odd(self, key: str) -> str:
        """What is done with this write, if anything odd is."""
        network = self._network
        if network.weather is CALM or key.startswith(PROBES) or network.world.chance.random() >= TROUBLE:
            return ""
        self._server.when_odd(self._process)
        return network.world.chance.choice(self._server.odd)

    async def _ask(self, serve: Any) -> Any:
        if not self._network.reach(self._process.name, NAME):
            raise GenericError("error sending request: kind: Connect")
        unanswered = GenericError("error sending request: operation timed out")
        return await self._network.ask(self._process, NAME, serve, unanswered, once=True)
