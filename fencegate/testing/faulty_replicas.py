"""Replicas on one server, each behind a fault proxy of its own, and what a test does to them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fencegate.clock import SYSTEM, Clock
from fencegate.core.model import Limits
from fencegate.core.ports import Store
from fencegate.engine import Engine
from fencegate.testing.crowd import FAILED, RECOVER_WITHIN_S, Crowd
from fencegate.testing.fault_proxy import FaultProxy

LIMITS = Limits(offer_us=1_000_000, suspect_us=3_000_000)
T = TypeVar("T")


class FaultyServer(Protocol):
    """A store's server, or all servers of its cluster, as real processes."""

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""

    def start(self) -> object:
        """Start it again with the same address and data, and return when it answers."""

    def stop(self) -> None:
        """SIGSTOP, to each of its processes."""

    def resume(self) -> None:
        """SIGCONT."""


OpenThrough = Callable[[str, Clock], Awaitable[Store]]
"""Opens the store at an address, `host:port`, or several of them with commas between."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A lock engine, and the line between it and the server."""

    engine: Engine
    proxies: Sequence[FaultProxy]

    def each(self, fault: Callable[[FaultProxy], None]) -> None:
        for proxy in self.proxies:
            fault(proxy)


Replicas = Sequence[Replica]


@asynccontextmanager
async def replicas_through(
    addresses: Sequence[str], open_through: OpenThrough, clock: Clock = SYSTEM, count: int = 2
) -> AsyncIterator[Replicas]:
    """Replicas at work on one server, each through fault proxies of its own."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            proxies = [stack.enter_context(FaultProxy(address)) for address in addresses]
            store = await open_through(",".join(proxy.address for proxy in proxies), clock)
            stack.push_async_callback(store.close)
            engine = Engine(store, clock, LIMITS, replica=f"replica-{SYSTEM.random_id(4)}")
            await engine.start()
            stack.push_async_callback(engine.close)
            found.append(Replica(engine, proxies))
        yield found
        each(found, FaultProxy.pass_)


@asynccontextmanager
async def at_work(crowd: Crowd) -> AsyncIterator[None]:
    """The crowd is busy before the fault comes, and is judged in the end."""
    async with crowd:
        await crowd.is_served(1)
        yield


@asynccontextmanager
async def gone(down: Callable[[], object], up: Callable[[], object]) -> AsyncIterator[None]:
    """In a thread: a server takes its time to start, and the callers go on meanwhile."""
    await asyncio.to_thread(down)
    try:
        yield
    finally:
        await asyncio.to_thread(up)


@asynccontextmanager
async def outage(crowd: Crowd, down: Callable[[], object], up: Callable[[], object]) -> AsyncIterator[None]:
    """Nothing reaches the store meanwhile."""
    async with gone(down, up):
        await asyncio.sleep(0.05)  # a process that is stopped may end what it is at
        begin_us = SYSTEM.monotonic_us()
        yield
        crowd.told.outages.append((begin_us, SYSTEM.monotonic_us()))


def line_down(
    crowd: Crowd, replicas: Replicas, fault: Callable[[FaultProxy], None]
) -> AbstractAsyncContextManager[None]:
    return outage(crowd, lambda: each(replicas, fault), lambda: each(replicas, FaultProxy.pass_))


def each(replicas: Replicas, fault: Callable[[FaultProxy], None]) -> None:
    for replica in replicas:
        replica.each(fault)


async def asked_again(ask: Callable[[], Awaitable[T]], within_s: float = RECOVER_WITHIN_S) -> T:
    """As a client does: until there is an answer."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                return await ask()
            except FAILED:
                await asyncio.sleep(0.05)
