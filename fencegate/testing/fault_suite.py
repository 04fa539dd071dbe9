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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import pytest

from fencegate.clock import SYSTEM, Clock, SystemClock
from fencegate.core.errors import LockHeld, OutcomeUnknown, StoreUnavailable
from fencegate.core.model import Hold
from fencegate.core.ports import Unavailable
from fencegate.testing.caller import Caller, until
from fencegate.testing.crowd import RECOVER_WITHIN_S, TTL_S, Crowd
from fencegate.testing.fault_proxy import FaultProxy
from fencegate.testing.faulty_replicas import (
    FaultyServer,
    OpenThrough,
    Replica,
    Replicas,
    asked_again,
    at_work,
    each,
    gone,
    line_down,
    outage,
    replicas_through,
)
from fencegate.testing.said import Said

__all__ = ["FaultSuite", "FaultyServer", "OpenThrough", "Replica", "Replicas", "replicas_through"]

OFF_US = 13_000_000
"""More than 10 s, also where a server tells whole seconds only, and a busy machine takes its time to hear them."""


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
        async with at_work(crowd):
            async with outage(crowd, server.kill, server.start):
                await crowd.fails(4)
            await crowd.is_served()

    async def test_stopped_for_longer_than_a_lease_and_continued(self, crowd: Crowd, server: FaultyServer) -> None:
        self._needs("stop")
        async with at_work(crowd):
            async with outage(crowd, server.stop, server.resume):
                await asyncio.sleep(TTL_S + 1)
            await crowd.is_served()

    async def test_who_waits_while_the_server_is_killed_gets_the_lock_in_the_end(
        self, replicas: Replicas, server: FaultyServer
    ) -> None:
        self._needs("kill")
        one, two = (Caller(replica.engine, f"owner-{number}") for number, replica in enumerate(replicas))
        lock_key = f"waited-{SYSTEM.random_id(4)}"
        hold = await one.acquire(lock_key, ttl_s=120)
        wait = partial(two.acquire, lock_key, wait_s=110, name=lock_key)
        waiting = asyncio.ensure_future(asked_again(wait, 110))  # the answer to its queueing may be lost, too
        await one.until_waiting(lock_key, "owner-1")
        async with gone(server.kill, server.start):
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
        async with gone(server.kill, server.start):
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
        async with at_work(crowd):
            each(replicas, lambda proxy: proxy.delay(0.05))
            await crowd.is_served()
            each(replicas, FaultProxy.pass_)
            await crowd.is_served()

    async def test_a_black_hole(self, crowd: Crowd, replicas: Replicas) -> None:
        self._needs("drop")
        async with at_work(crowd):
            async with line_down(crowd, replicas, FaultProxy.drop):
                await crowd.fails(4)
            await crowd.is_served()

    async def test_a_line_that_brings_everything_too_late(self, crowd: Crowd, replicas: Replicas) -> None:
        self._needs("hold")
        async with at_work(crowd):
            async with line_down(crowd, replicas, FaultProxy.hold):
                await crowd.fails(4)  # commits were given up that arrive now
            await crowd.is_served()

    async def test_a_line_that_is_cut(self, crowd: Crowd, replicas: Replicas) -> None:
        self._needs("cut")
        async with at_work(crowd):
            async with line_down(crowd, replicas, FaultProxy.cut):
                await crowd.fails(4)
            await crowd.is_served()

    async def test_connections_that_are_reset_again_and_again(self, crowd: Crowd, replicas: Replicas) -> None:
        self._needs("cut")
        async with at_work(crowd):
            for number in range(6):
                replicas[number % 2].each(FaultProxy.reset)
                await crowd.is_served(1)

    async def test_a_replica_that_is_cut_off_while_the_other_goes_on(self, crowd: Crowd, replicas: Replicas) -> None:
        self._needs("partition")
        async with at_work(crowd):
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
        async with at_work(crowd):
            for _ in range(6):
                before = sum(proxy.cuts for proxy in proxies)
                for proxy in proxies:
                    proxy.cut_answers(after=self.commit_mark)

                async def was_cut(before: int = before) -> bool:
                    return sum(proxy.cuts for proxy in proxies) > before

                await until(was_cut)
                await crowd.is_served(1)
            each(replicas, FaultProxy.pass_)
            await crowd.is_served()

    async def test_a_request_whose_answer_was_cut_off_gets_the_same_lock_when_it_is_asked_again(
        self, replicas: Replicas
    ) -> None:
        self._needs("cut_answers")
        first, second = (Caller(replica.engine, "A") for replica in replicas)
        callers = (second, first, second)
        for number in range(4):
            lock_key = f"answer-{number}-{SYSTEM.random_id(4)}"
            before = sum(proxy.cuts for proxy in replicas[0].proxies)
            replicas[0].each(lambda proxy: proxy.cut_answers(after=self.commit_mark))
            told = await asyncio.gather(first.acquire(lock_key, name=lock_key, ttl_s=60), return_exceptions=True)
            assert sum(proxy.cuts for proxy in replicas[0].proxies) > before, "no answer to a commit was cut off"
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
        for number in range(90):
            if number >= 9 and said.count("done") and said.count("Ambiguous"):  # a fault may hit no commit on its way
                break
            works = [asyncio.ensure_future(said.commit(store, delay_s)) for delay_s in (0, 0, 0.002, 0.005, 0.01)]
            await asyncio.sleep(0.001 * (number % 9))
            replicas[0].each(faults[number % 3])
            await asyncio.gather(*works, said.commit(store, 0.02))
            replicas[0].each(FaultProxy.pass_)
            await said.is_back(store)
        await said.judge(replicas[1].engine.store)
        assert said.count("done"), "nothing was committed"
        assert said.count("Ambiguous"), "no commit lost its answer"

    # --- clocks ---

    @pytest.mark.parametrize("off_us", [OFF_US, -OFF_US])
    async def test_a_replica_whose_clock_is_off_refuses_to_grant_and_says_why(
        self, addresses: Sequence[str], open_through: OpenThrough, off_us: int
    ) -> None:
        self._needs("clock")
        clock = SystemClock(SYSTEM.now_us() - SYSTEM.monotonic_us() + off_us)
        with pytest.raises((StoreUnavailable, Unavailable), match=r"clock.*NTP"):
            await _acquire_by(clock, addresses, open_through)

    def _needs(self, fault: str) -> None:
        if fault in self.without:
            pytest.skip(f"not put through {fault!r}: {self.without[fault]}")


async def _acquire_by(clock: Clock, addresses: Sequence[str], open_through: OpenThrough) -> None:
    """Take a lock through a replica that has this clock."""
    async with replicas_through(addresses, open_through, clock, count=1) as (replica,):
        await Caller(replica.engine, "A").acquire(f"off-{SYSTEM.random_id(4)}")
