"""Every store runs the store suite; and what is particular to one of them."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from fencegate.clock import ManualClock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Ambiguous, Change, Changes, Store, Unavailable
from fencegate.testing.committing import OpenStore, by, gather_log, put, write
from fencegate.testing.store_suite import StoreSuite
from fencegate_lockservice import stores
from fencegate_lockservice.stores import sqlite_writer
from fencegate_lockservice.stores.memory import MemoryStore
from fencegate_lockservice.stores.sqlite import SqliteStore
from fencegate_lockservice.stores.sqlite_writer import Commit, Load, ReadLog, Result, Writer


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        store = MemoryStore()

        async def open_() -> Store:
            return store

        return open_


class TestSqliteStore(StoreSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        async def open_() -> Store:
            return SqliteStore(tmp_path / "locks.db")

        return open_

    @pytest.fixture
    def opening(self, tmp_path: Path) -> str:
        return (
            "from pathlib import Path\n"
            "from fencegate_lockservice.stores.sqlite import SqliteStore\n"
            f"async def open_store(): return SqliteStore(Path({str(tmp_path / 'locks.db')!r}))\n"
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


def test_sqlite_runs_in_wal_mode_and_flushes_every_commit(path: Path) -> None:
    writer = Writer(path)
    writer.handle([Commit([put("k")], [], 2**62)])
    assert writer.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer.db.execute("PRAGMA synchronous").fetchone() == (2,)
    writer.close()


async def test_sqlite_opens_a_file_of_another_kind_with_a_clear_refusal(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(UnsafeConfiguration, match="can't be used"):
        SqliteStore(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UnsafeConfiguration, match="can't be opened"):
        SqliteStore(path)


async def test_sqlite_is_refused_twice_in_one_process_and_free_after_close(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(UnsafeConfiguration, match="in use"):
        SqliteStore(path)
    await store.close()
    await SqliteStore(path).close()


async def test_sqlite_survives_input_that_it_cannot_store_and_only_that_fails(path: Path) -> None:
    store = SqliteStore(path)
    bad = [
        write(store, put("lone surrogate \ud800")),
        write(store, put("not text", value=b"\xff")),
        store.commit([put("k")], [("k", b"\xff")], by(store)),
        store.load(["\ud800"]),
        store.scan("\ud800", "", 1),
    ]
    good = [write(store, put(f"good-{number}")) for number in range(5)]
    async with asyncio.timeout(5):
        results = await asyncio.gather(*bad, *good, return_exceptions=True)
        assert all(isinstance(result, Unavailable) for result in results[:5]), results
        assert results[5:] == [None] * 5
        assert len(await store.load([f"good-{number}" for number in range(5)])) == 5
        await store.close()


async def test_sqlite_tells_a_reset_after_its_log_was_compacted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "KEEP_LOG", 20)
    writer = Writer(path)
    for number in range(130):
        writer.handle([Commit([put(f"k{number}")], [(f"k{number}", b"{}")], 2**62)])
    writer.close()
    store = SqliteStore(path)
    async with asyncio.timeout(5):
        stream = store.changes(0)
        assert await anext(stream) == Changes(130, reset=True)
        assert [line.revision for line in await gather_log(store.changes(120), 10)] == [*range(121, 131)]
        await write(store, put("new"))
        assert [line.key for line in await gather_log(stream, 1)] == ["new"]
    await store.close()


async def test_memory_tells_a_reset_when_the_past_has_left_its_tail() -> None:
    store = MemoryStore()
    await write(store, put("old"))
    await write(store, put("flood"), events=30_000)
    async with asyncio.timeout(5):
        stream = store.changes(0)
        assert await anext(stream) == Changes(2, reset=True)
        await write(store, put("new"))
        assert [line.key for line in await gather_log(stream, 1)] == ["new"]


async def test_sqlite_reads_a_log_that_is_longer_than_its_tail_in_memory(path: Path) -> None:
    store = SqliteStore(path)
    await write(store, put("flood"), events=30_000)
    for number in range(10):
        await write(store, put(f"k{number}"))
    lines = await gather_log(store.changes(0), 30_010)
    assert [line.key for line in lines[-10:]] == [f"k{number}" for number in range(10)]
    assert [line.line for line in lines[:-10]] == [*range(30_000)]
    await store.close()


def test_sqlite_keeps_serving_after_its_disk_was_full(path: Path) -> None:
    writer = Writer(path)

    def commit(change: Change) -> Result:
        return writer.handle([Commit([change], [(change.key, b"{}")], 2**62)])[0]

    assert commit(put("before")).verdict == "done"
    pages = writer.db.execute("PRAGMA page_count").fetchone()[0]
    writer.db.execute(f"PRAGMA max_page_count={pages + 1}")
    full = commit(put("large", value=b'"' + b"x" * 100_000 + b'"'))
    assert full.verdict == "unavailable"
    assert "full" in full.found
    assert [key for key, *_ in writer.handle([Load(["before", "large"])])[0].found] == ["before"]
    writer.db.execute("PRAGMA max_page_count=1000000")
    assert commit(put("after")).verdict == "done"
    assert [key for _, _, key, _ in writer.handle([ReadLog(0, 10)])[0].found] == ["before", "after"]
    writer.close()


async def test_a_writer_of_sqlite_that_dies_is_replaced_and_what_it_was_doing_is_ambiguous(path: Path) -> None:
    store = SqliteStore(path)
    await write(store, put("before"))
    store._line._process.kill()
    with pytest.raises((Ambiguous, Unavailable)):
        for number in range(1000):
            await write(store, put(f"k{number}"))
    async with asyncio.timeout(10):
        while True:
            try:
                assert "before" in await store.load(["before"])
                break
            except Unavailable:
                await asyncio.sleep(0.05)
    await write(store, put("after"))
    await store.close()
    assert store._line._process.returncode == 0


async def test_the_file_of_sqlite_can_be_read_by_a_person_after_close(path: Path) -> None:
    store = SqliteStore(path)
    await write(store, put("lock/a", value=b'{"n":1}'))
    await store.close()
    with sqlite3.connect(path) as db:
        rows = dict(db.execute("SELECT key, value FROM entries"))
        assert rows == {"\x01log/0000000000000001/0/lock/a": '{"n":0}', "lock/a": '{"n":1}'}
    db.close()


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


async def test_one_url_is_one_store_until_its_last_user_lets_go(url: str, path: Path) -> None:
    first, second = stores.open_store(url), stores.open_store(url)
    assert first is second
    await stores.close_store(first)
    await write(second, put("k"))
    await stores.close_store(second)
    with pytest.raises(Unavailable):
        await write(second, put("k2"))
    await SqliteStore(path).close()


@pytest.mark.parametrize("bad", ["", "sqlite:", "sqlite://", "sqlite:///", "redis://a", "/tmp/x", "SQLITE:///x"])
async def test_a_store_that_is_not_known_is_refused(bad: str) -> None:
    with pytest.raises(UnsafeConfiguration, match="not supported"):
        stores.open_store(bad)


async def test_time_of_both_stores_is_that_of_their_clock(path: Path) -> None:
    clock = ManualClock()
    for store in (MemoryStore(clock), SqliteStore(path, clock)):
        assert store.now() == (clock.now_us(), clock.now_us())
        await store.close()
