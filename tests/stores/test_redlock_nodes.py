"""Some of the nodes of a redlock store are killed, cut off, wiped or restored, under load: the others go on."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.ports import Ambiguous, Store, Unavailable
from fencegate.testing.committing import put, write
from fencegate.testing.crowd import Crowd
from fencegate.testing.fault_suite import OpenThrough, Replicas, replicas_through
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.redlock import store as redlock
from fencegate_lockservice.stores.redlock import witness as redlock_witness
from tests.eventually import eventually
from tests.real.redis import RedisServer
from tests.stores.redlock_fixtures import Five, address

NAMES = "names=a,b,c,d,e"


def node_hash(server: RedisServer, name: str) -> str:
    """A field of what a node says of itself."""
    answer = server.ask("HGET", "fencegate:node", name).decode()
    return answer.split("\r\n")[1] if answer.startswith("$") and not answer.startswith("$-1") else ""


async def votes_again(server: RedisServer, before: str) -> None:
    """Until the node votes, under another identity than before."""
    await eventually(lambda: node_hash(server, "state") == "voting" and node_hash(server, "identity") > before)


@pytest.fixture
def open_through() -> OpenThrough:
    async def open_(found_at: str, clock: object) -> Store:
        return await open_store(f"redlock://{found_at}?{NAMES}")

    return open_


@pytest.fixture
async def replicas(five: Five, open_through: OpenThrough) -> AsyncIterator[Replicas]:
    async with replicas_through([f"{server.host}:{server.port}" for server in five], open_through) as found:
        yield found


@asynccontextmanager
async def at_work(replicas: Replicas) -> AsyncIterator[Crowd]:
    """A crowd that was served before, and is judged afterwards."""
    async with Crowd([replica.engine for replica in replicas]) as crowd:
        await crowd.is_served(1)
        yield crowd


@asynccontextmanager
async def recorded(replicas: Replicas) -> AsyncIterator[dict[str, str]]:
    """Somebody writes all the time; what was acknowledged must be there in the end, through every replica."""
    acknowledged: dict[str, str] = {}
    stopping = False

    async def work(store: Store, name: str) -> None:
        for number in range(100_000):
            if stopping:
                return
            change = put(f"{name}-{number}", value=b'"%d"' % number)
            try:
                await write(store, change)
                acknowledged[change.key] = change.version
            except (Unavailable, Ambiguous):
                pass
            await asyncio.sleep(0.05)

    works = [
        asyncio.ensure_future(work(replica.engine.store, f"kept-{number}")) for number, replica in enumerate(replicas)
    ]
    try:
        yield acknowledged
    finally:
        stopping = True
        await asyncio.gather(*works)
    await are_there(acknowledged, replicas)


async def are_there(acknowledged: dict[str, str], replicas: Replicas) -> None:
    for replica in replicas:
        found = await replica.engine.store.load(list(acknowledged))
        assert {key: entry.version for key, entry in found.items()} == acknowledged


# --- down ------------------------------------------------------------------------------------------------------------


async def test_two_of_five_are_killed_and_locks_go_on(five: Five, replicas: Replicas) -> None:
    async with recorded(replicas), at_work(replicas) as crowd:
        for server in five[:2]:
            server.kill()
        await crowd.is_served()
        for server in five[:2]:
            await asyncio.to_thread(server.start)
        for server in five[3:]:
            server.kill()
        await crowd.is_served(1)
        for server in five[3:]:
            await asyncio.to_thread(server.start)
        await crowd.is_served()  # the first two may not have been back when the others went


async def test_three_of_five_are_killed_and_nothing_is_granted_until_they_are_back(
    five: Five, replicas: Replicas
) -> None:
    async with recorded(replicas), at_work(replicas) as crowd:
        for server in five[:3]:
            server.kill()
        began_us = SYSTEM.monotonic_us()
        await crowd.fails(4)
        crowd.told.outages.append((began_us, SYSTEM.monotonic_us()))
        with pytest.raises(Unavailable, match="2 of 5 nodes can"):
            await replicas[0].engine.store.load(["k"])
        for server in five[:3]:
            await asyncio.to_thread(server.start)
        await crowd.is_served()


async def test_two_of_five_hang_and_locks_go_on(five: Five, replicas: Replicas) -> None:
    async with at_work(replicas) as crowd:
        for server in five[1:3]:
            server.stop()
        await crowd.is_served(4)
        for server in five[1:3]:
            server.resume()
        await crowd.is_served()


async def test_each_replica_is_cut_off_from_another_minority_and_both_go_on(replicas: Replicas) -> None:
    one, two = replicas
    async with recorded(replicas), at_work(replicas) as crowd:
        for proxy in (*one.proxies[:2], *two.proxies[3:]):
            proxy.cut()
        await crowd.is_served(2, through=one.engine)
        await crowd.is_served(2, through=two.engine)
        for proxy in (*one.proxies, *two.proxies):
            proxy.pass_()
        await crowd.is_served()


async def test_a_replica_that_reaches_only_a_minority_fails_while_the_other_goes_on(replicas: Replicas) -> None:
    one, two = replicas
    async with at_work(replicas) as crowd:
        for proxy in one.proxies[:3]:
            proxy.cut()

        async def fails() -> bool:
            try:
                await one.engine.store.load(["k"])
            except Unavailable:
                return True
            return False

        await eventually(fails)
        with pytest.raises((Unavailable, Ambiguous)):
            await write(one.engine.store, put("k"))
        await crowd.is_served(2, through=two.engine)
        for proxy in one.proxies:
            proxy.pass_()
        await crowd.is_served(1, through=one.engine)


# --- wiped -----------------------------------------------------------------------------------------------------------


def flush(server: RedisServer) -> None:
    server.ask("FLUSHALL")


def replace_disk(server: RedisServer) -> None:
    """It comes back with an empty folder."""
    server.kill()
    shutil.rmtree(server._folder)
    server.start()


@pytest.mark.parametrize("wipe", [flush, replace_disk])
async def test_one_of_five_is_wiped_and_votes_again_when_it_has_copied_the_others(
    five: Five, replicas: Replicas, wipe: Callable[[RedisServer], None]
) -> None:
    async with recorded(replicas) as acknowledged, at_work(replicas) as crowd:
        for wiped in (0, 3, 4):
            before = node_hash(five[wiped], "identity")
            await asyncio.to_thread(wipe, five[wiped])
            await votes_again(five[wiped], before)
            await crowd.is_served(1)
        for server in five[1:3]:  # from now on all that is known is what those have copied that were wiped
            server.kill()
        await crowd.is_served()
        await are_there(dict(acknowledged), replicas)
        for server in five[1:3]:
            await asyncio.to_thread(server.start)


async def test_two_of_five_are_wiped_at_once_and_both_come_back(five: Five, replicas: Replicas) -> None:
    async with recorded(replicas) as acknowledged, at_work(replicas) as crowd:
        before = [node_hash(server, "identity") for server in five]
        for server in five[:2]:
            flush(server)
        for server, identity in zip(five[:2], before, strict=False):
            await votes_again(server, identity)
        flush(five[4])  # so that all that is known is what was copied, when the other two are gone
        await votes_again(five[4], before[4])
        for server in five[2:4]:
            server.kill()
        await crowd.is_served()
        await are_there(dict(acknowledged), replicas)
        for server in five[2:4]:
            await asyncio.to_thread(server.start)


async def test_when_three_of_five_are_wiped_nothing_is_granted_and_it_is_said_why(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = address(five)
    store = await open_store(url)
    await write(store, put("k"))
    for server in five[1:4]:
        flush(server)

    async def refused() -> bool:
        try:
            await store.load(["k"])
        except Unavailable:
            return True
        return False

    await eventually(refused)
    await store.close()
    with monkeypatch.context() as patch, pytest.raises(Unavailable, match="a majority lost its data"):
        patch.setattr(redlock, "OPEN_WITHIN_S", 5.0)
        await open_store(url)
    for server in five:
        flush(server)
    store = await open_store(url)  # all of them are empty: a new beginning
    assert not await store.load(["k"])
    await write(store, put("k"))
    await store.close()


async def test_when_all_are_wiped_those_who_are_connected_begin_anew_and_tokens_go_on_rising(
    five: Five, replicas: Replicas
) -> None:
    async with at_work(replicas) as crowd:
        highest = max(grant.hold.token for grant in crowd.told.grants)
    for server in five:
        flush(server)
    async with Crowd([replica.engine for replica in replicas]) as crowd:
        await crowd.is_served()
        assert min(grant.hold.token for grant in crowd.told.grants) > highest


async def test_a_node_that_came_back_from_a_backup_does_not_vote_before_it_copied_the_others(
    five: Five, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redlock_witness, "TELL_EVERY_US", 0)
    url = address(five)
    store = await open_store(url)
    first = put("k")
    await write(store, first)
    five[0].kill()
    shutil.copytree(five[0]._folder, tmp_path / "backup")
    await asyncio.to_thread(five[0].start)
    before = node_hash(five[0], "identity")

    async def is_known_to_have_voted() -> bool:
        """Until another node was told of votes that the backup does not have."""
        await write(store, put(f"more-{SYSTEM.random_id(4)}"))
        return _witnessed(five) > backed_up

    backed_up = int(node_hash(five[0], "votes"))
    await eventually(is_known_to_have_voted)
    second = put("k", first.version, b'"second"')
    await write(store, second)
    await store.close()
    five[0].kill()
    shutil.rmtree(five[0]._folder)
    shutil.copytree(tmp_path / "backup", five[0]._folder)
    await asyncio.to_thread(five[0].start)
    store = await open_store(url)
    await votes_again(five[0], before)
    for server in five[1:3]:
        server.kill()
    assert (await store.load(["k"]))["k"].version == second.version
    await store.close()


def _witnessed(five: Five) -> int:
    """How many votes of the first server another one was told of."""
    seats = sorted(f"{server.host}:{server.port}" for server in five)
    place = seats.index(f"{five[0].host}:{five[0].port}")
    told = node_hash(five[4], f"witness:{place}")
    return int(told.split()[1]) if told.startswith(node_hash(five[0], "identity")) else 0


async def test_many_and_large_registers_are_copied_page_by_page(five: Five) -> None:
    url = address(five)
    store = await open_store(url)
    small = [put(f"k{number:04d}") for number in range(450)]
    large = [put(f"large{number}", value=b"x" * 900_000) for number in range(6)]
    for start in range(0, len(small), 90):
        await asyncio.gather(*(write(store, change) for change in small[start : start + 90]))
    for change in large:
        await write(store, change)
    for server in five[2:]:  # those that are left in the end have nothing but what they copied
        before = node_hash(server, "identity")
        flush(server)
        await votes_again(server, before)
    for server in five[:2]:
        server.kill()
    found = await store.load([change.key for change in (*small, *large)])
    assert {key: entry.version for key, entry in found.items()} == {c.key: c.version for c in (*small, *large)}
    assert len(await store.scan("k", "", 1000)) == 450
    await store.close()


async def test_who_follows_is_told_to_look_again_when_a_node_lost_what_it_had_to_tell(five: Five) -> None:
    store = await open_store(address(five))
    stream = store.changes(None)
    async with asyncio.timeout(30):
        await anext(stream)
        flush(five[0])
        while not (await anext(stream)).reset:
            pass
    await stream.aclose()
    await store.close()
