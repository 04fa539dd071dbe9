"""What several lock service processes over one store must do together: subclass `ReplicaSuite`, give it `store_url`.

class TestMyStoreWithReplicas(ReplicaSuite):
    @pytest.fixture
    def store_url(self, my_server: MyServer) -> str:      # data may be shared: each test has lock keys of its own
        return my_server.url

The processes are real `fencegate serve`s; `fencegate demo` and `connect(URL)` without a server belong here too.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import httpx
import pytest

from fencegate import connect, sync
from fencegate.clock import SYSTEM
from tests.eventually import eventually
from tests.servers import MakeServer
from tests.stores.replica import LONG_MS, Json, Replica, demo_locks, looking, until_acquired
from tests.stores.rolling import Client, Restartable, all_go_on
from tests.watching import events, watching

SOON_S = 40.0
"""Wildly more than an offer to a dead replica lasts, and less than a lease."""
COMMAND = [sys.executable, "-c", "from fencegate.cli import main; main()"]


class ReplicaSuite:
    """See the head of this file."""

    @pytest.fixture
    def lock_key(self) -> str:
        return f"replicas:{SYSTEM.random_id(6)}"

    @pytest.fixture
    async def replicas(self, store_url: str, make_server: MakeServer) -> AsyncIterator[list[Replica]]:
        async with AsyncExitStack() as stack:
            found = []
            for number in range(3):
                server = await asyncio.to_thread(
                    make_server, f"replica-{number}", "--store", store_url, "--role", "lockservice"
                )
                http = await stack.enter_async_context(httpx.AsyncClient(base_url=server.url, timeout=120))
                found.append(Replica(server, http))
            yield found

    # --- waiting at several replicas ---

    async def test_waiters_of_three_replicas_are_served_in_the_order_in_which_they_came(
        self, replicas: list[Replica], lock_key: str
    ) -> None:
        async def take(replica: Replica) -> int:
            grant = await replica.wait_for(lock_key)
            await replica.release(grant)
            return int(grant["fencingToken"])

        first = await replicas[0].acquire(lock_key)
        works = []
        for number in range(6):
            works.append(asyncio.ensure_future(take(replicas[number % 3])))
            await replicas[0].until_waiting(lock_key, number + 1)
        await replicas[0].release(first)
        tokens = [int(first["fencingToken"]), *await asyncio.gather(*works)]
        assert tokens == sorted(set(tokens))

    async def test_a_release_wakes_one_waiter_at_whichever_replica_it_stands(
        self, replicas: list[Replica], lock_key: str
    ) -> None:
        with watching(replicas[1].server.url, key=lock_key) as stream:
            grant = await replicas[0].acquire(lock_key, ownerId="holder")
            waiting: list[asyncio.Future[Json]] = []
            for number in range(3):
                waiting.append(asyncio.ensure_future(replicas[number].wait_for(lock_key, ownerId=f"waiter-{number}")))
                await replicas[0].until_waiting(lock_key, number + 1)
            for number, waiter in enumerate(waiting):
                await replicas[2].release(grant)
                grant = await waiter
                assert await replicas[0].waiters(lock_key) == 2 - number
                assert [other.done() for other in waiting[number + 1 :]] == [False] * (2 - number)
            stories = await asyncio.to_thread(until_acquired, stream, "waiter-2")
        told = [(one.kind, one.data["ownerId"]) for one in stories]
        owners = ["holder", "waiter-0", "waiter-1", "waiter-2"]
        woken = [one for one in told if one[0] != "queued"]
        assert woken == [(kind, owner) for owner in owners for kind in ("acquired", "released")][:-1]

    async def test_a_watch_at_any_replica_hears_what_the_others_commit(
        self, replicas: list[Replica], lock_key: str
    ) -> None:
        with ExitStack() as stack:
            streams = [stack.enter_context(watching(replica.server.url, key=lock_key)) for replica in replicas]
            expected = []
            for replica in replicas:
                grant = await replica.acquire(lock_key)
                await replica.release(grant)
                expected += [("acquired", grant["fencingToken"]), ("released", grant["fencingToken"])]
            for stream in streams:
                told = await asyncio.to_thread(events, stream, 6)
                assert [(one.kind, one.data["fencingToken"]) for one in told] == expected

    # --- replicas that die ---

    async def test_who_waits_at_a_replica_that_is_killed_goes_on_at_another_in_the_same_place(
        self, replicas: list[Replica], store_url: str, lock_key: str
    ) -> None:
        alive, doomed, other = replicas
        holder = await alive.acquire(lock_key)
        lost = asyncio.ensure_future(doomed.wait_for(lock_key, requestId=f"r-{lock_key}", ownerId="moved"))
        await alive.until_waiting(lock_key, 1)
        behind = asyncio.ensure_future(other.wait_for(lock_key, ownerId="behind"))
        await alive.until_waiting(lock_key, 2)
        async with looking(store_url, lock_key) as queue:
            before = (await queue())[0]
            doomed.server.kill()
            with pytest.raises(httpx.HTTPError):
                await lost
            moved = asyncio.ensure_future(alive.wait_for(lock_key, requestId=f"r-{lock_key}", ownerId="moved"))

            async def stands_again() -> bool:
                return set((await queue())[0].attempts) != set(before.attempts)

            await eventually(stands_again)
            assert [waiter.who.owner_id for waiter in await queue()] == ["moved", "behind"]
        await alive.release(holder)
        async with asyncio.timeout(SOON_S):
            grant = await moved
            assert not behind.done()
            await alive.release(grant)
            assert int((await behind)["fencingToken"]) > int(grant["fencingToken"])

    async def test_waiters_of_a_replica_that_was_killed_delay_the_others_by_one_offer(
        self, replicas: list[Replica], store_url: str, lock_key: str
    ) -> None:
        alive, doomed, other = replicas
        holder = await alive.acquire(lock_key)
        dead = []
        for number in range(6):
            dead.append(asyncio.ensure_future(doomed.ask(lock_key, waitMillis=LONG_MS)))
            await alive.until_waiting(lock_key, number + 1)
        living = asyncio.ensure_future(other.wait_for(lock_key))
        await alive.until_waiting(lock_key, 7)
        doomed.server.kill()
        await asyncio.gather(*dead, return_exceptions=True)
        async with asyncio.timeout(SOON_S):
            await alive.release(holder)
            assert int((await living)["fencingToken"]) > int(holder["fencingToken"])
        async with looking(store_url, lock_key) as queue:
            found = await queue()
        thought_dead_us = {waiter.suspect_us for waiter in found}
        assert (len(found), len(thought_dead_us)) == (6, 1)  # all by the first offer, and not by one each
        assert 0 not in thought_dead_us

    async def test_replicas_are_restarted_one_after_the_other_and_nobody_is_refused(
        self, store_url: str, tmp_path: Path, lock_key: str
    ) -> None:
        with Restartable(tmp_path, store_url) as servers:
            clients = [Client(servers.urls, f"{lock_key}-{number % 2}", number) for number in range(4)]
            works = [asyncio.ensure_future(client.work()) for client in clients]
            try:
                for number in range(3):
                    await all_go_on(clients, works)
                    await asyncio.to_thread(servers.restart, number)
                await all_go_on(clients, works)
            finally:
                for client in clients:
                    client.stop = True
                await asyncio.gather(*works)
        for key in {client.lock_key for client in clients}:
            tokens = [token for client in clients if client.lock_key == key for token in client.tokens]
            assert len(tokens) == len(set(tokens))
        for client in clients:
            assert client.tokens == sorted(client.tokens)

    # --- the store, as users name it ---

    async def test_connect_uses_the_store_without_a_server(self, store_url: str, lock_key: str) -> None:
        async with connect(store_url) as one, connect(store_url) as two:
            async with one.hold(lock_key, ttl=60) as lease:
                async with two.try_hold(lock_key) as refused:
                    assert refused is None
                lease.ensure_held()
            async with two.hold(lock_key, ttl=60, wait=30) as later:
                assert later.token > lease.token

    def test_connect_without_await_uses_the_store_without_a_server(self, store_url: str, lock_key: str) -> None:
        with sync.connect(store_url) as one, sync.connect(store_url) as two:
            with one.hold(lock_key, ttl=60) as lease:
                with two.try_hold(lock_key) as refused:
                    assert refused is None
                lease.ensure_held()
            with two.hold(lock_key, ttl=60, wait=30) as later:
                assert later.token > lease.token

    async def test_the_demo_proves_its_point_on_this_store(self, store_url: str) -> None:
        async with demo_locks(store_url) as found:
            before = await found()
            run = [*COMMAND, "demo", "gc-pause", "--json", "--store", store_url]
            demo = asyncio.ensure_future(
                asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, timeout=200, check=False)
            )

            async def locks_here() -> bool:
                return demo.done() or bool(await found() - before)

            await eventually(locks_here, within_s=200)
            assert not demo.done(), f"no lock of the demo was seen in this store: {demo.result()}"
            done = await demo
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["proved"] is True
        assert (told["fenced"]["staleAccepted"], told["fenced"]["lostUpdates"]) == (0, 0)
        assert told["unfenced"]["staleAccepted"] > 0
