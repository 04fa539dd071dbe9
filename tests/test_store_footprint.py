"""What the demo leaves in a user's own lock store: nothing, or it says what."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from fencegate.core.ports import Capabilities, Change, Finding, Store
from fencegate_demo.store_footprint import traceless_store
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.history_rows import POSITION
from fencegate_lockservice.opening import open_service
from fencegate_lockservice.routes import Routes
from fencegate_lockservice.stores import close_store, open_store
from fencegate_lockservice.stores.memory import MemoryStore
from tests.real import redis as real

URL = "memory://footprint"
PREFIX = "demo-12ab"


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = await open_store(URL)
    yield opened
    await close_store(opened)


async def keys(store: Store) -> list[str]:
    return [key for key, _ in await store.scan("", "", 10_000)]


async def use(prefix: str, count: int = 1, url: str = URL) -> None:
    """Take and give back locks of these names, and write their history."""
    service = await open_service(Routes.of([url]), LockSettings())
    for number in range(count):
        lock_key = f"cron:{prefix}-x:{number}"
        grant = await service.acquire(lock_key, {})
        await service.release(lock_key, {"lockToken": grant["lockToken"]})
    await service.history(f"cron:{prefix}-x:0")
    await service.close()


async def test_a_store_that_was_never_used_is_empty_again_and_told_to_be_still_there(store: Store) -> None:
    remarks: list[str] = []
    async with traceless_store(URL, PREFIX, remarks):
        await use(PREFIX, 130)
        assert len(await keys(store)) > 260
    assert await keys(store) == [POSITION]  # how far its log was read
    assert remarks == ["the store memory itself stays: its tables or keys, empty, and its change log"]


async def test_whoever_comes_next_writes_no_history_of_the_demo(store: Store) -> None:
    async with traceless_store(URL, PREFIX, []):
        service = await open_service(Routes.of([URL]), LockSettings())
        grant = await service.acquire(f"cron:{PREFIX}-x", {})
        await service.release(f"cron:{PREFIX}-x", {"lockToken": grant["lockToken"]})
        await service.close()  # and nobody has asked for its history
    await use("mine")
    assert [key for key in await keys(store) if PREFIX in key] == []


async def test_what_others_had_there_stays(store: Store) -> None:
    await use("mine")
    before = await keys(store)
    remarks: list[str] = []
    async with traceless_store(URL, PREFIX, remarks):
        await use(PREFIX)
    assert await keys(store) == before
    assert remarks == []


async def test_it_is_cleaned_up_also_when_the_demo_fails(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        async with traceless_store(URL, PREFIX, []):
            await use(PREFIX)
            raise ZeroDivisionError
    assert await keys(store) == [POSITION]


async def test_a_store_that_never_removes_records_keeps_them_and_that_is_said(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "capabilities", Capabilities(forgets=False))
    remarks: list[str] = []
    async with traceless_store(URL, PREFIX, remarks):
        await use(PREFIX)
    assert await keys(store) != []
    assert "never removes" in remarks[0]
    assert PREFIX in remarks[0]


async def test_what_a_store_does_not_list_goes_by_itself_and_that_is_said(tmp_path: Path) -> None:
    if reason := real.missing():
        pytest.skip(reason)
    server = real.RedisServer(tmp_path).start()
    try:
        remarks: list[str] = []
        async with traceless_store(server.url, PREFIX, remarks):
            await use(PREFIX, url=server.url)
        left = [name for name in server.ask("KEYS", "*").decode().split("\r\n") if PREFIX in name]
        assert left
        assert all(0 < int(server.ask("PTTL", name).strip(b":\r\n")) <= 600_000 for name in left)
        assert "within 10 minutes" in remarks[-1]
    finally:
        server.terminate()


async def test_somebody_else_who_changes_what_is_removed_is_no_harm(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = MemoryStore.commit
    meddled: list[str] = []

    async def meddle(
        self: MemoryStore, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], until: int
    ) -> None:
        if not meddled and changes and changes[0].value is None:
            meddled.append(changes[0].key)
            value = (await self.load([changes[0].key]))[changes[0].key]
            await commit(self, [Change(changes[0].key, value.version, "other", value.value)], (), until)
        await commit(self, changes, log, until)

    async with traceless_store(URL, PREFIX, []):
        await use(PREFIX)
        monkeypatch.setattr(MemoryStore, "commit", meddle)
    assert meddled
    assert await keys(store) == [POSITION]


async def test_what_makes_the_store_unsafe_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def inspect(_: MemoryStore) -> list[Finding]:
        return [Finding("unsafe", "locks may be evicted", "set noeviction"), Finding("warning", "old")]

    await use("mine")
    monkeypatch.setattr(MemoryStore, "inspect", inspect)
    remarks: list[str] = []
    async with traceless_store(URL, PREFIX, remarks):
        pass
    assert remarks == ["the store: locks may be evicted (set noeviction)"]
