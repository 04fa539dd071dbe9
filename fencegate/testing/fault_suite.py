"""What every store on a server must bear: subclass `FaultSuite`, give it `server` and `open_through`.

class TestMyStoreUnderFaults(FaultSuite):
    commit_mark = b"COMMIT"

    @pytest.fixture
    def server(self) -> Iterator[FaultyServer]:         # running; may be shared, each test leaves it running
        ...

    @pytest.fixture
    def open_through(self) -> OpenThrough:
        async def open_(address: str, clock: Clock) -> Store:
            return await open_store(f"mystore://{address}/locks", clock)
        return open_

Two replicas work on the server, each through a fault proxy of its own, and a crowd of callers asks both of them for a
few locks. Whatever happens: no two grants have one token, no token is below an earlier one, no two hold a lock at once,
nothing is granted while the store is out of reach, every call ends in bounded time, and soon after the fault ended
everybody is served again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol, TypeVar

import pytest

from fencegate.clock import SYSTEM, Clock, SystemClock
from fencegate.core.errors import LockHeld, OutcomeUnknown, StoreUnavailable
from fencegate.core.model import Hold, Limits
from fencegate.core.ports import Store, Unavailable
from fencegate.engine import Engine
from fencegate.testing.caller import Caller, until
from fencegate.testing.crowd import FAILED, RECOVER_WITHIN_S, TTL_S, Crowd
from fencegate.testing.fault_proxy import FaultProxy
from fencegate.testing.said import Said

LIMITS = Limits(offer_us=1_000_000, suspect_us=3_000_000)
OFF_US = 11_000_000

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
MoveClock = Callable[[float], Awaitable[None]]
"""Sets the server's clock so many seconds off the real one; 0 sets it right."""


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
        _each(found, FaultProxy.pass_)


class FaultSuite:
    """See the head of this file."""

    commit_mark: ClassVar[bytes] = b""
    """Bytes that only a request to commit contains, so that it is the answer to a commit that gets lost."""
    without: ClassVar[Mapping[str, str]] = {}
    """Faults (`kill`, `stop`, `delay`, `hold`, `drop`, `cut`, `cut_answers`, `partition`, `clock`) that this store is
    not put through, and why not."""

    @pytest.fixture
    def addresses(self, server: FaultyServer) -> Sequence[str]:
        """Where the server listens: one address, or those of a cluster."""
        return [f"127.0.0.1:{server.port}"]  # type: ignore[attr-defined]

    @pytest.fixture
    def move_clock(self) -> MoveClock:
        pytest.skip("the clock of this server can't be moved by a test: give the fixture `move_clock` if it can")

    @pytest.fixture
    async def replicas(self, addresses: Sequence[str], open_through: OpenThrough) -> AsyncIterator[Replicas]:
        async with replicas_through(addresses, open_through) as found:
            yield found

    @pytest.fixture
    def crowd(self, replicas: Replicas) -> Crowd:
        """It begins to work, and is judged, where a test says so."""
        return Crowd([replica.engine for replica in replicas])

    # --- the server ---

    async def test_killed_with_9_and_started_again(self, crowd: Crowd, server: FaultyServer) -> None:
        self._needs("kill")
        async with _at_work(crowd):
            async with _outage(crowd, server.kill, server.start):
                await crowd.fails(4)
            await crowd.is_served()

    async def test_stopped_for_longer_than_a_lease_and_continued(self, crowd: Crowd, server: FaultyServer) -> None:
        self._needs("stop")
        async with _at_work(crowd):
            async with _outage(crowd, server.stop, server.resume):
                await asyncio.sleep(TTL_S + 1)
            await crowd.is_served()

    async def test_who_waits_while_the_server_is_killed_gets_the_lock_in_the_end(
        self, replicas: Replicas, server: FaultyServer
    ) -> None:
        self._needs("kill")
        one, two = (Caller(replica.engine, f"owner-{number}") for number, replica in enumerate(replicas))
        lock_key = f"waited-{SYSTEM.random_id(4)}"
        hold = await one.acquire(lock_key, ttl_s=120)
        waiting = asyncio.ensure_future(two.acquire(lock_key, wait_s=110, name=lock_key))
        await one.until_waiting(lock_key, "owner-1")
        async with _gone(server.kill, server.start):
            await asyncio.sleep(0.5)
        await asked_again(lambda: one.release(lock_key, hold))
        async with asyncio.timeout(RECOVER_WITHIN_S):
            assert (await waiting).token > hold.token

    async def test_a_lease_outlives_the_server(self, replicas: Replicas, server: FaultyServer) -> None:
        self._needs("kill")
        if not replicas[0].engine.store.capabilities.durable:
            pytest.skip("this store is not durable")
        one, two = (Caller(replica.engine, f"owner-{number}") for number, replica in enumerate(replicas))
        lock_key = f"lasting-{SYSTEM.random_id(4)}"
        hold = await one.acquire(lock_key, ttl_s=120)
        async with _gone(server.kill, server.start):
            pass
        with pytest.raises(LockHeld):
            await asked_again(lambda: two.acquire(lock_key))
        renewed = await asked_again(lambda: one.renew(lock_key, hold))
        assert renewed.token == hold.token
        await asked_again(lambda: one.release(lock_key, hold))
        assert (await asked_again(lambda: two.acquire(lock_key))).token > hold.token

    # --- the line ---

    async def test_a_slow_line(self, crowd: Crowd, replicas: Replicas) -> None:
        self._needs("delay")
        async with _at_work(crowd):
            _each(replicas, lambda proxy: proxy.delay(0.05))
            await crowd.is_served()
            _each(replicas, FaultProxy.pass_)
            await crowd.is_served()

    async def test_a_black_hole(self, crowd: Crowd, replicas: Replicas) -> None:
        self._needs("drop")
        async with _at_work(crowd):
            async with _line_down(crowd, replicas, FaultProxy.drop):
                await crowd.fails(4)
            await crowd.is_served()

    async def test_a_line_that_brings_everything_too_late(self, crowd: Crowd, replicas: Replicas) -> None:
        self._needs("hold")
        async with _at_work(crowd):
            async with _line_down(crowd, replicas, FaultProxy.hold):
                await crowd.fails(4)  # commits were given up that arrive now
            await crowd.is_served()

    async def test_a_line_that_is_cut(self, crowd: Crowd, replicas: Replicas) -> None:
        self._needs("cut")
        async with _at_work(crowd):
            async with _line_down(crowd, replicas, FaultProxy.cut):
                await crowd.fails(4)
            await crowd.is_served()

    async def test_connections_that_are_reset_again_and_again(self, crowd: Crowd, replicas: Replicas) -> None:
        self._needs("cut")
        async with _at_work(crowd):
            for number in range(10):
                replicas[number % 2].each(FaultProxy.reset)
                await crowd.is_served(1)

    async def test_a_replica_that_is_cut_off_while_the_other_goes_on(self, crowd: Crowd, replicas: Replicas) -> None:
        self._needs("partition")
        async with _at_work(crowd):
            for lost, other, fault in (
                (replicas[0], replicas[1], FaultProxy.cut),
                (replicas[1], replicas[0], FaultProxy.drop),
            ):
                lost.each(fault)
                await crowd.is_served(2, through=other.engine)
                lost.each(FaultProxy.pass_)
                await crowd.is_served(1, through=lost.engine)

    # --- answers that get lost ---

    async def test_answers_that_are_cut_off_after_the_commit_again_and_again(
        self, crowd: Crowd, replicas: Replicas
    ) -> None:
        self._needs("cut_answers")
        proxies = [proxy for replica in replicas for proxy in replica.proxies]
        async with _at_work(crowd):
            for _ in range(6):
                before = sum(proxy.cuts for proxy in proxies)
                for proxy in proxies:
                    proxy.cut_answers(after=self.commit_mark)

                async def was_cut(before: int = before) -> bool:
                    return sum(proxy.cuts for proxy in proxies) > before

                await until(was_cut)
                await crowd.is_served(1)
            _each(replicas, FaultProxy.pass_)
            await crowd.is_served()

    async def test_a_request_whose_answer_was_cut_off_gets_the_same_lock_when_it_is_asked_again(
        self, replicas: Replicas
    ) -> None:
        self._needs("cut_answers")
        first, second = (Caller(replica.engine, "A") for replica in replicas)
        callers = (second, first, second)
        for number in range(4):
            lock_key = f"answer-{number}-{SYSTEM.random_id(4)}"
            replicas[0].each(lambda proxy: proxy.cut_answers(after=self.commit_mark))
            told = await asyncio.gather(first.acquire(lock_key, name=lock_key, ttl_s=60), return_exceptions=True)
            assert isinstance(told[0], Hold | StoreUnavailable | OutcomeUnknown), told
            replicas[0].each(FaultProxy.pass_)
            again = [
                await asked_again(partial(caller.acquire, lock_key, name=lock_key, ttl_s=60)) for caller in callers
            ]
            holds = [*again, *(hold for hold in told if isinstance(hold, Hold))]
            assert {(hold.token, hold.who.lock_token) for hold in holds} == {(again[0].token, again[0].who.lock_token)}
            with pytest.raises(LockHeld):
                await Caller(replicas[1].engine, "B").acquire(lock_key)

    async def test_what_is_said_of_a_commit_is_true_whatever_the_line_does(self, replicas: Replicas) -> None:
        self._needs("cut_answers")
        store, said = replicas[0].engine.store, Said()
        faults: list[Callable[[FaultProxy], None]] = [
            FaultProxy.reset,
            lambda proxy: proxy.cut_answers(after=self.commit_mark),
            FaultProxy.cut,
        ]
        for number in range(9):
            works = [asyncio.ensure_future(said.commit(store, delay_s)) for delay_s in (0, 0, 0.002, 0.005, 0.01)]
            await asyncio.sleep(0.001 * number)
            replicas[0].each(faults[number % 3])
            await asyncio.gather(*works, said.commit(store, 0.02))
            replicas[0].each(FaultProxy.pass_)
            await said.is_back(store)
        await said.judge(replicas[1].engine.store)

    # --- clocks ---

    @pytest.mark.parametrize("off_us", [OFF_US, -OFF_US])
    async def test_a_replica_whose_clock_is_off_refuses_to_grant_and_says_why(
        self, addresses: Sequence[str], open_through: OpenThrough, off_us: int
    ) -> None:
        self._needs("clock")
        clock = SystemClock(SYSTEM.now_us() - SYSTEM.monotonic_us() + off_us)
        with pytest.raises((StoreUnavailable, Unavailable), match=r"clock.*NTP"):
            await _acquire_by(clock, addresses, open_through)

    async def test_a_server_whose_clock_is_moved(self, crowd: Crowd, move_clock: MoveClock) -> None:
        async with _at_work(crowd):
            crowd.told.clocks_moved = True
            try:
                for off_s in (3.0, -3.0, 0.0):
                    await move_clock(off_s)
                    await crowd.is_served()
                await move_clock(30.0)
                await crowd.fails(4)
            finally:
                await move_clock(0.0)
            await crowd.is_served()

    def _needs(self, fault: str) -> None:
        if fault in self.without:
            pytest.skip(f"not put through {fault!r}: {self.without[fault]}")


@asynccontextmanager
async def _at_work(crowd: Crowd) -> AsyncIterator[None]:
    """The crowd is busy before the fault comes, and is judged in the end."""
    async with crowd:
        await crowd.is_served(1)
        yield


@asynccontextmanager
async def _gone(down: Callable[[], object], up: Callable[[], object]) -> AsyncIterator[None]:
    """In a thread: a server takes its time to start, and the callers go on meanwhile."""
    await asyncio.to_thread(down)
    try:
        yield
    finally:
        await asyncio.to_thread(up)


@asynccontextmanager
async def _outage(crowd: Crowd, down: Callable[[], object], up: Callable[[], object]) -> AsyncIterator[None]:
    """Nothing reaches the store meanwhile."""
    async with _gone(down, up):
        await asyncio.sleep(0.05)  # a process that is stopped may end what it is at
        begin_us = SYSTEM.monotonic_us()
        yield
        crowd.told.outages.append((begin_us, SYSTEM.monotonic_us()))


def _line_down(
    crowd: Crowd, replicas: Replicas, fault: Callable[[FaultProxy], None]
) -> AbstractAsyncContextManager[None]:
    return _outage(crowd, lambda: _each(replicas, fault), lambda: _each(replicas, FaultProxy.pass_))


def _each(replicas: Replicas, fault: Callable[[FaultProxy], None]) -> None:
    for replica in replicas:
        replica.each(fault)


async def _acquire_by(clock: Clock, addresses: Sequence[str], open_through: OpenThrough) -> None:
    """Take a lock through a replica that has this clock."""
    async with replicas_through(addresses, open_through, clock, count=1) as (replica,):
        await Caller(replica.engine, "A").acquire(f"off-{SYSTEM.random_id(4)}")


async def asked_again(ask: Callable[[], Awaitable[T]]) -> T:
    """As a client does: until there is an answer."""
    async with asyncio.timeout(RECOVER_WITHIN_S):
        while True:
            try:
                return await ask()
            except FAILED:
                await asyncio.sleep(0.05)
