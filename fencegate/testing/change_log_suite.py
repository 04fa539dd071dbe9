"""What the change log of every store must do; `StoreSuite` brings these tests along."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from fencegate.core.ports import Changes, Store
from fencegate.testing.committing import OpenStore, by, gather_log, in_thread, put, write


async def log_revision(store: Store) -> int:
    """Where the change log stands now."""
    async with contextlib.aclosing(store.changes(None)) as stream:
        return (await first_answer(stream)).revision


async def first_answer(stream: AsyncGenerator[Changes, None]) -> Changes:
    """What a stream says at once; from then on it misses nothing."""
    async with asyncio.timeout(10):
        return await anext(stream)


class ChangeLogSuite:
    """In order, once each, and from wherever one left off. A fixture `store` gives the store to test."""

    async def test_changes_from_now_on_tell_what_is_committed_after(self, store: Store) -> None:
        await write(store, put("before"))
        stream = store.changes(None)
        await first_answer(stream)
        await write(store, put("a"), events=2)
        await store.commit([put("silent")], [], by(store))
        await write(store, put("b"))
        assert [(entry.line, entry.key, entry.event) for entry in await gather_log(stream, 3)] == [
            (0, "a", b'{"n":0}'),
            (1, "a", b'{"n":1}'),
            (0, "b", b'{"n":0}'),
        ]

    async def test_a_stream_says_at_once_where_it_stands_and_then_brings_all_that_follows(self, store: Store) -> None:
        await write(store, put("before"), events=2)
        here = await log_revision(store)
        streams = [store.changes(None), store.changes(here)]
        for stream in streams:
            assert await first_answer(stream) == Changes(here)
        await write(store, put("after"))
        for stream in streams:
            (line,) = await gather_log(stream, 1)
            assert (line.key, line.revision > here) == ("after", True)

    async def test_no_answer_ends_in_the_middle_of_a_revision(self, store: Store) -> None:
        start = await log_revision(store)
        for number in range(6):
            await write(store, put(f"k{number}"), events=1 + 150 * number)
        places: list[tuple[int, int]] = []
        stream = store.changes(start)
        while len(places) < 6 + 150 * 15:
            changes = await first_answer(stream)
            found = [(entry.revision, entry.line) for entry in changes.entries]
            assert not places or found[0][0] > places[-1][0]
            assert found[0][1] == 0
            places += found
        assert places == sorted(set(places))

    async def test_a_stream_that_is_closed_ends_for_whoever_closed_it_only(self, store: Store) -> None:
        closed, open_ = store.changes(None), store.changes(None)
        await first_answer(closed)
        await first_answer(open_)
        await closed.aclose()
        await write(store, put("k"))
        assert [line.key for line in await gather_log(open_, 1)] == ["k"]
        with pytest.raises(StopAsyncIteration):
            await anext(closed)

    async def test_changes_go_on_after_any_revision(self, store: Store) -> None:
        start = await log_revision(store)
        for number in range(5):
            await write(store, put(f"k{number}"), events=2)
        lines = await gather_log(store.changes(start), 10)
        for line in lines:
            rest = [other for other in lines if other.revision > line.revision]
            if rest:
                assert await gather_log(store.changes(line.revision), len(rest)) == rest

    async def test_a_revision_that_is_in_the_future_brings_a_reset_and_then_what_is_new(self, store: Store) -> None:
        await write(store, put("k"))
        stream = store.changes(await log_revision(store) + 1_000_000)
        assert (await first_answer(stream)).reset
        await write(store, put("new"))
        assert [line.key for line in await gather_log(stream, 1)] == ["new"]

    async def test_nothing_is_lost_doubled_or_out_of_order_when_several_threads_commit(
        self, store: Store, open_store: OpenStore
    ) -> None:
        start = await log_revision(store)
        own = store.capabilities.several_processes

        async def commits(name: str) -> None:
            used = await open_store() if own else store
            for turn in range(10):
                changes = [put(f"{name}-{turn}-{number}") for number in range(10)]
                await asyncio.gather(*(write(used, change, events=2) for change in changes))
            if own:
                await used.close()

        from_now, from_start = store.changes(None), store.changes(start)
        await first_answer(from_now)
        await first_answer(from_start)
        live = asyncio.ensure_future(gather_log(from_now, 600))
        resumed = asyncio.ensure_future(gather_log(from_start, 600))
        await asyncio.gather(*(in_thread(commits(name)) for name in ("a", "b", "c")))
        lines = await live
        assert await resumed == lines
        assert await gather_log(store.changes(start), 600) == lines
        places = [(line.revision, line.line) for line in lines]
        assert places == sorted(set(places))
        expected = {f"{name}-{turn}-{number}" for name in "abc" for turn in range(10) for number in range(10)}
        assert sorted(line.key for line in lines) == sorted([*expected, *expected])

    async def test_a_follower_that_reads_late_misses_nothing(self, store: Store) -> None:
        stream = store.changes(None)
        await first_answer(stream)
        await write(store, put("first"))
        await gather_log(stream, 1)
        for number in range(50):
            await write(store, put(f"k{number}"))
        assert [line.key for line in await gather_log(stream, 50)] == [f"k{number}" for number in range(50)]

    async def test_a_stream_that_is_dropped_holds_nobody_up(self, store: Store) -> None:
        streams = [store.changes(None) for _ in range(10)]
        for stream in streams:
            await first_answer(stream)
        followers = [asyncio.ensure_future(gather_log(stream, 1)) for stream in streams]
        await asyncio.sleep(0.01)
        for follower in followers:
            follower.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*followers)
        await write(store, put("k"))
