"""How the past is read from etcd: page after page, by whoever is far behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from fencegate.testing.change_log_suite import log_revision
from fencegate.testing.committing import gather_log, put, write
from fencegate_lockservice.stores import open_store
from fencegate_lockservice.stores.etcd import inbox
from fencegate_lockservice.stores.etcd import log as etcd_log
from fencegate_lockservice.stores.etcd.client import Client
from fencegate_lockservice.stores.etcd.grpc import Call
from fencegate_lockservice.stores.etcd.inbox import Inbox
from fencegate_lockservice.stores.etcd.store import EtcdStore

if TYPE_CHECKING:
    from fencegate.core.ports import LogEntry


@pytest.fixture
async def store(etcd_url: str) -> AsyncIterator[EtcdStore]:
    store = await open_store(etcd_url)
    assert isinstance(store, EtcdStore)
    yield store
    await store.close()


async def test_whoever_is_far_behind_reads_page_after_page_from_one_watch(
    store: EtcdStore, etcd_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(store, put("before"))
    start = await log_revision(store)
    for number in range(60):
        await write(store, put(f"k{number}"), events=20)
    opened = 0
    stream = Client.stream

    def counted(client: Client, path: str, message: bytes) -> AbstractAsyncContextManager[Call]:
        nonlocal opened
        opened += 1
        return stream(client, path, message)

    monkeypatch.setattr(Client, "stream", counted)
    monkeypatch.setattr(etcd_log, "KEEP_S", 60.0)
    late = await open_store(etcd_url)
    lines = await gather_log(late.changes(start), 1200)
    assert [line.key for line in lines] == [f"k{number}" for number in range(60) for _ in range(20)]
    assert opened <= 3  # one goes on with what is new, one is for the past; it would be one more for each page
    await late.close()


async def test_pages_of_the_past_are_the_same_whoever_reads_between_them(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(store, put("before"))
    start = await log_revision(store)
    for number in range(20):
        await write(store, put(f"k{number}"), events=5)
    whole = await store._log.read(start, 1000)
    assert whole is not None
    assert len(whole) == 100
    for keep_s, others in ((60.0, False), (60.0, True), (0.0, False)):
        monkeypatch.setattr(etcd_log, "KEEP_S", keep_s)
        apart: list[LogEntry] = []
        while len(apart) < 100:
            since = apart[-1].revision if apart else start
            if others:
                page, again = await asyncio.gather(store._log.read(since, 27), store._log.read(since, 27))
                assert page == again
                assert await store._log.read(start, 3) == whole[:5]
            else:
                page = await store._log.read(since, 27)
            assert page
            apart += page
            if len(apart) == 60 and (kept := store._log._kept) is not None:
                await kept.pieces.aclose()  # as when its member is gone
        assert apart == whole
    async with asyncio.timeout(30):
        while store._log._kept is not None:
            await asyncio.sleep(0.01)


async def test_a_crowd_that_comes_back_at_once_shares_a_few_connections(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(store, put("before"))
    start = await store._log.newest()  # not by following, which goes on for a while, and would be counted
    await write(store, put("after"))
    stream = Client.stream
    open_now, most = 0, 0

    @asynccontextmanager
    async def counted(client: Client, path: str, message: bytes) -> AsyncIterator[Call]:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            async with stream(client, path, message) as call:
                yield call
        finally:
            open_now -= 1

    monkeypatch.setattr(Client, "stream", counted)
    pages = await asyncio.gather(*(store._log.read(start, 10) for _ in range(50)))
    assert {tuple(line.key for line in page or ()) for page in pages} == {("after",)}
    assert most <= 4


async def test_what_others_wrote_is_told_at_once_together_with_what_we_wrote_before_it(
    store: EtcdStore, etcd_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "PAUSE_S", 3600.0)
    other = await open_store(etcd_url)
    stream = store.changes(None)
    await anext(stream)
    for number in range(3):
        await asyncio.gather(*(write(store, put(f"own-{number}-{part}")) for part in range(5)))
    await write(other, put("other"))
    told = await gather_log(stream, 16)
    expected = [f"own-{number}-{part}" for number in range(3) for part in range(5)] + ["other"]
    assert [line.key for line in told] == expected
    await write(other, put("another"))
    assert [line.key for line in await gather_log(stream, 1)] == ["another"]
    await stream.aclose()
    await other.close()


async def test_what_can_wait_comes_at_once_after_a_silence_and_together_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(30):
        for pause_s in (3600.0, 0.01):
            monkeypatch.setattr(inbox, "PAUSE_S", pause_s)
            told = Inbox()
            told.can_wait = lambda message: message.startswith(b"own")
            told.put(b"own 1")
            assert await told.take() == [b"own 1"]
            taking = asyncio.create_task(told.take())
            told.put(b"own 2")
            told.put(b"own 3")
            if pause_s > 1:
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not taking.done()
                told.put(b"other")
            assert await taking == [b"own 2", b"own 3", *([b"other"] if pause_s > 1 else [])]
            told.put(b"own 4")
            told.put(None)
            assert await told.take() == [b"own 4", None]
