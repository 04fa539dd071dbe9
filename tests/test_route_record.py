"""What stores remember of their routes: so that no two lock services serve one lock key from two stores."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from fencegate.clock import SYSTEM, ManualClock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Change, Store
from fencegate_lockservice import route_keeper, route_record
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.opening import LockService, open_service
from fencegate_lockservice.route_change import RoutesNotAccepted, accept
from fencegate_lockservice.route_record import ENTRY, Record, Remembered, identified, put, remembered, write
from fencegate_lockservice.routes import Routes
from fencegate_lockservice.stores import close_store, open_store
from tests.eventually import eventually
from tests.routed_stores import Stores, held_in


@pytest.fixture
async def stores() -> AsyncIterator[Stores]:
    async with AsyncExitStack() as stack:
        made = Stores(stack, SYSTEM)
        for name in ("a", "b", "c"):
            await made.store(name)
        yield made


@pytest.fixture
async def slow() -> AsyncIterator[Stores]:
    """The same, with a clock that is moved by hand."""
    async with AsyncExitStack() as stack:
        made = Stores(stack, ManualClock())
        for name in ("a", "b", "c"):
            await made.store(name)
        yield made


async def test_the_same_routes_open_again_in_any_order(stores: Stores) -> None:
    for _ in range(2):
        await stores.serve(orders="a", all="b")
        await stores.serve(all="b", orders="a")
    found = (await remembered(await stores.store("a"))).record
    other = (await remembered(await stores.store("b"))).record
    assert found is not None
    assert other is not None
    assert found.routes == other.routes == {"orders:": found.store, "*": other.store}


@pytest.mark.parametrize(
    "other",
    [
        {"orders": "b", "all": "a"},
        {"orders": "a", "all": "c"},
        {"orders": "c", "all": "b"},
        {"carts": "a", "all": "b"},
        {"orders": "a"},
        {"all": "a"},
        {"all": "b"},
        {"orders": "a", "carts": "a", "all": "b"},
    ],
)
async def test_other_routes_are_refused_with_both_and_what_to_do(stores: Stores, other: dict[str, str]) -> None:
    await stores.serve(orders="a", all="b")
    with pytest.raises(UnsafeConfiguration) as caught:
        await stores.serve(**other)
    for text in ("Remembered: 'orders:' in", "Configured: ", "--accept-routes", "stop every replica"):
        assert text in caught.value.detail
    await stores.serve(orders="a", all="b")


async def test_a_store_that_served_everything_is_not_given_a_part_of_it(stores: Stores) -> None:
    await stores.serve(all="a")
    with pytest.raises(UnsafeConfiguration):
        await stores.serve(orders="b", all="a")
    found = (await remembered(await stores.store("b"))).record
    assert found is not None
    assert found.routes == {}  # whoever was refused has claimed nothing
    await stores.serve(all="b")


async def test_many_that_start_at_once_agree(stores: Stores) -> None:
    routes = [stores.routes(orders="a", all="b"), stores.routes(all="b", orders="a")]
    services = await asyncio.gather(*(open_service(routes[n % 2], LockSettings(), SYSTEM) for n in range(10)))
    await asyncio.gather(*(service.close() for service in services))
    await stores.serve(orders="a", all="b")


async def test_of_many_with_different_routes_that_start_at_once_those_that_open_agree(stores: Stores) -> None:
    ways = [stores.routes(orders="a", all="b"), stores.routes(orders="b", all="a"), stores.routes(all="a")]
    opened = await asyncio.gather(
        *(open_service(ways[n % 3], LockSettings(), SYSTEM) for n in range(9)), return_exceptions=True
    )
    homes: set[str] = set()
    for service in opened:
        if isinstance(service, BaseException):
            assert isinstance(service, UnsafeConfiguration)
            continue
        grant = await service.acquire("orders:1", {})
        homes |= {name for name in "ab" if await held_in(stores, name, "orders:1")}
        await service.release("orders:1", {"lockToken": grant["lockToken"]})
        await service.close()
    assert len(homes) <= 1


async def test_a_first_start_that_broke_off_is_finished_by_the_next(stores: Stores) -> None:
    a, b = await stores.store("a"), await stores.store("b")
    found = await identified({"a": a, "b": b}, SYSTEM)
    assert all(each.record is not None and not each.record.routes for each in found.values())
    ids = {name: each.record.store for name, each in found.items() if each.record is not None}
    table = {"orders:": ids["a"], "*": ids["b"]}
    await write({"a": a}, table, SYSTEM)
    await stores.serve(orders="a", all="b")
    assert (await remembered(b)).record == Record(ids["b"], table)


async def test_one_store_by_two_urls_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    routes = Routes.of(["orders:=sqlite:///locks.db", f"*=sqlite:///{tmp_path}/locks.db"])
    with pytest.raises(UnsafeConfiguration, match="are one store"):
        await open_service(routes, LockSettings())


# --- while a server runs ---


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_keeper, "LOOK_EVERY_S", 0.01)


async def kept(stores: Stores, routes: Routes, changed: Any) -> LockService:
    """A service of one who stays."""
    service = await open_service(routes, LockSettings(), stores.clock, changed)
    stores.finally_close(service)
    return service


async def emptied(store: Store) -> None:
    """As by a flush."""
    found = await store.load([ENTRY])
    await store.commit([Change(ENTRY, found[ENTRY].version)], (), SYSTEM.now_us() + 10_000_000)


@pytest.mark.usefixtures("soon")
async def test_a_store_that_was_emptied_is_told_its_routes_again(stores: Stores) -> None:
    changed: list[str] = []
    await kept(stores, stores.routes(orders="a", all="b"), changed.append)
    store = await stores.store("a")
    before = (await remembered(store)).record
    for _ in range(3):
        await emptied(store)
        await eventually(lambda: _remembers(store, before))
    await stores.serve(orders="a", all="b")
    assert changed == []


async def _remembers(store: Store, record: Record | None) -> bool:
    return (await remembered(store)).record == record


@pytest.mark.usefixtures("soon")
async def test_whoever_serves_by_routes_that_were_changed_is_told(stores: Stores) -> None:
    changed: list[str] = []
    await kept(stores, stores.routes(orders="a", all="b"), changed.append)
    await change(stores, stores.routes(all="b"), retired=("a",))
    await eventually(lambda: len(changed) == 2)
    assert all("were changed while this server ran" in each for each in changed)


@pytest.mark.usefixtures("soon")
async def test_an_emptied_store_that_another_began_anew_is_still_the_store_of_everything(stores: Stores) -> None:
    changed: list[str] = []
    store = await stores.store("a")
    await stores.serve(all="a")
    await emptied(store)
    await stores.serve(all="a")
    anew = await remembered(store)
    await kept(stores, stores.routes(all="a"), changed.append)
    assert anew.record is not None
    other = Record("another", {"*": "another"})
    await put(store, anew, other, SYSTEM)
    await asyncio.sleep(0.2)  # many looks
    assert (changed, await _remembers(store, other)) == ([], True)


# --- changing them ---


async def change(stores: Stores, routes: Routes, *, retired: tuple[str, ...] = (), gone: tuple[str, ...] = ()) -> None:
    opened = {url: await open_store(url, stores.clock) for url in routes.stores}
    others = {stores.url(name): await stores.store(name) for name in retired}
    try:
        await accept(opened, routes, stores.clock, retired=others, gone=gone)
    finally:
        for store in opened.values():
            await close_store(store)


async def test_routes_change_when_what_moves_is_free_and_its_tokens_are_past(slow: Stores) -> None:
    service = await slow.serve(orders="a", all="b")
    order = await service.acquire("orders:1", {})
    cart = await service.acquire("cart:1", {"ttlMillis": 3_600_000})
    wanted = slow.routes(all="b")
    with pytest.raises(RoutesNotAccepted, match="'orders:1' would move"):
        await change(slow, wanted, retired=("a",))
    await service.release("orders:1", {"lockToken": order["lockToken"]})
    with pytest.raises(RoutesNotAccepted, match="not yet past"):
        await change(slow, wanted, retired=("a",))
    await service.close()
    slow.clock.advance(20)
    await change(slow, wanted, retired=("a",))
    for old in ({"orders": "a", "all": "b"}, {"all": "a"}):
        with pytest.raises(UnsafeConfiguration):
            await slow.serve(**old)
    changed = await slow.serve(all="b")
    assert int((await changed.acquire("orders:1", {}))["fencingToken"]) > int(order["fencingToken"])
    assert (await changed.status("cart:1"))["fencingToken"] == cart["fencingToken"]


async def test_after_a_change_that_broke_off_nobody_starts_by_the_old_routes_while_others_do_by_the_new(
    slow: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await slow.serve(all="a")).close()
    await identified({slow.url("b"): await slow.store("b")}, slow.clock)
    once = iter([put])

    async def killed(*given: Any) -> Remembered:
        for write_one in once:
            return await write_one(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(route_record, "put", killed)
        await change(slow, slow.routes(all="b"), retired=("a",))
    with pytest.raises(UnsafeConfiguration):
        await slow.serve(all="a")
    await slow.serve(all="b")


async def test_a_lease_that_ran_out_with_every_replica_stopped_is_free(slow: Stores) -> None:
    service = await slow.serve(all="a")
    await service.acquire("orders:1", {"ttlMillis": 30_000})
    await service.close()
    with pytest.raises(RoutesNotAccepted):
        await change(slow, slow.routes(orders="b", all="a"))
    slow.clock.advance(31)
    await change(slow, slow.routes(orders="b", all="a"))
    await slow.serve(orders="b", all="a")


async def test_a_store_that_is_not_looked_at_has_to_be_named_as_gone(slow: Stores) -> None:
    await slow.serve(orders="a", all="b")
    gone = (await remembered(await slow.store("a"))).record
    assert gone is not None
    with pytest.raises(UnsafeConfiguration, match=gone.store):
        await change(slow, slow.routes(orders="c", all="b"))
    await change(slow, slow.routes(orders="c", all="b"), gone=(gone.store,))
    await slow.serve(orders="c", all="b")


async def test_the_record_of_the_routes_is_one_entry(stores: Stores) -> None:
    await stores.serve(all="a")
    store = await stores.store("a")
    assert [key for key, _ in await store.scan("route/", "", 10)] == [ENTRY]
