"""The change log in ZooKeeper as it is read: over segments that end, are taken away, or belong to another past."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fencegate.core.ports import Store, Unavailable
from fencegate.testing.change_log_suite import first_answer, log_revision
from fencegate.testing.committing import OpenStore, gather_log, put, write
from fencegate_lockservice.stores.zookeeper import commits as zookeeper_commits
from fencegate_lockservice.stores.zookeeper.store import ZooKeeperStore
from tests.eventually import eventually
from tests.stores.zookeeper_fixtures import looking_at, opens, url_of


@pytest.fixture
def url(zookeeper_server: list[str]) -> str:
    return url_of(zookeeper_server)


@pytest.fixture
def open_store(url: str) -> OpenStore:
    return opens(url)


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[ZooKeeperStore]:
    store = await open_store()
    assert isinstance(store, ZooKeeperStore)
    yield store
    await store.close()


@pytest.fixture
async def other(open_store: OpenStore) -> AsyncIterator[Store]:
    store = await open_store()
    yield store
    await store.close()


def begin_segment(url: str, *, ahead: int, last: int) -> int:
    """Seal the segment that is written, as another process does, and begin one so many revisions after its start."""
    path = f"/{url.split('/', 3)[3]}/log"
    with looking_at(url) as tree:
        before = int(tree.get(path)[0])
        tree.set(f"{path}/{before}", tree.get(f"{path}/{before}")[0])
        tree.create(f"{path}/{before + ahead}", b"%d" % last)
        tree.set(path, b"%d" % (before + ahead))
    return before


async def test_a_new_log_is_told_from_its_first_line_on(store: ZooKeeperStore, other: Store, url: str) -> None:
    await write(store, put("first"))
    begin_segment(url, ahead=1_000_000, last=await log_revision(store))
    await write(store, put("second"))
    assert [line.key for line in await gather_log(other.changes(0), 2)] == ["first", "second"]


async def test_whoever_was_told_of_a_revision_that_is_in_no_segment_is_told_to_begin_anew(
    store: ZooKeeperStore, open_store: OpenStore, url: str
) -> None:
    for number in range(3):
        await write(store, put(f"k{number}"))
    last = await log_revision(store)
    begin_segment(url, ahead=1_000_000, last=last)
    for number in range(3, 6):
        await write(store, put(f"k{number}"))
    newest = await log_revision(store)
    came_later = await open_store()
    told = await first_answer(came_later.changes(last + 100))
    assert (told.reset, told.revision) == (True, newest)
    assert [line.key for line in await gather_log(came_later.changes(last), 3)] == ["k3", "k4", "k5"]
    assert isinstance(came_later, ZooKeeperStore)
    async with asyncio.timeout(30):
        assert await anext(came_later._tail.follow(last + 100)) is None
    await came_later.close()


async def test_own_lines_are_not_told_of_after_the_connection_broke_for_the_log_may_be_another(
    store: ZooKeeperStore, other: Store
) -> None:
    here = await log_revision(other)
    store._tail.committed(here + 1, [("what a restore took away", b"{}")])
    await write(other, put("what is there"))
    before = store._line.connection
    before.abort("the network broke")
    await eventually(lambda: store._line._connection not in (None, before))
    assert [line.key for line in await gather_log(store.changes(here), 1)] == ["what is there"]


async def test_a_segment_that_was_taken_away_since_it_was_last_written_to_is_not_missed(
    store: ZooKeeperStore, url: str
) -> None:
    await write(store, put("k"))
    last = await log_revision(store)
    before = begin_segment(url, ahead=1_000_000, last=last)
    with looking_at(url) as tree:
        tree.delete(f"/{url.split('/', 3)[3]}/log/{before}", recursive=True)
    assert await store._tail.newest() == last
    await write(store, put("l"))
    assert [line.key for line in await gather_log(store.changes(last), 1)] == ["l"]


async def test_a_log_whose_written_segment_is_gone_is_unavailable_and_does_not_hang(
    store: ZooKeeperStore, url: str
) -> None:
    path = f"/{url.split('/', 3)[3]}/log"
    with looking_at(url) as tree:
        tree.delete(f"{path}/{tree.get(path)[0].decode()}", recursive=True)
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable, match="can't be read"):
            await store._tail.newest()


async def test_the_log_is_read_to_its_end_by_whoever_has_not_heard_of_the_last_segments(
    store: ZooKeeperStore, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_commits, "SEGMENT", 8)
    start, segment = await log_revision(store), store._log.start
    for number in range(30):
        await write(other, put(f"k{number}"))
    assert store._log.start == segment
    lines = await store._tail.read_log(start, 250)
    assert [line.key for line in lines or ()] == [f"k{number}" for number in range(30)]


async def test_two_who_read_the_same_lines_both_have_them(store: ZooKeeperStore, other: Store) -> None:
    start = await log_revision(other)
    await write(other, put("of another"))
    await write(store, put("of our own"))
    both = await asyncio.gather(*(store._tail.read_log(start, 250) for _ in range(2)))
    assert [[line.key for line in lines or ()] for lines in both] == [["of another", "of our own"]] * 2
