"""Several stores behind one lock service: every call goes to the store of its lock key, and none is over two."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

from fencegate import connect
from fencegate.clock import SYSTEM
from fencegate.core.errors import InvalidInput, LockHeld, NotSupported, UnsafeConfiguration
from fencegate.core.ports import Capabilities, Finding
from fencegate.engine import Engine
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.over_store import StoreApi
from fencegate_lockservice.routes import Routes
from fencegate_lockservice.stores.memory import MemoryStore
from fencegate_lockservice.watch import Wanted, Watch
from tests.routed_stores import Stores, held_in


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    async with AsyncExitStack() as stack:
        made = Stores(stack, SYSTEM)
        for name in ("a", "b", "c"):
            await made.store(name)
        yield made


# --- calls ---


async def test_each_lock_is_kept_in_the_store_of_its_longest_prefix_and_nowhere_else(stores: Stores) -> None:
    table = {"o": stores.url("a"), "orders:": stores.url("b"), "*": stores.url("c")}
    service = await stores.over(Routes.in_table(table))
    for lock_key, home in (("o1", "a"), ("orders:1", "b"), ("x", "c")):
        grant = await service.acquire(lock_key, {"ownerId": "me"})
        assert [name for name in "abc" if await held_in(stores, name, lock_key)] == [home]
        assert (await service.status(lock_key))["ownerId"] == "me"
        renewed = await service.renew(lock_key, {"lockToken": grant["lockToken"]})
        assert renewed["fencingToken"] == grant["fencingToken"]
        assert (await service.release(lock_key, {"lockToken": grant["lockToken"]}))["status"] == "RELEASED"
        await service.acquire(lock_key, {})
        assert (await service.force_release(lock_key, {"reason": "test"}))["status"] == "FORCE_RELEASED"
        assert [hold["ending"] for hold in (await service.history(lock_key))["history"]] == ["forced", "released"]


async def test_a_key_without_a_store_is_refused_and_the_known_prefixes_are_named(stores: Stores) -> None:
    service = await stores.serve(orders="a", carts="b")
    for call in (service.acquire("x:1", {}), service.status("x:1"), service.history("x:1")):
        with pytest.raises(InvalidInput) as caught:
            await call
        assert caught.value.wire_code == "INVALID_LOCK_KEY"
        assert "'orders:'" in caught.value.detail
    with pytest.raises(InvalidInput):
        service.follow(Wanted(key="x:1"))
    with pytest.raises(InvalidInput):
        service.follow(Wanted(prefix="x"))


async def test_several_locks_at_once_are_of_one_store_or_refused_naming_both(stores: Stores) -> None:
    service = await stores.serve(orders="a", all="b")
    one = {"locks": [{"lockKey": "orders:1"}, {"lockKey": "orders:2"}]}
    granted = await service.multi_acquire(one)
    locks = [{"lockKey": lock["lockKey"], "lockToken": lock["lockToken"]} for lock in granted["locks"]]
    await service.multi_renew({"locks": locks})
    assert (await service.multi_release({"locks": locks}))["status"] == "RELEASED"
    two = {"locks": [{"lockKey": "orders:1"}, {"lockKey": "cart:1"}]}
    with pytest.raises(NotSupported) as caught:
        await service.multi_acquire(two)
    assert "'orders:'" in caught.value.members["store"]
    assert "'*'" in caught.value.members["store"]
    assert caught.value.members["feature"] == "multi"
    assert not await held_in(stores, "b", "cart:1")


async def test_sessions_live_in_the_store_of_the_star(stores: Stores) -> None:
    service = await stores.serve(orders="a", all="b")
    session = (await service.open_session({"ttlMillis": 60_000}))["sessionId"]
    await service.acquire("cart:1", {"sessionId": session})
    assert (await service.session(session))["locks"] == 1
    await service.renew_session(session, {})
    for call in (
        service.acquire("orders:1", {"sessionId": session}),
        service.multi_acquire({"locks": [{"lockKey": "orders:1"}], "sessionId": session}),
    ):
        with pytest.raises(NotSupported) as caught:
            await call
        assert "'orders:'" in caught.value.detail
        assert "'*'" in caught.value.detail
    await service.end_session(session)
    assert (await service.acquire("cart:1", {}))["lockKey"] == "cart:1"


async def test_without_a_star_there_are_no_sessions(stores: Stores) -> None:
    service = await stores.serve(orders="a")
    with pytest.raises(NotSupported):
        await service.open_session({})


@pytest.mark.parametrize("lock_key", ["shop", "shop/eu", "shop/eu/1"])
async def test_a_hierarchical_lock_whose_family_is_in_two_stores_is_refused(stores: Stores, lock_key: str) -> None:
    service = await stores.over(Routes.in_table({"shop/eu": stores.url("a"), "*": stores.url("b")}))
    with pytest.raises(NotSupported) as caught:
        await service.acquire(lock_key, {"hierarchical": True})
    assert caught.value.members["feature"] == "hierarchical"
    await service.acquire(lock_key, {})


async def test_a_hierarchical_lock_within_one_store_keeps_out_what_is_below(stores: Stores) -> None:
    service = await stores.over(Routes.in_table({"shop": stores.url("a"), "*": stores.url("b")}))
    await service.acquire("shop/eu", {"hierarchical": True})
    with pytest.raises(LockHeld):
        await service.acquire("shop/eu/1", {})


async def test_lists_are_merged_in_the_order_of_keys_whatever_the_page(stores: Stores) -> None:
    service = await stores.over(Routes.in_table({"b": stores.url("a"), "bb": stores.url("b"), "*": stores.url("c")}))
    keys = ["a", "b", "ba", "bb", "bb1", "bba", "bc", "c", "é", "ﬀ", "😀"]
    for key in keys:
        await service.acquire(key, {"ownerId": key})

    async def pages(limit: int, prefix: str = "") -> list[str]:
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await service.list_locks(prefix=prefix, limit=limit, cursor=cursor)
            assert len(page["locks"]) <= limit
            found += [lock["lockKey"] for lock in page["locks"]]
            cursor = page["nextCursor"]
        return found

    for limit in range(1, len(keys) + 2):
        assert await pages(limit) == keys
        assert await pages(limit, "b") == [key for key in keys if key.startswith("b")]
    assert await pages(1, "zz") == []
    with pytest.raises(InvalidInput):
        await service.list_locks(limit=0)


async def test_a_watch_follows_one_store_and_one_over_several_is_refused(stores: Stores) -> None:
    service = await stores.serve(orders="a", all="b")
    for query in ({"key": "orders:1"}, {"prefix": "orders:"}, {"prefix": "orders:1"}):
        async with aclosing(service.watch(query)) as events:
            await anext(events)
            grant = await service.acquire("orders:1", {})
            kinds = [kind async for _, kind, _ in _until(events, "acquired")]
            assert kinds[-1] == "acquired"
            await service.release("orders:1", {"lockToken": grant["lockToken"]})
    for query in ({}, {"prefix": "o"}):
        with pytest.raises(NotSupported) as caught:
            service.watch(query)
        assert "'orders:'" in caught.value.detail


async def _until(events: Any, kind: str) -> AsyncIterator[Any]:
    async for event in events:
        yield event
        if event[1] == kind:
            return


async def test_a_client_without_a_server_may_be_given_routes(stores: Stores) -> None:
    async with connect(stores.routes(orders="a", all="b").as_text()) as locks:
        async with locks.hold("orders:1") as order, locks.hold("cart:1") as cart:
            assert await held_in(stores, "a", "orders:1")
            assert await held_in(stores, "b", "cart:1")
            assert order.token != cart.token
        with pytest.raises(NotSupported):
            async with locks.hold_all(["orders:1", "cart:1"]):
                pass


# --- what a store can't do, or should not ---


async def test_an_unsafe_store_is_refused_unless_that_is_allowed(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def inspect(_: MemoryStore) -> list[Finding]:
        return [Finding("unsafe", "locks may be evicted", "set noeviction"), Finding("fine", "it is there")]

    monkeypatch.setattr(MemoryStore, "inspect", inspect)
    with pytest.raises(UnsafeConfiguration) as caught:
        await stores.serve(all="a")
    for text in ("locks may be evicted (set noeviction)", "allow_unsafe_store", "FENCEGATE_ALLOW_UNSAFE_STORE"):
        assert text in caught.value.detail
    with pytest.raises(UnsafeConfiguration):
        async with connect(stores.url("a")) as locks:
            await locks.status("x")
    monkeypatch.setenv("FENCEGATE_ALLOW_UNSAFE_STORE", "1")
    async with connect(stores.url("a")) as locks, locks.hold("x"):
        pass
    said = [record for record in caplog.records if "evicted" in record.getMessage()]
    assert len(said) == 1  # once, however many event loops the client opens it in


class PlainStore(MemoryStore):
    """One that can do as little as a store may."""

    name = "plain"
    capabilities = Capabilities(several_keys=False, replays=False, several_processes=False, durable=False)


async def test_what_rests_on_several_keys_or_on_the_log_is_not_supported_where_there_is_none() -> None:
    engine = Engine(PlainStore())
    await engine.start()
    api = StoreApi(engine, LockSettings())
    try:
        api.write_history()
        calls = (
            api.multi_acquire({"locks": [{"lockKey": "a"}, {"lockKey": "b"}]}),
            api.multi_renew({"locks": [{"lockKey": "a"}, {"lockKey": "b"}], "lockToken": "t"}),
            api.multi_release({"locks": [{"lockKey": "a"}, {"lockKey": "b"}], "lockToken": "t"}),
            api.open_session({}),
            api.acquire("a", {"hierarchical": True}),
            api.history("a"),
        )
        for call in calls:
            with pytest.raises(NotSupported) as caught:
                await call
            assert "plain" in caught.value.detail
        assert (await api.acquire("a", {}))["lockKey"] == "a"
    finally:
        await api.close()


async def test_a_watch_that_comes_back_begins_with_a_reset_where_the_log_can_not_be_read_again() -> None:
    store = PlainStore()
    async with aclosing(Watch(store).follow(Wanted(since=5 * 65536))) as batches:
        first = await anext(batches)
        assert [told.kind for told in first.told] == ["reset"]
    async with aclosing(Watch(store).follow(Wanted())) as batches:
        assert (await anext(batches)).told == []
