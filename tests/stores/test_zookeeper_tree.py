"""What the ZooKeeper store keeps in the tree: entries, segments of the change log, notes of what may be forgotten."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fencegate.clock import SYSTEM, SystemClock
from fencegate.core.ports import Change, Changes, Store, Unavailable
from fencegate.testing.change_log_suite import first_answer, log_revision
from fencegate.testing.committing import OpenStore, by, gather_log, put, write
from fencegate_lockservice.stores import open_store as open_url
from fencegate_lockservice.stores.zookeeper import commits as zookeeper_commits
from fencegate_lockservice.stores.zookeeper import forget as zookeeper_forget
from fencegate_lockservice.stores.zookeeper import log as zookeeper_log
from fencegate_lockservice.stores.zookeeper.names import escape, key_of, kinds_for, name_of, shard_of, unescape
from fencegate_lockservice.stores.zookeeper.scan import Scanner
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


def root_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a/b", "/", "%", "é", "a b", "\x01\x7f", "\U0010fffd", "a.b", "-", "%2F"]
)
def test_a_name_can_be_a_node_and_is_read_back_as_it_was(text: str) -> None:
    name = escape(text)
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert name.isascii()
    assert name.isprintable()
    assert unescape(name) == text.encode()


def test_no_two_keys_share_a_node() -> None:
    keys = ["k", "k/", "/k", "/", "", "%", "%/", "%-", "%-/k", "a/b", "a%2Fb", "a/b/", "a//b", "."]
    places = {(*shard_of(key), name_of(key)) for key in keys}
    assert len(places) == len(keys)
    assert sorted(key_of(kind, name).decode() for kind, _, name in places) == sorted(keys)
    for key in keys:
        for length in range(len(key) + 1):
            assert shard_of(key)[0] in kinds_for(key[:length], [shard_of(other)[0] for other in keys])


async def test_locks_can_be_found_in_the_tree_by_a_person(store: ZooKeeperStore, url: str) -> None:
    await write(store, Change("lock/orders:17", None, "v1", b'{"n":1}'))
    await write(store, Change("lock/orders:17", "v1", "v2", b'{"n":2}'))
    folder = shard_of("lock/orders:17")[1]
    with looking_at(url) as tree:
        path = f"{root_of(url)}/entries/lock/{folder}/orders:17"
        assert tree.get(path)[0] == b'v2\n{"n":2}'
        assert tree.get_children(path) == ["v2"]
    await write(store, Change("lock/orders:17", "v2", "v3"))
    with looking_at(url) as tree:
        assert tree.exists(path) is None


async def test_a_scan_sees_what_came_and_went_since_the_last_one(store: ZooKeeperStore, open_store: OpenStore) -> None:
    other = await open_store()
    known = {}
    for number in range(40):
        change = put(f"lock/{number % 7}/{number}")
        await write(store if number % 2 else other, change)
        known[change.key] = change.version
        if number % 3 == 0:
            gone, version = known.popitem()
            await write(other, Change(gone, version, "gone"))
        for prefix in ("lock/", "lock/3/", ""):
            found = {key: entry.version for key, entry in await store.scan(prefix, "", 1000)}
            assert found == {key: version for key, version in known.items() if key.startswith(prefix)}
    await other.close()


async def test_a_scan_is_whole_though_the_names_it_rests_on_are_let_go_of_meanwhile(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"lock/{number}" for number in range(30)]
    for key in keys[:-1]:
        await write(store, put(key))
    assert len(await store.scan("lock/", "", 1000)) == 29
    await write(store, put(keys[-1]))
    monkeypatch.setattr(Scanner, "_keep", lambda scanner, *_: scanner.forget())  # as other scans do, for want of room
    assert [key for key, _ in await store.scan("lock/", "", 1000)] == sorted(keys)


# --- the change log --------------------------------------------------------------------------------------------------


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_commits, "SEGMENT", 8)


@pytest.mark.usefixtures("short_segments")
async def test_nothing_is_lost_or_out_of_order_where_a_segment_ends(
    store: ZooKeeperStore, open_store: OpenStore
) -> None:
    others = [await open_store() for _ in range(2)]
    start = await log_revision(store)
    stream = store.changes(start)
    await first_answer(stream)
    live = asyncio.ensure_future(gather_log(stream, 300))
    made = [(number, put(f"k{number}")) for number in range(300)]
    await asyncio.gather(*(write([store, *others][number % 3], change) for number, change in made))
    lines = await live
    assert sorted(line.key for line in lines) == sorted(change.key for _, change in made)
    revisions = [line.revision for line in lines]
    assert revisions == sorted(set(revisions))
    for other in others:
        assert await gather_log(other.changes(start), 300) == lines
        assert await gather_log(other.changes(revisions[150]), 149) == lines[151:]
        await other.close()


@pytest.mark.usefixtures("short_segments")
async def test_commits_that_build_on_each_other_keep_their_order_where_a_segment_ends(store: ZooKeeperStore) -> None:
    versions = [SYSTEM.random_id() for _ in range(100)]
    chain = [
        store.commit([Change("k", before, version, b"{}")], [("k", b"{}")], by(store))
        for before, version in zip([None, *versions], versions, strict=False)
    ]
    assert await asyncio.gather(*chain) == [None] * 100
    assert (await store.load(["k"]))["k"].version == versions[-1]


@pytest.mark.usefixtures("short_segments")
async def test_old_segments_are_taken_away_and_whoever_was_there_is_told_so(
    store: ZooKeeperStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_log, "KEEP_SEGMENTS", 3)
    start = await log_revision(store)
    for number in range(100):
        await write(store, put(f"k{number}"))
    with looking_at(url) as tree:
        await eventually(lambda: len(tree.get_children(f"{root_of(url)}/log")) <= 4)
    newest = await log_revision(store)
    monkeypatch.setattr(store._following._feed, "_before_tail", newest)  # as it is for a process that came later
    for since in (start, 0):
        assert await first_answer(store.changes(since)) == Changes(newest, reset=True)
    assert [line.revision for line in await gather_log(store.changes(newest - 3), 3)] == [
        newest - 2,
        newest - 1,
        newest,
    ]


async def test_a_segment_that_was_sealed_by_a_process_that_died_then_is_followed_by_another(
    store: ZooKeeperStore, url: str
) -> None:
    stream = store.changes(None)
    await first_answer(stream)
    await write(store, put("before"))
    with looking_at(url) as tree:
        path = f"{root_of(url)}/log"
        segment = tree.get(path)[0].decode()
        tree.set(f"{path}/{segment}", tree.get(f"{path}/{segment}")[0])
        await asyncio.gather(*(write(store, put(f"k{number}")) for number in range(20)))
        assert tree.get(path)[0].decode() > segment
    assert [line.key for line in await gather_log(stream, 21)] == ["before", *(f"k{number}" for number in range(20))]


async def test_what_somebody_else_put_among_the_segments_keeps_nobody_from_following(
    store: ZooKeeperStore, open_store: OpenStore, url: str
) -> None:
    start = await log_revision(store)
    with looking_at(url) as tree:
        tree.create(f"{root_of(url)}/log/by hand", b"no segment")
    other = await open_store()
    change = put("k")
    await write(store, change)
    async with asyncio.timeout(30):
        assert [line.key for line in await gather_log(other.changes(start), 1)] == ["k"]
    await other.close()


# --- forgetting ------------------------------------------------------------------------------------------------------


async def test_what_a_process_that_died_should_have_forgotten_is_forgotten_by_another(
    store: ZooKeeperStore, open_store: OpenStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_forget, "TURN_S", 3600.0)
    dead = await open_store()
    await write(dead, put("short", keep_until_us=by(store, -200_000_000)), put("kept"))
    renewed = put("renewed", keep_until_us=by(store, 1))
    await write(dead, renewed)
    await write(dead, put("renewed", renewed.version))
    await dead.close()
    assert "short" in await store.load(["short"])
    monkeypatch.undo()
    monkeypatch.setattr(zookeeper_forget, "OVERDUE_S", -3600)
    monkeypatch.setattr(zookeeper_forget, "LOOK_EVERY_S", 0.0)
    other = await open_store()

    async def is_forgotten() -> bool:
        return "short" not in await store.load(["short"])

    await eventually(is_forgotten)
    with looking_at(url) as tree:
        await eventually(lambda: tree.get_children(f"{root_of(url)}/until") == [])
    assert set(await store.load(["kept", "renewed"])) == {"kept", "renewed"}
    await other.close()


@pytest.mark.parametrize("junk", ["by hand", "1", "1/by hand"])
async def test_what_somebody_else_put_among_the_notes_keeps_nothing_from_being_forgotten(
    store: ZooKeeperStore, open_store: OpenStore, url: str, monkeypatch: pytest.MonkeyPatch, junk: str
) -> None:
    monkeypatch.setattr(zookeeper_forget, "TURN_S", 3600.0)
    dead = await open_store()
    await write(dead, put("short", keep_until_us=by(store, -200_000_000)))
    await dead.close()
    monkeypatch.undo()
    with looking_at(url) as tree:
        tree.create(f"{root_of(url)}/until/{junk}", b"no note", makepath=True)
    monkeypatch.setattr(zookeeper_forget, "OVERDUE_S", -3600)
    monkeypatch.setattr(zookeeper_forget, "LOOK_EVERY_S", 0.0)
    other = await open_store()

    async def is_forgotten() -> bool:
        return "short" not in await store.load(["short"])

    await eventually(is_forgotten)
    await other.close()


async def test_a_replica_whose_clock_is_off_forgets_nothing(store: ZooKeeperStore, url: str) -> None:
    await write(store, put("k", keep_until_us=by(store, 600_000_000)))
    off = await open_url(url, SystemClock(SYSTEM.now_us() - SYSTEM.monotonic_us() + 3_600_000_000))
    assert isinstance(off, ZooKeeperStore)
    off._forgetting._noted.append((0, "ours, and due"))
    for step in (off._forgetting._forget_own, off._forgetting._forget_overdue):
        with pytest.raises(Unavailable, match="clock"):
            await step()
    await off.close()
    assert "k" in await store.load(["k"])


async def test_a_note_whose_folder_was_cleared_away_is_made_again(store: ZooKeeperStore, url: str) -> None:
    soon = by(store, 600_000_000)
    await write(store, put("one", keep_until_us=soon))
    path = f"{root_of(url)}/until"
    with looking_at(url) as tree:
        (folder,) = tree.get_children(path)
        tree.delete(f"{path}/{folder}", recursive=True)
        await write(store, put("two", keep_until_us=soon))
        await eventually(lambda: tree.exists(f"{path}/{folder}") and len(tree.get_children(f"{path}/{folder}")) == 1)


# --- sizes -----------------------------------------------------------------------------------------------------------


async def test_the_largest_value_is_kept_and_a_larger_commit_is_refused_by_itself(store: Store) -> None:
    largest = b"x" * store.capabilities.max_value
    await write(store, put("largest", value=largest))
    results = await asyncio.gather(
        write(store, put("one", value=largest), put("two", value=largest)),
        write(store, put("small")),
        return_exceptions=True,
    )
    assert isinstance(results[0], Unavailable)
    assert "more than ZooKeeper takes" in str(results[0])
    assert results[1] is None
    assert (await store.load(["largest", "one", "small"])).keys() == {"largest", "small"}
    assert (await store.load(["largest"]))["largest"].value == largest
