"""A node of a redlock store comes back, and votes only after somebody looked at it; another is not its own any more."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Unavailable
from fencegate.testing.committing import put, write
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.redlock.store import RedlockStore
from tests.eventually import eventually
from tests.real.redis import RedisServer
from tests.stores.redlock_fixtures import Five, address, started


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Five]:
    with started(tmp_path, 3) as servers:
        yield sorted(servers, key=lambda server: f"{server.host}:{server.port}")  # as the store numbers them


class Slow:
    """A store whose nodes are looked at only when the test says so."""

    def __init__(self, store: RedlockStore) -> None:
        assert store._council is not None
        self.store = store
        self.council = store._council
        self.nodes = store._nodes

    async def stop_looking(self) -> None:
        assert self.council._tending is not None
        self.council._tending.cancel()
        with suppress(asyncio.CancelledError):
            await self.council._tending

    async def look(self) -> None:
        with suppress(Unavailable):
            await self.council._pass()

    async def are_up(self, *up: bool) -> None:
        await eventually(lambda: [node.up for node in self.nodes] == list(up))

    async def version(self) -> str:
        return (await self.store.load(["k"]))["k"].version

    async def is_down(self) -> bool:
        try:
            await self.version()
        except Unavailable:
            return True
        return False


@pytest.fixture
async def slow(three: Five) -> AsyncIterator[Slow]:
    store = await open_store(address(three))
    assert isinstance(store, RedlockStore)
    slow = Slow(store)
    await slow.stop_looking()
    yield slow
    await store.close()


async def restart(slow: Slow, server: RedisServer, number: int) -> None:
    server.kill()
    await eventually(lambda: not slow.nodes[number].up)
    await asyncio.to_thread(server.start)
    await eventually(lambda: slow.nodes[number].up)


async def test_a_node_that_came_back_votes_only_after_somebody_looked_at_it(three: Five, slow: Slow) -> None:
    first = put("k")
    await write(slow.store, first)
    for number in (0, 1):
        await restart(slow, three[number], number)
    await slow.are_up(True, True, True)
    assert await slow.is_down()
    with pytest.raises(Unavailable, match="it has just come back"):
        await write(slow.store, put("k", first.version))
    with pytest.raises(Unavailable):
        await slow.store.scan("", "", 10)
    await slow.look()
    assert await slow.version() == first.version
    await write(slow.store, put("k", first.version))


async def test_a_commit_that_was_acknowledged_outlives_a_node_that_was_restored_while_another_was_away(
    three: Five, slow: Slow, tmp_path: Path
) -> None:
    first = put("k")
    await write(slow.store, first)
    await eventually(lambda: b"k" in three[1].ask("HGET", "entry:k", "value"))
    three[1].kill()
    await slow.are_up(True, False, True)
    shutil.copytree(three[1]._folder, tmp_path / "backup")
    await asyncio.to_thread(three[1].start)
    await slow.are_up(True, True, True)
    three[2].kill()
    await slow.are_up(True, True, False)
    await slow.look()
    second = put("k", first.version, b'"second"')
    await write(slow.store, second)  # the third has not heard of it
    await asyncio.to_thread(three[2].start)
    await slow.are_up(True, True, True)
    await slow.look()
    three[0].kill()
    three[1].kill()
    shutil.rmtree(three[1]._folder)
    shutil.copytree(tmp_path / "backup", three[1]._folder)
    await slow.are_up(False, False, True)
    await asyncio.to_thread(three[1].start)
    await slow.are_up(False, True, True)  # both would say that the first value is the last
    assert await slow.is_down()
    await slow.look()
    assert await slow.is_down()
    await asyncio.to_thread(three[0].start)
    await slow.are_up(True, True, True)

    async def is_usable() -> bool:
        await slow.look()
        return not await slow.is_down()

    await eventually(is_usable)
    assert await slow.version() == second.version


async def test_a_node_that_came_back_has_no_voice_beside_a_majority_of_others_either(
    three: Five, slow: Slow, tmp_path: Path
) -> None:
    first = put("k")
    await write(slow.store, first)
    await eventually(lambda: b"k" in three[1].ask("HGET", "entry:k", "value"))
    three[1].kill()
    await slow.are_up(True, False, True)
    shutil.copytree(three[1]._folder, tmp_path / "backup")
    await asyncio.to_thread(three[1].start)
    await slow.are_up(True, True, True)
    three[2].kill()
    await slow.are_up(True, True, False)
    await slow.look()
    second = put("k", first.version, b'"second"')
    await write(slow.store, second)  # the third has not heard of it
    await asyncio.to_thread(three[2].start)
    await slow.are_up(True, True, True)
    await slow.look()
    three[1].kill()
    shutil.rmtree(three[1]._folder)
    shutil.copytree(tmp_path / "backup", three[1]._folder)
    await slow.are_up(True, False, True)
    await asyncio.to_thread(three[1].start)
    await slow.are_up(True, True, True)
    three[0].stop()  # the one that knows: the other two would say that the first value is the last
    try:
        assert await slow.is_down()
    finally:
        three[0].resume()

    async def is_usable() -> bool:
        await slow.look()
        return not await slow.is_down()

    await eventually(is_usable)
    assert await slow.version() == second.version


async def test_a_node_that_belongs_to_something_else_is_left_out_and_told_of_once(
    lasting_five: Five, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = f"{SYSTEM.random_id(4)}:"
    url = f"{address(lasting_five)}?prefix={prefix}"
    store = await open_store(url)
    assert isinstance(store, RedlockStore)
    assert store._council is not None
    kept = put("k")
    await write(store, kept)

    def told() -> int:
        return sum("is left out" in record.getMessage() for record in caplog.records)

    fields = [("seats", '["x","y","z"]'), ("format", "99")]
    with caplog.at_level(logging.ERROR, logger="fencegate.store.redlock"):
        for server, (name, value) in zip(lasting_five, fields, strict=False):
            before = told()
            server.ask("HSET", f"{prefix}fencegate:node", name, value)
            while told() == before:
                await store._council.looked()
            assert (await store.load(["k"]))["k"].version == kept.version
            await write(store, put(f"more-{name}"))
        for _ in range(3):
            await store._council.looked()
        assert told() == len(fields)
    await store.close()
    with pytest.raises(UnsafeConfiguration):
        await open_store(url)
