"""Every store runs the store suite; and what is particular to one of them."""

import asyncio
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fencegate.clock import ManualClock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Ambiguous, Change, Changes, Store, Unavailable
from fencegate.testing.change_log_suite import first_answer
from fencegate.testing.committing import OpenStore, by, gather_log, in_thread, put, write
from fencegate.testing.store_suite import StoreSuite
from fencegate_lockservice import stores
from fencegate_lockservice.stores import sqlite_line, sqlite_writer
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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


def test_revisions_of_a_group_whose_flush_is_of_unknown_outcome_are_never_used_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(path)
    flush = writer._flush

    def landed_and_failed(*rows: Any) -> None:
        flush(*rows)
        failed = sqlite3.OperationalError("disk I/O error")
        failed.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise failed

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_flush", landed_and_failed)
        (result,) = writer.handle([Commit([put("a")], [("a", b'"one"'), ("a", b'"two"')], 2**62)])
    assert result.verdict == "ambiguous"
    (result,) = writer.handle([Commit([put("b")], [("b", b'"three"')], 2**62)])
    assert result.verdict == "done"
    (read,) = writer.handle([ReadLog(0, 100)])
    revisions = [(revision, key) for revision, _, key, _ in read.found]
    assert revisions == [(1, "a"), (1, "a"), (2, "b")]
    writer.close()


def test_lines_behind_many_revisions_that_were_never_written_are_found(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk refuses group after group, and each uses up its revisions."""
    writer = Writer(path)

    def full(*_rows: Any) -> None:
        failed = sqlite3.OperationalError("database or disk is full")
        failed.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise failed

    def commit(key: str) -> Commit:
        return Commit([put(key)], [(key, b'"told"')], 2**62)

    writer.handle([commit("before")])
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_flush", full)
        results = writer.handle([commit(f"lost-{number}") for number in range(300)])
    assert {result.verdict for result in results} == {"unavailable"}
    writer.handle([commit("after")])
    (read,) = writer.handle([ReadLog(1, 250)])
    assert [key for _, _, key, _ in read.found] == ["after"]
    writer.close()


async def test_who_follows_is_told_of_a_commit_that_landed_though_its_flush_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(path)
    stream = store.changes(None)
    await first_answer(stream)
    arrived = store._arrived

    def unsure(group: Any, results: list[Result]) -> None:
        arrived(group, [Result("ambiguous", "disk I/O error") for _ in results])

    with monkeypatch.context() as patch:
        patch.setattr(store, "_arrived", unsure)
        with pytest.raises(Ambiguous):
            await write(store, put("landed"))
    await write(store, put("next"))
    assert [line.key for line in await gather_log(stream, 2)] == ["landed", "next"]
    await store.close()


@pytest.fixture
def patient_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that ends in good order is not killed, however busy the machine is."""
    monkeypatch.setattr(sqlite_line, "END_WITHIN_S", 60.0)


@pytest.mark.usefixtures("patient_end")
async def test_a_writer_of_sqlite_that_dies_is_replaced_and_what_it_was_doing_is_ambiguous(path: Path) -> None:
    store = SqliteStore(path)
    await write(store, put("before"))
    store._line._process.kill()
    with pytest.raises((Ambiguous, Unavailable)):
        for number in range(1000):
            await write(store, put(f"k{number}"))
    async with asyncio.timeout(60):
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
    first, second = await stores.open_store(url), await stores.open_store(url)
    assert first is second
    await stores.close_store(first)
    await write(second, put("k"))
    await stores.close_store(second)
    with pytest.raises(Unavailable):
        await write(second, put("k2"))
    await SqliteStore(path).close()


@pytest.mark.parametrize("bad", ["", "sqlite:", "radish://a", "/tmp/x", "SQLITE:///x"])
async def test_a_store_that_is_not_known_is_refused(bad: str) -> None:
    with pytest.raises(UnsafeConfiguration, match="not supported"):
        await stores.open_store(bad)


@pytest.mark.parametrize(
    "bad",
    [
        "redis://:hidden@a?prefix=x:&prefix=y:",
        "postgresql://u:hidden@a/d?sslmode=verify-full&sslmode=disable",
        "postgresql://u:hidden@a/d?schema=x&schema=x",
        "mysql://u:hidden@a/d?tls=verify&tls=off",
        "etcd://u:hidden@a?tls=on&tls=off",
        "redlock://u:hidden@a,b,c?tls=true&prefix=x:&tls=false",
        "redis://u:pass?hidden=1&hidden=2@a",
    ],
)
async def test_a_store_whose_url_gives_an_option_twice_is_refused_whichever_it_is(bad: str) -> None:
    """The last would count: the store would be another one than was meant, or be spoken to without TLS."""
    with pytest.raises(UnsafeConfiguration, match="gives an option twice") as refused:
        await stores.open_store(bad)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("bad", ["sqlite://", "sqlite:///"])
async def test_a_store_without_a_file_is_refused(bad: str) -> None:
    with pytest.raises(UnsafeConfiguration, match="names no file"):
        await stores.open_store(bad)


@pytest.mark.parametrize("bad", ["sqlite:///x.db?mode=ro", "sqlite:///:memory:", "sqlite:///x.db?"])
async def test_a_file_that_would_have_another_name_than_is_meant_is_refused(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes an option would have a file of his own, and others the same lock in the file that was meant."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsafeConfiguration, match="sqlite:///PATH"):
        await stores.open_store(bad)
    assert not list(tmp_path.iterdir())


async def test_time_of_both_stores_is_that_of_their_clock(path: Path) -> None:
    clock = ManualClock()
    for store in (MemoryStore(clock), SqliteStore(path, clock)):
        assert store.now() == (clock.now_us(), clock.now_us())
        await store.close()


# --- the process that has the file -----------------------------------------------------------------------------------


async def eventually(condition: Callable[[], bool], within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_loop_of_sqlite_that_is_kept_busy_holds_up_no_other(path: Path) -> None:
    store = SqliteStore(path)
    asked = threading.Event()
    go_on = threading.Event()

    async def busy() -> None:
        loading = asyncio.ensure_future(store.load(["k"]))
        await asyncio.sleep(0)  # it asks
        asked.set()
        go_on.wait(90)
        await loading

    other = asyncio.ensure_future(in_thread(busy()))
    try:
        await asyncio.to_thread(asked.wait)
        async with asyncio.timeout(60):
            await write(store, put("k"))
    finally:
        go_on.set()
        await other
        await store.close()


async def test_a_loop_of_sqlite_that_ends_before_its_turn_holds_up_no_other(path: Path) -> None:
    store = SqliteStore(path)

    def ask_and_end() -> None:
        loop = asyncio.new_event_loop()
        loop.call_soon(loop.stop)
        loop.call_soon(lambda: store.commit([put("k")], [], by(store)))
        loop.run_forever()
        loop.close()

    await asyncio.to_thread(ask_and_end)
    async with asyncio.timeout(60):
        await write(store, put("k2"))
    await store.close()


async def test_messages_of_sqlite_larger_than_its_line_are_carried_both_ways_at_once(path: Path) -> None:
    store = SqliteStore(path)
    large = b'"' + b"x" * 10_000_000 + b'"'
    for number in range(4):
        await write(store, put(f"k{number}", value=large))
    works: list[asyncio.Future[Any]] = []
    async with asyncio.timeout(60):
        works.append(asyncio.ensure_future(store.load([f"k{number}" for number in range(4)])))
        await asyncio.sleep(0.001)
        works.append(asyncio.ensure_future(write(store, put("more", value=large))))
        await asyncio.gather(*works)
        await store.close()


async def test_a_writer_of_sqlite_that_is_stopped_stops_nobody_else_and_goes_on(path: Path) -> None:
    store = SqliteStore(path)
    await write(store, put("before"))
    writer = store._line._process
    os.kill(writer.pid, signal.SIGSTOP)
    gone_on = threading.Event()

    def go_on() -> None:
        gone_on.set()
        os.kill(writer.pid, signal.SIGCONT)

    waker = threading.Timer(60, go_on)  # or else a loop that stands still would do so for ever
    waker.start()
    works = []
    for number in range(20):
        works.append(asyncio.ensure_future(write(store, put(f"k{number}", value=b'"' + b"x" * 5_000_000 + b'"'))))
        await asyncio.sleep(0.005)
    assert not gone_on.is_set(), "the event loop stood still"
    waker.cancel()
    go_on()
    assert await asyncio.gather(*works) == [None] * 20
    assert len(await store.load([f"k{number}" for number in range(20)])) == 20
    await store.close()


async def test_closing_sqlite_ends_a_writer_that_is_stopped(path: Path) -> None:
    store = SqliteStore(path)
    await write(store, put("before"))
    os.kill(store._line._process.pid, signal.SIGSTOP)
    works = [asyncio.ensure_future(write(store, put(f"k{n}", value=b'"' + b"x" * 2_000_000 + b'"'))) for n in range(9)]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(60):
        await store.close()
        results = await asyncio.gather(*works, return_exceptions=True)
    assert all(isinstance(result, Ambiguous | Unavailable) for result in results), results
    again = SqliteStore(path)
    assert "before" in await again.load(["before"])
    await again.close()


@pytest.mark.usefixtures("patient_end")
def test_closing_sqlite_in_another_loop_reads_what_the_first_left_unread(path: Path) -> None:
    store = SqliteStore(path)
    large = b'"' + b"x" * 10_000_000 + b'"'

    async def leave() -> None:
        await write(store, put("k", value=large))
        loading = [asyncio.ensure_future(store.load(["k"])) for _ in range(2)]
        await asyncio.wait(loading, timeout=0)
        await asyncio.sleep(0)

    async def close() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(store.close(), store.close())

    asyncio.run(leave())
    asyncio.run(close())
    assert store._line._process.returncode == 0


def open_files() -> int:
    gc.collect()  # so that what others left behind does not go away in the middle of a test
    return len(os.listdir("/proc/self/fd"))


def test_sqlite_leaves_no_open_files_behind(path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        await store.load(["k"])

    async def open_and_close() -> None:
        store = SqliteStore(path)
        await use(store)
        await store.close()

    before = open_files()
    asyncio.run(open_and_close())
    store = SqliteStore(path)
    for _ in range(20):
        asyncio.run(use(store))
    assert open_files() <= before + 4
    asyncio.run(store.close())
    assert open_files() == before


async def test_a_writer_of_sqlite_that_died_leaves_neither_a_zombie_nor_open_files(path: Path) -> None:
    store = SqliteStore(path)
    await store.load(["k"])
    before = open_files()
    for _ in range(2):
        writer = store._line._process
        writer.kill()
        await eventually(lambda writer=writer: store._line._process is not writer and not store._line.dead)  # type: ignore[misc]
        assert writer.returncode == -signal.SIGKILL
        await store.load(["k"])
    assert open_files() == before
    await store.close()


async def test_closing_sqlite_while_its_writer_is_replaced_leaves_the_file_free(path: Path) -> None:
    others = set(threading.enumerate())
    store = SqliteStore(path)
    await store.load(["k"])
    store._line._process.kill()
    await eventually(lambda: store._line.dead)
    await store.close()
    assert "fencegate-sqlite" not in [thread.name for thread in set(threading.enumerate()) - others]
    Writer(path, wait_s=0).close()


_FORKING = """
import asyncio, os, sys, time
from pathlib import Path
from fencegate.core.ports import Change, Unavailable
from fencegate_lockservice.stores.sqlite import SqliteStore

async def use(store):
    try:
        await store.load(["k"])
    except Unavailable:
        await store.close()
        print("refused", flush=True)

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    late = store.now().latest + 600_000_000
    await store.commit([Change("k", None, "v", b"{}")], [], late)
    done, told = os.pipe()
    if os.fork() == 0:
        asyncio.run(use(store))
        os.write(told, b".")
        time.sleep(600)
    os.read(done, 1)
    assert "k" in await store.load(["k"])
    await store.commit([Change("k2", None, "v", b"{}")], [], late)
    print("alive", flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def test_a_forked_child_can_neither_use_nor_close_nor_keep_sqlite_of_its_parent(path: Path) -> None:
    run = [sys.executable, "-c", _FORKING, str(path)]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        try:
            assert parent.stdout is not None
            assert [parent.stdout.readline() for _ in range(2)] == ["refused\n", "alive\n"]
            parent.wait()
            writer = Writer(path, wait_s=30)
            assert [key for key, *_ in writer.handle([Load(["k", "k2"])])[0].found] == ["k", "k2"]
            writer.close()
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_sqlite_is_not_misled_by_the_folder_that_it_is_started_in(path: Path, tmp_path: Path) -> None:
    (tmp_path / "struct.py").write_text("raise SystemExit('the wrong module')")
    opening = "import sys; from pathlib import Path; from fencegate_lockservice.stores.sqlite import SqliteStore; "
    use = "SqliteStore(Path(sys.argv[1])); print('open')"
    run = [sys.executable, "-P", "-c", opening + use, str(path)]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout == "open\n", done


async def test_a_writer_of_sqlite_that_cannot_be_started_is_a_clear_refusal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(UnsafeConfiguration, match="start"):
            SqliteStore(path)
    assert open_files() == before


@pytest.mark.parametrize("url", ["sqlite://x", "sqlite://", "sqlite:///"])
async def test_a_url_of_sqlite_that_names_no_file_is_said_to_name_none(url: str) -> None:
    with pytest.raises(UnsafeConfiguration, match="names no file: write sqlite:///PATH"):
        await stores.open_store(url)
