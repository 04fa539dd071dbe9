"""How the ZooKeeper store is opened, refused, cut off and closed."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator

import pytest
from kazoo.client import KazooClient

from fencegate.clock import SYSTEM
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Ambiguous, Store, Unavailable
from fencegate.engine import Engine
from fencegate.testing.caller import Caller
from fencegate.testing.change_log_suite import first_answer
from fencegate.testing.committing import OpenStore, gather_log, put, write
from fencegate.testing.crowd import Crowd
from fencegate.testing.fault_proxy import FaultProxy
from fencegate_lockservice.stores import open_store as open_url
from fencegate_lockservice.stores.zookeeper import line as zookeeper_line
from fencegate_lockservice.stores.zookeeper.line import Address, read_url
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


# --- the URL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("zookeeper://a", Address((("a", 2181),))),
        ("zookeeper://a:1,b,[::1]:3/x/y", Address((("a", 1), ("b", 2181), ("::1", 3)), "/x/y")),
        ("zookeeper://u:p%40ss@a/", Address((("a", 2181),), "/fencegate", "u", "p@ss")),
    ],
)
def test_a_url_names_servers_and_a_root(url: str, address: Address) -> None:
    assert read_url(url) == address


@pytest.mark.parametrize(
    "rest",
    [
        "", "/x", "a:,b", "a:0", "a:65536", "a:x", f"a:{'9' * 5000}", "::1", "a,,b", "a/x//y", "a/../x", "a/zookeeper",
        "a?x=1", "a/\x01",
    ],
)  # fmt: skip
async def test_a_url_that_is_none_is_refused_without_its_password(rest: str) -> None:
    with pytest.raises(UnsafeConfiguration, match="ZooKeeper store") as refused:
        await open_url(f"zookeeper://user:secret-word@{rest}")
    assert "secret-word" not in str(refused.value)
    assert "secret-word" not in repr(read_url("zookeeper://user:secret-word@a"))


# --- what is found there ---------------------------------------------------------------------------------------------


async def test_a_root_that_is_used_by_something_else_is_refused(url: str) -> None:
    with looking_at(url) as tree:
        tree.create(f"/{url.split('/', 3)[3]}/brokers", makepath=True)
    with pytest.raises(UnsafeConfiguration, match="something else"):
        await open_url(url)


async def test_a_root_of_another_version_is_refused(store: ZooKeeperStore, url: str) -> None:
    with looking_at(url) as tree:
        tree.set(f"/{url.split('/', 3)[3]}/format", b"fencegate 999")
    with pytest.raises(UnsafeConfiguration, match="fencegate 999"):
        await open_url(url)


async def test_many_may_open_a_new_root_at_once(open_store: OpenStore) -> None:
    stores = await asyncio.gather(*(open_store() for _ in range(10)))
    await asyncio.gather(*(write(store, put(f"k{number}")) for number, store in enumerate(stores)))
    assert len(await stores[0].load([f"k{number}" for number in range(10)])) == 10
    await asyncio.gather(*(store.close() for store in stores))


async def test_locks_of_a_user_are_closed_to_others(zookeeper_server: list[str]) -> None:
    url = url_of(zookeeper_server)
    mine, other = (url.replace("://", f"://{who}:secret-word@") for who in ("me", "other"))
    store = await open_url(mine)
    await write(store, put("k"))
    for foreign in (url, other):
        with pytest.raises(UnsafeConfiguration, match="another user") as refused:
            await open_url(foreign)
        assert "secret-word" not in str(refused.value)
    again = await open_url(mine)
    assert "k" in await again.load(["k"])
    await again.close()
    await store.close()


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x04\0\0\0\0"])
async def test_what_is_no_zookeeper_server_is_unavailable(greeting: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_line, "OPEN_WITHIN_S", 1.0)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match="ZooKeeper"):
            await open_url(f"zookeeper://u:secret-word@127.0.0.1:{port}")


async def test_a_server_that_says_nothing_is_said_to_do_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_line, "OPEN_WITHIN_S", 0.5)
    monkeypatch.setattr(zookeeper_line, "CONNECT_WITHIN_S", 0.1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port}: no answer in time"):
            await open_url(f"zookeeper://127.0.0.1:{port}")


async def test_a_server_and_an_ensemble_are_told_apart(
    zookeeper_server: list[str], zookeeper_ensemble: list[str]
) -> None:
    for addresses, expected in (
        (zookeeper_server, "single server"),
        (zookeeper_ensemble[:1], "names one server of an ensemble"),
        (zookeeper_ensemble, "all 3 servers of the ensemble are in step"),
    ):
        store = await open_url(url_of(addresses))
        findings = await store.inspect()
        assert expected in " ".join(finding.what for finding in findings)
        assert not [finding for finding in findings if finding.level == "unsafe"]
        await store.close()


async def test_servers_that_are_no_ensemble_are_unsafe(
    zookeeper_server: list[str], zookeeper_ensemble: list[str]
) -> None:
    store = ZooKeeperStore(read_url(url_of([*zookeeper_server, zookeeper_ensemble[0]])))
    assert [finding.level for finding in await store.inspect()].count("unsafe") == 1


# --- sessions, and the tree, that end under it -----------------------------------------------------------------------


async def test_sessions_that_end_under_load_cost_no_order_and_no_lock(
    open_store: OpenStore, zookeeper_server: list[str]
) -> None:
    stores = [await open_store() for _ in range(2)]
    engines = [Engine(store, SYSTEM) for store in stores]
    for engine in engines:
        await engine.start()
    async with Crowd(engines) as crowd:
        for number in range(6):
            await crowd.is_served(1)
            store = stores[number % 2]
            assert isinstance(store, ZooKeeperStore)
            await eventually(lambda store=store: store._line._connection is not None)  # type: ignore[misc]
            connection = store._line.connection
            session = connection.session
            await asyncio.to_thread(_end_session, zookeeper_server, session.session_id, session.password)
            await eventually(lambda connection=connection: connection.lost)  # type: ignore[misc]
        await crowd.is_served()
    for engine in engines:
        await engine.close()
    for store in stores:
        await store.close()


def _end_session(addresses: list[str], session_id: int, password: bytes) -> None:
    """Move the session to another client, and close it there."""
    thief = KazooClient(hosts=",".join(addresses), client_id=(session_id, password))
    thief.start(timeout=30)
    thief.stop()
    thief.close()


async def test_who_follows_hears_all_that_was_committed_while_the_session_was_gone(
    store: ZooKeeperStore, open_store: OpenStore, zookeeper_server: list[str]
) -> None:
    other = await open_store()
    stream = store.changes(None)
    await first_answer(stream)
    for number in range(5):
        await write(other, put(f"before-{number}"))
        session = store._line.connection.session
        await asyncio.to_thread(_end_session, zookeeper_server, session.session_id, session.password)
        await write(other, put(f"after-{number}"))
        assert [line.key for line in await gather_log(stream, 2)] == [f"before-{number}", f"after-{number}"]
    await other.close()


async def test_tokens_go_on_rising_when_the_whole_tree_is_lost(store: ZooKeeperStore, url: str) -> None:
    engine = Engine(store, SYSTEM)
    await engine.start()
    caller = Caller(engine, "A")
    tokens = []
    for _ in range(3):
        hold = await _asked_again(caller, "k")
        tokens.append(hold)
        with looking_at(url) as tree:
            tree.delete(f"/{url.split('/', 3)[3]}", recursive=True)
    tokens.append(await _asked_again(caller, "k"))
    assert tokens == sorted(set(tokens))
    await engine.close()


async def _asked_again(caller: Caller, lock_key: str) -> int:
    """As a client does: until there is an answer."""
    found: list[int] = []

    async def granted() -> bool:
        try:
            found.append((await caller.acquire(lock_key, ttl_s=1)).token)
        except Exception:
            return False
        return True

    await eventually(granted)
    return found[0]


# --- the line --------------------------------------------------------------------------------------------------------


async def test_nothing_is_answered_by_a_line_that_is_down_and_it_comes_back(
    url: str, zookeeper_server: list[str]
) -> None:
    with FaultProxy(zookeeper_server[0]) as proxy:
        store = await open_url(url.replace(zookeeper_server[0], proxy.address))
        await write(store, put("before"))
        proxy.cut()
        works = [write(store, put("during")), store.load(["before"]), store.scan("", "", 1)]
        results = await asyncio.gather(*works, return_exceptions=True)
        assert all(isinstance(result, Unavailable | Ambiguous) for result in results), results
        with pytest.raises(Unavailable, match="ZooKeeper"):
            await write(store, put("later"))
        proxy.pass_()

        async def is_back() -> bool:
            try:
                return "before" in await store.load(["before"])
            except Unavailable:
                return False

        await eventually(is_back)
        await write(store, put("after"))
        await store.close()


async def test_whoever_stops_waiting_breaks_nothing(store: Store) -> None:
    works = [asyncio.ensure_future(write(store, put(f"k{number}"))) for number in range(50)]
    reads = [asyncio.ensure_future(store.load([f"k{number}"])) for number in range(50)]
    await asyncio.sleep(0)
    for work in [*works[::2], *reads[::3]]:
        work.cancel()
    results = await asyncio.gather(*works, *reads, return_exceptions=True)
    assert all(result is None for result in results[1:50:2])
    await write(store, put("after"))
    assert "after" in await store.load(["after"])


async def test_a_closed_store_leaves_neither_tasks_nor_sockets(open_store: OpenStore) -> None:
    await (await open_store()).close()  # what is made once stays
    gc.collect()
    files, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    for _ in range(3):
        store = await open_store()
        stream = store.changes(None)
        await first_answer(stream)
        await asyncio.gather(*(write(store, put(SYSTEM.random_id(), keep_until_us=1)) for _ in range(20)))
        await store.close()
        await store.close()
        await stream.aclose()
        with pytest.raises(Unavailable, match="closed"):
            await store.load(["k"])
    gc.collect()
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= files)


async def test_what_one_server_has_acknowledged_is_read_at_every_other(zookeeper_ensemble: list[str]) -> None:
    root = SYSTEM.random_id(5)
    stores = [await open_url(f"zookeeper://{address}/test/{root}") for address in zookeeper_ensemble]
    last: str | None = None
    for number in range(60):
        change = put("lock/k", last)
        await write(stores[number % 3], change)
        last = change.version
        found = await asyncio.gather(*(store.load(["lock/k"]) for store in stores))
        scans = await asyncio.gather(*(store.scan("lock/", "", 10) for store in stores))
        assert [entries["lock/k"].version for entries in found] == [last] * 3
        assert [[entry.version for _, entry in entries] for entries in scans] == [[last]] * 3
    for store in stores:
        await store.close()
