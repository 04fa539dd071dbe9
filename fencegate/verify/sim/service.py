"""Lock service replicas as processes, and a client's way to them: the REST calls as messages."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from fencegate.client.transport import Json
from fencegate.core.errors import FencegateError, OutcomeUnknown, StoreUnavailable
from fencegate.core.model import Limits
from fencegate.core.ports import Conflict
from fencegate.engine import Engine
from fencegate.engine.attempt import Attempt
from fencegate.verify.sim.clock import SimClock
from fencegate.verify.sim.network import Network, settle
from fencegate.verify.sim.store import CallingLink, StoreLink, StoreServer
from fencegate.verify.sim.world import Process
from fencegate_lockservice.api import LockApi

LIMITS = Limits(offer_us=1_000_000)


async def opened(
    network: Network, server: StoreServer, process: Process, clock: SimClock, *, visiting: bool = False
) -> LockApi:
    """An engine of this process over the store, and the lock calls that lead to it."""
    link = CallingLink if server.calls else StoreLink
    store = link(network, server, process, clock)
    await store.open()
    replica = f"{process.name}-{clock.random_id(4)}"
    engine = Engine(store, clock, LIMITS, replica=replica, visiting=visiting)
    _hear_what_it_disowns(engine, server)
    await engine.start()
    return LockApi(engine)


def _hear_what_it_disowns(engine: Engine, server: StoreServer) -> None:
    """Have the server know of which commits the engine says that they will never land."""
    lanes = engine._lanes
    resolve = lanes._resolve

    async def resolved(trying: Attempt) -> None:
        try:
            await resolve(trying)
        except Conflict:
            server.disowned.add(trying.commit_id)
            raise

    lanes._resolve = resolved  # type: ignore[method-assign]


class Replica:
    """One lock service, which may crash and come back as another process."""

    def __init__(self, network: Network, server: StoreServer, name: str, offset_us: int) -> None:
        self._network = network
        self._server = server
        self.name = name
        self._offset_us = offset_us
        self.start()

    def start(self) -> None:
        self.process = self._network.world.process(self.name)
        self._api: LockApi | None = None
        self._cut: dict[Callable[[], None], None] = {}  # in an order that can be repeated
        self.process.spawn(self._serve())

    async def _serve(self) -> None:
        clock = SimClock(self._network.world, self._offset_us)
        self._api = await opened(self._network, self._server, self.process, clock)

    def crash(self) -> None:
        """All connections break; whoever waits for an answer hears of that."""
        self.process.crash()
        for cut in list(self._cut):
            self._network.world.after(self._network.delay_us(), cut)
        self._cut.clear()

    def accept(self, caller: Process, answer: "asyncio.Future[Any]", call: str, arguments: tuple[Any, ...]) -> None:
        """A request arrived."""
        api, process = self._api, self.process
        if not process.alive or api is None:
            refused = StoreUnavailable("connection refused")
            self._network.answer(self.name, caller, lambda: settle(answer, None, refused))
            return

        def cut() -> None:
            caller.deliver(lambda: settle(answer, None, OutcomeUnknown("the connection was cut")))

        async def serve() -> None:
            try:
                result, error = await getattr(api, call)(*arguments), None
            except FencegateError as refusal:
                result, error = None, refusal
            self._cut.pop(cut, None)
            self._network.answer(self.name, caller, lambda: settle(answer, result, error))

        self._cut[cut] = None

        def begin() -> None:
            task = process.loop.create_task(serve())
            answer.add_done_callback(lambda _: self._hung_up(process, task))

        process.deliver(begin)

    def _hung_up(self, process: Process, task: "asyncio.Task[Any]") -> None:
        """Whoever asked is gone, or has its answer: a request that is still under way hears of it a little later."""
        if not task.done():
            process.deliver_after(self._network.delay_us(), lambda: _cancel(task))


def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()


class Wire:
    """A transport of the client: to one of the replicas, to another when that fails, or (`spread`) to any each time."""

    def __init__(self, network: Network, replicas: list[Replica], process: Process, *, spread: bool = False) -> None:
        self._network = network
        self._replicas = replicas
        self._process = process
        self._at = network.world.chance.randrange(len(replicas))
        self._spread = spread

    def straight(self, _lock_key: str) -> None:
        return None

    async def acquire(self, lock_key: str, body: Mapping[str, Any]) -> Json:
        return await self._call("acquire", lock_key, body)

    async def renew(self, lock_key: str, body: Mapping[str, Any]) -> Json:
        return await self._call("renew", lock_key, body)

    async def release(self, lock_key: str, body: Mapping[str, Any]) -> Json:
        return await self._call("release", lock_key, body)

    async def multi_acquire(self, body: Mapping[str, Any]) -> Json:
        return await self._call("multi_acquire", body)

    async def multi_renew(self, body: Mapping[str, Any]) -> Json:
        return await self._call("multi_renew", body)

    async def multi_release(self, body: Mapping[str, Any]) -> Json:
        return await self._call("multi_release", body)

    async def open_session(self, body: Mapping[str, Any]) -> Json:
        return await self._call("open_session", body)

    async def renew_session(self, session_id: str, body: Mapping[str, Any]) -> Json:
        return await self._call("renew_session", session_id, body)

    async def end_session(self, session_id: str) -> Json:
        return await self._call("end_session", session_id)

    async def close(self) -> None:
        return

    async def _call(self, call: str, *arguments: Any) -> Json:
        if self._spread:
            self._at = self._network.world.chance.randrange(len(self._replicas))
        replica = self._replicas[self._at]
        answer: asyncio.Future[Any] = self._process.loop.create_future()
        if not self._network.reach(self._process.name, replica.name):
            self._next()
            raise StoreUnavailable("the lock service can't be reached")
        self._network.send(
            self._process.name, replica.name, lambda: replica.accept(self._process, answer, call, arguments)
        )
        try:
            reply: Json = await answer
            return reply
        except (StoreUnavailable, OutcomeUnknown, asyncio.CancelledError):
            self._next()
            raise

    def _next(self) -> None:
        self._at = (self._at + 1) % len(self._replicas)
