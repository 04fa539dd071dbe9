"""What every lock store must do: subclass `StoreSuite`, give it a fixture `open_store`, and pytest runs it all.

class TestMyStore(StoreSuite):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        async def open_() -> Store:
            return MyStore(tmp_path)
        return open_

Each call opens the same data again. Tests of what a store declares not to do are skipped. For durability against
kill -9, and for the refusal of a second process, give a fixture `opening` too.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from fencegate.clock import SYSTEM, sleep_s
from fencegate.core.ports import Change, Changes, Conflict, LogEntry, Store, TooLate, Unavailable
from fencegate.testing.engine_suite import EngineSuite

OpenStore = Callable[[], Awaitable[Store]]

HOSTILE_KEYS = (
    "a", "a ", " a", "A", "a/", "a/b", "a0", "aa", "ab", "%", "_", "*", "?", "{tag}", "[a]", "it's", 'say "x"',
    "';DROP TABLE entries;--", "back\\slash", "\\u0041", "123", "1e3", "null", "\u00e9", "e\u0301", "\u0663",
    "\u65e5\u672c", "\ufffd", "\uffff", "\U00010000", "\U0001f512", "x" * 1024,
)  # fmt: skip
MINUTE_US = 60_000_000

_ACKNOWLEDGE = """
import asyncio
from fencegate.core.ports import Change

async def main():
    store = await open_store()
    late = store.now().latest + 600_000_000
    async def one(key):
        await store.commit([Change(key, None, "v" + key, b"{}")], [(key, b"{}")], late)
        print(key, flush=True)
    for number in range(10_000):
        await asyncio.gather(*(one(f"ROUND-{number}-{which}") for which in range(4)))

asyncio.run(main())
"""
_OPEN = """
import asyncio
from fencegate import FencegateError

try:
    asyncio.run(open_store())
except FencegateError as error:
    print(type(error).__name__, error)
"""


def by(store: Store, within_us: int = MINUTE_US) -> int:
    """A `not_after` that leaves enough time."""
    now = store.now()
    return (now.latest if now is not None else SYSTEM.now_us()) + within_us


def put(key: str, expected: str | None = None, value: bytes = b"{}", keep_until_us: int | None = None) -> Change:
    return Change(key, expected, SYSTEM.random_id(), value, keep_until_us=keep_until_us)


async def write(store: Store, *changes: Change, events: int = 1) -> None:
    """Commit, and log so many events."""
    log = [(changes[0].key, b'{"n":%d}' % number) for number in range(events)]
    await store.commit(changes, log, by(store))


async def gather_log(stream: AsyncIterator[Changes], count: int) -> list[LogEntry]:
    """The next `count` lines; fails when the past is gone, or they don't come."""
    found: list[LogEntry] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            changes = await anext(stream)
            assert not changes.reset
            found += changes.entries
            assert not changes.entries or changes.revision == changes.entries[-1].revision
    return found


def in_thread(work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    """Run `work` in an event loop of its own, in another thread."""
    return asyncio.to_thread(asyncio.run, work)


def _read_and_kill(source: str, wanted: int) -> list[str]:
    """Run a child until it has written so many lines, then kill -9; all whole lines that it wrote."""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(wanted)]
        child.kill()
        lines += [line for line in child.stdout if line.endswith("\n")]
    assert all(lines), "the child ended by itself"
    return [line.strip() for line in lines]


class StoreSuite(EngineSuite):
    """The rules of the store contract, as tests; and those of the engine, which must hold over any store."""

    @pytest.fixture
    async def store(self, open_store: OpenStore) -> AsyncIterator[Store]:
        store = await open_store()
        yield store
        await store.close()

    @pytest.fixture
    def opening(self) -> str:
        """Python that defines `async def open_store()` over the same data, for another process."""
        pytest.skip("this store lives in one process: give the fixture `opening` if another one could reach its data")

    # --- load and commit -------------------------------------------------------------------------------------------

    async def test_what_was_committed_is_loaded_as_it_was(self, store: Store) -> None:
        value = '{"text":"é 🔒 \\u0000 \\" \\\\ \n","n":9223372036854775807}'.encode()
        change = put("k", value=value)
        await write(store, change)
        found = await store.load(["k", "absent"])
        assert dict(found) == {"k": (change.version, value)}
        assert dict(await store.load([])) == {}

    async def test_an_expected_absence_conflicts_with_what_is_there(self, store: Store) -> None:
        first = put("k", value=b'"first"')
        await write(store, first)
        with pytest.raises(Conflict):
            await write(store, put("k", value=b'"second"'))
        assert (await store.load(["k"]))["k"] == (first.version, b'"first"')

    async def test_an_expected_version_conflicts_with_another_and_with_absence(self, store: Store) -> None:
        with pytest.raises(Conflict):
            await write(store, put("k", "never"))
        first, second = put("k"), put("k")
        await write(store, first)
        await write(store, put("k", first.version, b'"second"'))
        with pytest.raises(Conflict):
            await write(store, put("k", first.version, b'"third"'))
        with pytest.raises(Conflict):
            await write(store, put("k", second.version))
        assert (await store.load(["k"]))["k"].value == b'"second"'

    async def test_a_version_from_before_a_delete_never_fits_again(self, store: Store) -> None:
        first = put("k")
        await write(store, first)
        await write(store, Change("k", first.version, "gone"))
        assert "k" not in await store.load(["k"])
        for stale in (put("k", first.version), Change("k", first.version, "again")):
            with pytest.raises(Conflict):
                await write(store, stale)
        await write(store, put("k"))
        with pytest.raises(Conflict):
            await write(store, put("k", first.version))

    async def test_a_commit_is_all_or_nothing(self, store: Store) -> None:
        if not store.capabilities.several_keys:
            pytest.skip("this store commits single keys")
        there = put("there")
        await write(store, there)
        stream = store.changes(None)
        following = asyncio.ensure_future(gather_log(stream, 1))
        await asyncio.sleep(0)
        with pytest.raises(Conflict):
            await write(store, put("one"), Change("there", there.version, "x"), put("two", "wrong"))
        assert set(await store.load(["one", "two", "there"])) == {"there"}
        await write(store, put("one"), Change("there", there.version, "x"), put("two"))
        assert set(await store.load(["one", "two", "there"])) == {"one", "two"}
        assert [entry.key for entry in await following] == ["one"]  # the refused commit logged nothing

    async def test_compare_only_holds_the_commit_to_what_was_seen_and_writes_nothing(self, store: Store) -> None:
        if not store.capabilities.several_keys:
            pytest.skip("this store commits single keys")
        seen = put("seen", value=b'"as it was"')
        await write(store, seen)
        await write(store, put("k"), Change("seen", seen.version, compare_only=True))
        await write(store, put("k2"), Change("absent", None, compare_only=True))
        assert (await store.load(["seen"]))["seen"] == (seen.version, b'"as it was"')
        assert "absent" not in await store.load(["absent"])
        with pytest.raises(Conflict):
            await write(store, put("k3"), Change("seen", "other", compare_only=True))
        with pytest.raises(Conflict):
            await write(store, put("k3"), Change("seen", None, compare_only=True))
        with pytest.raises(Conflict):
            await write(store, put("k3"), Change("absent", "other", compare_only=True))
        assert "k3" not in await store.load(["k3"])

    async def test_a_commit_that_arrives_late_is_refused_and_writes_nothing(self, store: Store) -> None:
        if not store.capabilities.clock:
            pytest.skip("this store has no clock")
        with pytest.raises(TooLate):
            await store.commit([put("k")], [("k", b"{}")], by(store, -1_000_000))
        assert "k" not in await store.load(["k"])
        await write(store, put("k"))

    async def test_of_many_commits_on_one_version_exactly_one_wins(self, store: Store) -> None:
        last = put("k")
        await write(store, last)
        for _ in range(10):
            rivals = [put("k", last.version) for _ in range(8)]
            results = await asyncio.gather(*(write(store, rival) for rival in rivals), return_exceptions=True)
            (last,) = [rival for rival, result in zip(rivals, results, strict=True) if result is None]
            assert sum(isinstance(result, Conflict) for result in results) == 7
            assert (await store.load(["k"]))["k"].version == last.version

    async def test_in_a_group_the_bad_commits_fail_alone(self, store: Store) -> None:
        good = [put(f"good-{number}") for number in range(20)]
        bad = [put(f"bad-{number}", "wrong") for number in range(20)]
        late = store.commit([put("late")], [], by(store, -1_000_000)) if store.capabilities.clock else asyncio.sleep(0)
        mixed = [change for pair in zip(good, bad, strict=True) for change in pair]
        results = await asyncio.gather(late, *(write(store, change) for change in mixed), return_exceptions=True)
        assert [type(result) for result in results[1:]] == [type(None), Conflict] * 20
        found = await store.load([change.key for change in mixed])
        assert set(found) == {change.key for change in good}

    async def test_commits_that_build_on_each_other_in_one_group_keep_their_order(self, store: Store) -> None:
        versions = [SYSTEM.random_id() for _ in range(30)]
        chain = [
            store.commit([Change("k", before, version, b'"%s"' % version.encode())], [], by(store))
            for before, version in zip([None, *versions], versions, strict=False)
        ]
        chain.append(store.commit([Change("k", versions[-1], "gone")], [], by(store)))
        chain.append(store.commit([Change("k", None, "last", b'"last"')], [], by(store)))
        results = await asyncio.gather(*chain, return_exceptions=True)
        done = results.index(next((r for r in results if r is not None), None)) if any(results) else len(results)
        assert all(isinstance(result, Conflict) for result in results[done:])
        last = [*versions, None, "last"][done - 1]
        found = (await store.load(["k"])).get("k")
        assert (found.version if found else None) == last

    # --- what is kept for a time -----------------------------------------------------------------------------------

    async def test_an_entry_is_kept_until_its_time_and_when_it_is_written_without_one(self, store: Store) -> None:
        soon, late = by(store, 50_000), by(store, 600_000_000)
        short, long, lasting = put("short", keep_until_us=soon), put("long", keep_until_us=late), put("lasting")
        renewed = put("renewed", keep_until_us=soon)
        for change in (short, renewed, long, lasting):
            await write(store, change)
        await write(store, put("renewed", renewed.version))
        assert set(await store.load(["short", "long", "lasting"])) == {"short", "long", "lasting"}
        await asyncio.sleep(0.06)
        for number in range(150):
            await write(store, put(f"other-{number}"))
            if "short" not in await store.load(["short"]):
                break
        else:
            pytest.fail("what is past its time is never forgotten")
        assert set(await store.load(["long", "lasting", "renewed"])) == {"long", "lasting", "renewed"}
        await write(store, put("short"))  # it is absent, and can be written as such

    # --- scan ------------------------------------------------------------------------------------------------------

    async def test_keys_are_told_apart_and_scanned_in_the_order_of_their_bytes(self, store: Store) -> None:
        changes = {f"p/{key}": put(f"p/{key}", value=b'"%d"' % number) for number, key in enumerate(HOSTILE_KEYS)}
        await asyncio.gather(*(write(store, change) for change in changes.values()))
        await asyncio.gather(
            *(write(store, put(outside)) for outside in ("o/x", "p", "p.", "p0", "q/a", "p\U0001f512"))
        )
        expected = sorted(changes, key=str.encode)
        everything = await store.scan("p/", "", 1000)
        assert [key for key, _ in everything] == expected
        for key, entry in everything:
            assert entry == (changes[key].version, changes[key].value)
        assert dict(await store.load(expected)) == dict(everything)

    @pytest.mark.parametrize("limit", [1, 3, 1000])
    async def test_a_scan_page_by_page_finds_everything_once(self, store: Store, limit: int) -> None:
        keys = [f"p/{key}" for key in HOSTILE_KEYS]
        await asyncio.gather(*(write(store, put(key)) for key in keys))
        found: list[str] = []
        while page := await store.scan("p/", found[-1] if found else "", limit):
            assert len(page) <= limit
            found += [key for key, _ in page]
        assert found == sorted(keys, key=str.encode)

    async def test_a_scan_goes_on_after_a_key_that_is_gone_and_stays_in_its_prefix(self, store: Store) -> None:
        for key in ("p/a", "p/c", "q/a", "o/z"):
            await write(store, put(key))
        assert [key for key, _ in await store.scan("p/", "p/b", 10)] == ["p/c"]
        assert [key for key, _ in await store.scan("p/", "a", 10)] == ["p/a", "p/c"]
        assert [key for key, _ in await store.scan("p/", "z", 10)] == []
        assert [key for key, _ in await store.scan("", "", 10)] == ["o/z", "p/a", "p/c", "q/a"]

    # --- the change log --------------------------------------------------------------------------------------------

    async def test_changes_from_now_on_tell_what_is_committed_after(self, store: Store) -> None:
        await write(store, put("before"))
        stream = store.changes(None)
        following = asyncio.ensure_future(gather_log(stream, 3))
        await asyncio.sleep(0.01)
        await write(store, put("a"), events=2)
        await store.commit([put("silent")], [], by(store))
        await write(store, put("b"))
        assert [(entry.index, entry.key, entry.event) for entry in await following] == [
            (0, "a", b'{"n":0}'),
            (1, "a", b'{"n":1}'),
            (0, "b", b'{"n":0}'),
        ]

    async def test_changes_go_on_after_any_revision(self, store: Store) -> None:
        start = await self.revision(store)
        for number in range(5):
            await write(store, put(f"k{number}"), events=2)
        lines = await gather_log(store.changes(start), 10)
        for line in lines:
            rest = [other for other in lines if other.revision > line.revision]
            if rest:
                assert await gather_log(store.changes(line.revision), len(rest)) == rest

    async def test_a_revision_that_is_in_the_future_brings_a_reset_and_then_what_is_new(self, store: Store) -> None:
        await write(store, put("k"))
        stream = store.changes(await self.revision(store) + 1_000_000)
        async with asyncio.timeout(5):
            first = await anext(stream)
        assert first.reset
        await write(store, put("new"))
        assert [line.key for line in await gather_log(stream, 1)] == ["new"]

    async def test_nothing_is_lost_doubled_or_out_of_order_when_several_threads_commit(
        self, store: Store, open_store: OpenStore
    ) -> None:
        start = await self.revision(store)
        own = store.capabilities.several_processes

        async def commits(name: str) -> None:
            used = await open_store() if own else store
            for turn in range(10):
                changes = [put(f"{name}-{turn}-{number}") for number in range(10)]
                await asyncio.gather(*(write(used, change, events=2) for change in changes))
            if own:
                await used.close()

        live = asyncio.ensure_future(gather_log(store.changes(None), 600))
        resumed = asyncio.ensure_future(gather_log(store.changes(start), 600))
        await asyncio.sleep(0.01)
        await asyncio.gather(*(in_thread(commits(name)) for name in ("a", "b", "c")))
        lines = await live
        assert await resumed == lines
        assert await gather_log(store.changes(start), 600) == lines
        places = [(line.revision, line.index) for line in lines]
        assert places == sorted(set(places))
        expected = {f"{name}-{turn}-{number}" for name in "abc" for turn in range(10) for number in range(10)}
        assert sorted(line.key for line in lines) == sorted([*expected, *expected])

    async def test_a_follower_that_reads_late_misses_nothing(self, store: Store) -> None:
        stream = store.changes(None)
        first = asyncio.ensure_future(gather_log(stream, 1))
        await asyncio.sleep(0.01)
        await write(store, put("first"))
        await first
        for number in range(50):
            await write(store, put(f"k{number}"))
        assert [line.key for line in await gather_log(stream, 50)] == [f"k{number}" for number in range(50)]

    async def revision(self, store: Store) -> int:
        """Where the change log stands now."""
        stream = store.changes(None)
        following = asyncio.ensure_future(gather_log(stream, 1))
        await asyncio.sleep(0.01)
        await write(store, put(f"mark-{SYSTEM.random_id()}"))
        return (await following)[0].revision

    # --- life ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("wait_s", [None, 0.0, 0.001])
    async def test_closing_while_busy_answers_everybody(self, store: Store, wait_s: float | None) -> None:
        works = [asyncio.ensure_future(write(store, put(f"{wait_s}-{number}"))) for number in range(50)]
        reads = [asyncio.ensure_future(store.load(["k"])) for _ in range(10)]
        if wait_s is not None:
            await asyncio.sleep(wait_s)
        await store.close()
        await store.close()
        async with asyncio.timeout(5):
            results = await asyncio.gather(*works, *reads, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(error, Unavailable) for error in errors)

    async def test_closing_answers_those_who_asked_in_the_same_turn_of_a_slow_loop(self, store: Store) -> None:
        works = [asyncio.ensure_future(write(store, put(f"k{number}"))) for number in range(5)]
        closing = asyncio.ensure_future(store.close())
        asyncio.get_running_loop().call_soon(sleep_s, 0.05)
        async with asyncio.timeout(5):
            results = await asyncio.gather(*works, closing, return_exceptions=True)
        assert all(result is None or isinstance(result, Unavailable) for result in results)

    async def test_closing_while_another_thread_is_busy_answers_everybody(
        self, store: Store, open_store: OpenStore
    ) -> None:
        if store.capabilities.several_processes:
            pytest.skip("each thread has a store of its own")

        async def commits(name: str) -> None:
            with contextlib.suppress(Unavailable):
                for turn in range(200):
                    async with asyncio.timeout(5):
                        await asyncio.gather(*(write(store, put(f"{name}-{turn}-{n}")) for n in range(3)))

        busy = [asyncio.ensure_future(in_thread(commits(name))) for name in "ab"]
        await asyncio.sleep(0.05)
        await store.close()
        await asyncio.gather(*busy)

    async def test_what_was_committed_is_there_when_it_is_opened_again(
        self, store: Store, open_store: OpenStore
    ) -> None:
        if not store.capabilities.durable:
            pytest.skip("this store is not durable")
        start = await self.revision(store)
        changes = [put(f"k{number}", value=b'"%d"' % number) for number in range(20)]
        for change in changes:
            await write(store, change)
        await store.close()
        again = await open_store()
        found = await again.load([change.key for change in changes])
        assert dict(found) == {change.key: (change.version, change.value) for change in changes}
        assert [line.key for line in await gather_log(again.changes(start), 20)] == [change.key for change in changes]
        stream = again.changes(start + 20)
        await write(again, put("after"))
        assert [line.revision for line in await gather_log(stream, 1)] == [start + 21]
        await again.close()

    async def test_what_was_acknowledged_survives_kill_9(self, open_store: OpenStore, opening: str) -> None:
        acknowledged: list[str] = []
        for round_ in range(4):
            source = opening + _ACKNOWLEDGE.replace("ROUND", str(round_))
            acknowledged += await asyncio.to_thread(_read_and_kill, source, 20 + 37 * round_)
            store = await open_store()
            found = await store.load(acknowledged)
            assert set(found) == set(acknowledged)
            logged = {line.key for line in await gather_log(store.changes(0), len(acknowledged))}
            assert len(logged) >= len(acknowledged)
            await store.close()

    async def test_a_second_process_is_refused_with_a_clear_error(self, store: Store, opening: str) -> None:
        if store.capabilities.several_processes:
            pytest.skip("this store is for several processes")
        await write(store, put("k"))
        run = [sys.executable, "-c", opening + _OPEN]
        done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, timeout=30, check=False)
        assert "UnsafeConfiguration" in done.stdout, done
        assert "another process" in done.stdout
        await write(store, put("k2"))  # and the first one goes on
        await store.close()
        done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout == "", done

    async def test_a_stream_that_is_dropped_holds_nobody_up(self, store: Store) -> None:
        streams = [store.changes(None) for _ in range(10)]
        followers = [asyncio.ensure_future(gather_log(stream, 1)) for stream in streams]
        await asyncio.sleep(0.01)
        for follower in followers:
            follower.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*followers)
        await write(store, put("k"))
