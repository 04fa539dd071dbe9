"""The parts of a watch by themselves: places in the log, what is left out, and what happens to a slow watcher."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import InvalidInput
from fencegate.core.model import Event
from fencegate.core.ports import Store
from fencegate.engine.codec import encode_line
from fencegate.testing.committing import by, put
from fencegate.testing.faulty_store import Faults, FaultyStore
from fencegate.web.asgi import ABORT, ThinApp
from fencegate_lockservice import sse, watch
from fencegate_lockservice.sse import WatchRoutes
from fencegate_lockservice.stores import sqlite_writer
from fencegate_lockservice.stores.memory import MemoryStore
from fencegate_lockservice.stores.sqlite import SqliteStore
from fencegate_lockservice.watch import RESET, Told, Wanted, Watch


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "locks.db")
    yield opened
    await opened.close()


async def commit(store: Store, *lock_keys: str) -> None:
    """One commit, with a line for each of these; an empty key is a line that tells of no event."""
    lines = [encode_line("r", Event("acquired", key, "o", 7, 1_000_000) if key else None) for key in lock_keys]
    await store.commit([put(SYSTEM.random_id())], [("lock/x", line) for line in lines], by(store))


async def heard(store: Store, wanted: Wanted, count: int) -> list[Told]:
    found: list[Told] = []
    async with asyncio.timeout(20), aclosing(Watch(store).follow(wanted)) as batches:
        async for batch in batches:
            found += batch.told
            if len(found) >= count:
                break
    return found


async def test_a_watcher_goes_on_at_any_line_of_any_commit(store: Store) -> None:
    await commit(store, "a")
    await commit(store, *[f"{number}" for number in range(5)])
    await commit(store, "", "b", "", "c", "")
    await commit(store, "", "")
    await commit(store, "d", "e")
    told = await heard(store, Wanted(since=0), 10)
    assert [one.lock_key for one in told] == ["a", "0", "1", "2", "3", "4", "b", "c", "d", "e"]
    for cut, one in enumerate(told[:-1]):
        assert await heard(store, Wanted(since=one.id), len(told) - cut - 1) == told[cut + 1 :]


async def test_the_place_moves_on_with_what_others_do(store: Store) -> None:
    async with asyncio.timeout(20), aclosing(Watch(store).follow(Wanted(key="mine"))) as batches:
        before = (await anext(batches)).place
        await commit(store, "other", "another")
        batch = await anext(batches)
        assert batch.place > before
        assert not batch.told
        await commit(store, "mine")
        (told,) = await heard(store, Wanted(key="mine", since=batch.place), 1)
        assert told.id > batch.place


async def test_a_place_that_this_log_never_had_brings_a_reset(store: Store) -> None:
    await commit(store, "a")
    (first,) = await heard(store, Wanted(since=0), 1)
    for never in (first.id + (1 << 16), first.id + (5 << 16), first.id + (1 << 60)):
        (reset,) = await heard(store, Wanted(since=never), 1)
        assert reset.kind == RESET
        assert reset.id < never


async def test_a_place_that_has_left_the_log_brings_a_reset_and_then_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "KEEP_LOG", 20)
    path = tmp_path / "locks.db"
    writer = sqlite_writer.Writer(path)
    for number in range(130):
        line = encode_line("r", Event("acquired", f"k{number}", "o", 7, 1))
        writer.handle([sqlite_writer.Commit([put(f"k{number}")], [(f"lock/k{number}", line)], 2**62)])
    writer.close()
    store = SqliteStore(path)
    (reset,) = await heard(store, Wanted(since=5 << 16), 1)
    assert reset.kind == RESET
    await commit(store, "new")
    assert [one.lock_key for one in await heard(store, Wanted(since=reset.id), 1)] == ["new"]
    assert [one.lock_key for one in await heard(store, Wanted(since=125 << 16), 6)] == [
        *(f"k{number}" for number in range(125, 130)),
        "new",
    ]
    await store.close()


async def test_a_change_stream_that_breaks_is_taken_up_where_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_AGAIN_S", 0.001)
    real = MemoryStore()
    store = FaultyStore(real, seed=3, faults=Faults(broken_stream=0.5))
    following = asyncio.ensure_future(heard(store, Wanted(since=0), 60))
    for number in range(30):
        await commit(real, f"{number}", f"{number}'")
        await asyncio.sleep(0.001)
    expected = [key for number in range(30) for key in (f"{number}", f"{number}'")]
    assert [one.lock_key for one in await following] == expected


async def test_a_line_that_cannot_be_read_is_left_out(store: Store) -> None:
    await store.commit([put("k")], [("lock/k", b'{"what":"is this"}')], by(store))
    await commit(store, "after")
    assert [one.lock_key for one in await heard(store, Wanted(since=0), 1)] == ["after"]


@pytest.mark.parametrize(("key", "prefix"), [("a", "b"), ("", ""), ("a//b", ""), (None, "\n")])
def test_what_cannot_be_watched_is_refused(key: str | None, prefix: str) -> None:
    with pytest.raises(InvalidInput):
        Wanted(key, prefix)


class Wire:
    """The server's side of one request: it takes `room` parts of the answer, and then no more until it is cut."""

    def __init__(self, app: ThinApp, query: str = "", room: int = 1_000_000) -> None:
        self.sent: list[MutableMapping[str, Any]] = []
        self.cut = asyncio.Event()
        self._room = room
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/watch",
            "raw_path": b"/v1/watch",
            "query_string": query.encode(),
            "headers": [],
            "extensions": {ABORT: {"cut": self.cut.set}},
        }
        self.serving = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> MutableMapping[str, Any]:
        await self.cut.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if len(self.sent) > self._room:
            await self.cut.wait()
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    async def until(self, text: str) -> None:
        async with asyncio.timeout(20):
            while text not in self.text:
                await asyncio.sleep(0.005)


def app_over(store: Store, **limits: int) -> tuple[ThinApp, WatchRoutes]:
    async def nowhere(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("not routed")

    routes = WatchRoutes(Watch(store), SYSTEM, **limits)
    return ThinApp(routes.route, nowhere), routes


async def test_a_watcher_of_few_locks_is_told_its_place_in_quiet_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_US", 50_000)
    store = MemoryStore()
    app, _ = app_over(store)
    wire = Wire(app, "key=mine")
    await wire.until("id: 65535\n")
    await wire.until("\n:\n")  # nothing to say, and said
    await commit(store, "other")
    await wire.until(f"id: {2 * 65536 - 1}\n")
    assert "event:" not in wire.text
    wire.cut.set()
    await wire.serving


async def test_a_watcher_that_reads_nothing_for_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "STUCK_S", 0.05)
    store = MemoryStore()
    app, routes = app_over(store)
    deaf, reading = Wire(app, room=1), Wire(app)
    for wire in (deaf, reading):
        await wire.until("id: ")
    for number in range(20):
        await commit(store, f"{number}")
    async with asyncio.timeout(20):
        await deaf.cut.wait()
        await deaf.serving
    await reading.until('"lockKey":"19"')
    assert not reading.cut.is_set()
    routes.stop()
    await reading.serving
    assert reading.sent[-1] == {"type": "http.response.body", "body": b""}


async def test_watchers_over_the_limit_are_sent_away_until_one_has_gone() -> None:
    app, routes = app_over(MemoryStore(), max_watchers=2)
    first, second = Wire(app), Wire(app)
    for wire in (first, second):
        await wire.until("id: ")
    third = Wire(app)
    await third.serving
    assert (third.status, "RATE_LIMITED" in third.text) == (429, True)
    first.cut.set()
    await first.serving
    fourth = Wire(app)
    await fourth.until("id: ")
    routes.stop()
    await asyncio.gather(second.serving, fourth.serving)
    late = Wire(app)
    await late.serving
    assert (late.status, "SHUTTING_DOWN" in late.text) == (503, True)
