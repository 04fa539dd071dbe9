"""How every store is closed, opened again and killed; `StoreSuite` brings these tests along."""

import asyncio
import contextlib
import subprocess
import sys

import pytest

from fencegate.clock import sleep_s
from fencegate.core.ports import Store, Unavailable
from fencegate.testing.change_log_suite import log_revision
from fencegate.testing.committing import OpenStore, gather_log, in_thread, put, write

_ACKNOWLEDGE = """
import asyncio
from fencegate.core.ports import Change
from fencegate.testing.committing import by

async def main():
    store = await open_store()
    late = by(store, 600_000_000)
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


def _read_and_kill(source: str, wanted: int) -> list[str]:
    """Run a child until it has written so many lines, then kill -9; all whole lines that it wrote."""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(wanted)]
        child.kill()
        lines += [line for line in child.stdout if line.endswith("\n")]
    assert all(lines), "the child ended by itself"
    return [line.strip() for line in lines]


class StoreLifeSuite:
    """Nobody is left without an answer, and what was acknowledged stays."""

    @pytest.fixture
    def opening(self) -> str:
        """Python that defines `async def open_store()` over the same data, for another process."""
        pytest.skip("this store lives in one process: give the fixture `opening` if another one could reach its data")

    @pytest.mark.parametrize("wait_s", [None, 0.0, 0.001])
    async def test_closing_while_busy_answers_everybody(self, store: Store, wait_s: float | None) -> None:
        works = [asyncio.ensure_future(write(store, put(f"{wait_s}-{number}"))) for number in range(50)]
        reads = [asyncio.ensure_future(store.load(["k"])) for _ in range(10)]
        if wait_s is not None:
            await asyncio.sleep(wait_s)
        await store.close()
        await store.close()
        async with asyncio.timeout(60):
            results = await asyncio.gather(*works, *reads, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(error, Unavailable) for error in errors)

    async def test_closing_answers_those_who_asked_in_the_same_turn_of_a_slow_loop(self, store: Store) -> None:
        works = [asyncio.ensure_future(write(store, put(f"k{number}"))) for number in range(5)]
        closing = asyncio.ensure_future(store.close())
        asyncio.get_running_loop().call_soon(sleep_s, 0.05)
        async with asyncio.timeout(60):
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
                    async with asyncio.timeout(60):
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
        start = await log_revision(store)
        changes = [put(f"k{number}", value=b'"%d"' % number) for number in range(20)]
        for change in changes:
            await write(store, change)
        await store.close()
        again = await open_store()
        found = await again.load([change.key for change in changes])
        assert dict(found) == {change.key: (change.version, change.value) for change in changes}
        if store.capabilities.replays:
            lines = await gather_log(again.changes(start), 20)
            assert [line.key for line in lines] == [change.key for change in changes]
            stream = again.changes(lines[-1].revision)
            await write(again, put("after"))
            (after,) = await gather_log(stream, 1)
            assert (after.key, after.revision > lines[-1].revision) == ("after", True)
        await again.close()

    async def test_what_was_acknowledged_survives_kill_9(self, open_store: OpenStore, opening: str) -> None:
        acknowledged: list[str] = []
        store = await open_store()
        start = await log_revision(store)
        await store.close()
        for round_ in range(2):
            source = opening + _ACKNOWLEDGE.replace("ROUND", str(round_))
            acknowledged += await asyncio.to_thread(_read_and_kill, source, 30 + 60 * round_)
            store = await open_store()
            found = await store.load(acknowledged)
            assert set(found) == set(acknowledged)
            if store.capabilities.replays:
                logged = {line.key for line in await gather_log(store.changes(start), len(acknowledged))}
                assert len(logged) >= len(acknowledged)
            await store.close()

    async def test_a_second_process_is_refused_with_a_clear_error(self, store: Store, opening: str) -> None:
        if store.capabilities.several_processes:
            pytest.skip("this store is for several processes")
        await write(store, put("k"))
        run = [sys.executable, "-c", opening + _OPEN]
        done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, timeout=90, check=False)
        assert "UnsafeConfiguration" in done.stdout, done
        assert "another process" in done.stdout
        await write(store, put("k2"))  # and the first one goes on
        await store.close()
        done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, timeout=90, check=False)
        assert done.stdout == "", done
