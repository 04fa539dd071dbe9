"""Gateways as processes, with the real adapter of a bucket in them; and a caller's way to one of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Literal

from fencegate.core.errors import FencegateError, NotFound, ResourceUnavailable, StaleToken
from fencegate.core.ports import NO_CONDITIONS, Conditions
from fencegate.verify.sim.bucket import BucketLink, BucketServer
from fencegate.verify.sim.clock import SimClock
from fencegate.verify.sim.network import Network, settle
from fencegate.verify.sim.resource import Updates
from fencegate.verify.sim.world import Process
from fencegate_adapters.objects.bucket.resource import BucketObjects

Layout = Literal["framed", "pointer"]
URL = "s3://simulated"
TIMEOUT_S = 3.0
"""For how long a gateway follows a write of unknown fate."""
READERS_S = 0.5
ANSWER_WITHIN_S = 6.0
OPENING_TRIES = 200
TRIES = 30
CREATE = Conditions(if_none_match=("*",))


class NobodyThere(ResourceUnavailable):
    """The gateway is down, or not yet open."""


class Gateway:
    """One gateway, which may crash and come back as another process."""

    def __init__(self, network: Network, server: BucketServer, name: str, offset_us: int, layout: Layout) -> None:
        self._network = network
        self._server = server
        self.name = name
        self._offset_us = offset_us
        self._layout = layout
        self.stale = 0
        self.when_asked: Callable[[Gateway, Process], None] = lambda _gateway, _caller: None
        """Told of every request, for whoever wants to do something to a gateway that is at work, or to who asked."""
        self.start()

    def start(self) -> None:
        self.process = self._network.world.process(self.name)
        self._objects: BucketObjects | None = None
        self._cut: dict[Callable[[], None], None] = {}  # in an order that can be repeated
        self.process.spawn(self._open())

    async def _open(self) -> None:
        link = BucketLink(self._network, self._server, self.process)
        clock = SimClock(self._network.world, self._offset_us)
        for _ in range(OPENING_TRIES):
            objects = BucketObjects(
                "sim",
                URL,
                guard_template="sim:{key}",
                layout=self._layout,
                timeout_s=TIMEOUT_S,
                readers_s=READERS_S,
                clock=clock,
                connect=lambda *_: link,
                probe_rounds=1,  # faults are for writes
            )
            try:
                await objects.open()
            except ResourceUnavailable:
                await asyncio.sleep(0.05)
                continue
            self._objects = objects
            return

    def crash(self) -> None:
        """All connections break; whoever waits for an answer hears of that."""
        self.process.crash()
        for cut in self._cut:
            self._network.world.after(self._network.delay_us(), cut)
        self._cut.clear()

    def accept(self, caller: Process, answer: "asyncio.Future[Any]", call: str, arguments: tuple[Any, ...]) -> None:
        """A request arrived."""
        objects, process = self._objects, self.process
        if not process.alive or objects is None:
            refused = NobodyThere("connection refused; nothing was written")
            self._network.answer(self.name, caller, lambda: settle(answer, None, refused))
            return

        def cut() -> None:
            lost = ResourceUnavailable("the connection was cut", outcome="unknown")
            caller.deliver(lambda: settle(answer, None, lost))

        async def serve() -> None:
            try:
                result, error = await _CALLS[call](objects, *arguments), None
            except FencegateError as refusal:
                result, error = None, refusal
                self.stale += isinstance(refusal, StaleToken)
            self._cut.pop(cut, None)
            self._network.answer(self.name, caller, lambda: settle(answer, result, error))

        self._cut[cut] = None
        self.when_asked(self, caller)
        process.deliver(lambda: _start(process, serve))


def _start(process: Process, serve: Callable[[], Any]) -> None:
    process.spawn(serve())


class GatewayLink:
    """The resource as one caller reaches it: through this gateway or that. A request is sent once."""

    def __init__(self, network: Network, gateways: list[Gateway], process: Process, *, appends: bool) -> None:
        self._network = network
        self._gateways = gateways
        self._process = process
        self._appends = appends
        self.not_written: list[tuple[str, str]] = []
        """Updates of which it was said for sure that they were not written."""

    async def read(self, key: str, token: int | None) -> Updates:
        found: Updates = await self._ask("read", key, token)
        return found

    async def claim(self, key: str, token: int) -> None:
        await self._ask("claim", key, token)

    async def write(self, key: str, updates: Updates, token: int) -> None:
        """Where one update is all that there is, nothing was there: so it may as well be a create."""
        create = self._appends and len(updates) == 1 and self._network.world.chance.random() < 0.5
        try:
            await self._ask("write", key, updates, token, CREATE if create else NO_CONDITIONS)
        except ResourceUnavailable as error:
            if self._appends and error.outcome == "not-written":
                self.not_written.append((key, updates[-1]))
            raise

    async def delete(self, key: str, token: int) -> None:
        await self._ask("delete", key, token)

    async def _ask(self, call: str, *arguments: Any) -> Any:
        """Through the one or the other: nobody was asked where nobody is there."""
        for _ in range(TRIES):
            gateway = self._network.world.chance.choice(self._gateways)
            try:
                return await self._ask_one(gateway, call, arguments)
            except NobodyThere:
                await asyncio.sleep(0.1)
        raise ResourceUnavailable("no gateway is there; nothing was written")

    async def _ask_one(self, gateway: Gateway, call: str, arguments: tuple[Any, ...]) -> Any:
        process = self._process
        answer: asyncio.Future[Any] = process.loop.create_future()
        arrived = partial(gateway.accept, process, answer, call, arguments)
        self._network.send(process.name, gateway.name, arrived, once=True)  # as over a connection
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await answer
        except TimeoutError:
            raise ResourceUnavailable("no answer from the gateway", outcome="unknown") from None


def encode(updates: Updates) -> bytes:
    return json.dumps(updates).encode()


def decode(data: bytes) -> Updates:
    return tuple(json.loads(data))


async def _body(updates: Updates) -> AsyncIterator[bytes]:
    yield encode(updates)


async def _read(objects: BucketObjects, key: str, token: int | None) -> Updates:
    info, body, _ = await objects.read(_path(key), key, token)
    data = b"".join([piece async for piece in body])
    return decode(data) if info is not None else ()


async def _claim(objects: BucketObjects, key: str, token: int) -> None:
    await objects.claim(key, token)


async def _write(objects: BucketObjects, key: str, updates: Updates, token: int, conditions: Conditions) -> None:
    await objects.write(
        _path(key), key, token, _body(updates), content_type="application/json", metadata={}, conditions=conditions
    )


async def _delete(objects: BucketObjects, key: str, token: int) -> None:
    try:
        await objects.delete(_path(key), key, token)
    except NotFound:  # so nothing is there, as was wanted; and the mark was raised
        return


def _path(key: str) -> tuple[str, ...]:
    return (key.removeprefix("sim:"),)


_CALLS: dict[str, Callable[..., Any]] = {"read": _read, "claim": _claim, "write": _write, "delete": _delete}
