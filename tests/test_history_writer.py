"""The writer of the history: each line once, whoever else writes and whatever the store does; bounded, and never in
the way of a lock call."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from fencegate.clock import SYSTEM, ManualClock
from fencegate.core.model import Event
from fencegate.core.ports import Change
from fencegate.engine import Engine
from fencegate.engine.codec import encode_line
from fencegate.feed import TAIL
from fencegate.testing.faulty_store import Faults, FaultyStore
from fencegate_lockservice import history as history_module
from fencegate_lockservice.api import LockApi
from fencegate_lockservice.history import History
from fencegate_lockservice.history_rows import POSITION, rows_of
from fencegate_lockservice.history_writer import HistoryWriter
from fencegate_lockservice.stores.memory import MemoryStore

HOUR_US = 3_600_000_000
BY_US = 2**62


def line(number: int, kind: str = "released", lock_key: str = "k", at_us: int = 0) -> tuple[str, bytes]:
    """A line of the change log, as the engine writes it."""
    event = Event(kind, lock_key, f"o{number}", 1000 + number, at_us or SYSTEM.now_us(), since_us=1000 + number)
    return f"lock/{lock_key}", encode_line("r", event)


async def happen(store: MemoryStore, *lines: tuple[str, bytes]) -> None:
    await store.commit([], lines, BY_US)


async def owners(history: History, lock_key: str = "k", **query: Any) -> list[str]:
    return [hold["ownerId"] for hold in (await history.of(lock_key, **query))["history"]]


async def rows(store: MemoryStore, lock_key: str = "k") -> int:
    return len(await store.scan(rows_of(lock_key), "", 100_000))


@contextlib.asynccontextmanager
async def running(*writers: HistoryWriter) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(writer.run()) for writer in writers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def until_rows(store: MemoryStore, wanted: int) -> None:
    async with asyncio.timeout(30):
        while await rows(store) < wanted:
            await asyncio.sleep(0.02)


async def test_two_writers_at_once_write_each_line_once() -> None:
    store = MemoryStore()
    async with running(*(HistoryWriter(store, SYSTEM, HOUR_US) for _ in range(2))):
        for number in range(300):
            await happen(store, line(number), line(number, "renewed"))
            if number % 10 == 0:
                await asyncio.sleep(0)
        await until_rows(store, 300)
    found = await owners(History(Engine(store), HistoryWriter(store, SYSTEM, HOUR_US)), limit=1000)
    assert found == [f"o{number}" for number in reversed(range(300))]


@pytest.mark.parametrize("seed", range(4))
async def test_each_line_is_written_once_whatever_the_store_does(seed: int) -> None:
    store = MemoryStore()
    faults = Faults(unavailable=0.05, lost=0.1, unheard=0.1, late=0.1, conflict=0.1, broken_stream=0.05)
    unreliable = [FaultyStore(store, seed=10 * seed + number, faults=faults) for number in range(2)]
    writers = [HistoryWriter(faulty, SYSTEM, HOUR_US) for faulty in unreliable]

    async def write(writer: HistoryWriter) -> None:
        for _ in range(20):
            with contextlib.suppress(Exception):
                await writer.catch_up()
            await asyncio.sleep(0)

    for round_ in range(20):
        for number in range(5):
            await happen(store, line(round_ * 5 + number))
        if round_ % 4 == 0:
            await asyncio.gather(*map(write, writers))
    for faulty in unreliable:
        await faulty.close()
    history = History(Engine(store), HistoryWriter(store, SYSTEM, HOUR_US))
    assert Counter(await owners(history, limit=1000)) == {f"o{number}": 1 for number in range(100)}
    assert (await history.of("k"))["complete"]


async def test_a_position_that_was_lost_keeps_nobody_from_writing_on() -> None:
    store = MemoryStore()
    await happen(store, line(0), line(1))
    await HistoryWriter(store, SYSTEM, HOUR_US).catch_up()
    position = (await store.load([POSITION]))[POSITION]
    await store.commit([Change(POSITION, position.version)], [], BY_US)
    await happen(store, line(2))
    history = History(Engine(store), HistoryWriter(store, SYSTEM, HOUR_US))
    assert await owners(history) == ["o2", "o1", "o0"]


async def test_a_writer_goes_on_where_the_last_one_was() -> None:
    store = MemoryStore()
    await happen(store, *(line(number) for number in range(600)))
    await happen(store, line(600))
    await HistoryWriter(store, SYSTEM, HOUR_US).catch_up()
    assert await rows(store) == 601
    await happen(store, line(601))
    await HistoryWriter(store, SYSTEM, HOUR_US).catch_up()
    assert await rows(store) == 602


async def test_lines_that_end_no_hold_cost_no_commit() -> None:
    store = FaultyStore(MemoryStore())
    writer = HistoryWriter(store, SYSTEM, HOUR_US)
    for number in range(50):
        for kind in ("acquired", "renewed", "queued", "revoked"):
            await store.commit([], [line(number, kind)], BY_US)
    before = store.commits
    await writer.catch_up()
    assert store.commits == before
    await store.commit([], [line(1)], BY_US)
    await writer.catch_up()
    assert store.commits == before + 2


async def test_entries_are_gone_when_their_time_is_over() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    history = History(Engine(store, clock), HistoryWriter(store, clock, HOUR_US))
    await happen(store, *(line(number, at_us=clock.now_us()) for number in range(40)))
    assert len(await owners(history)) == 40
    clock.advance(1800)
    await happen(store, line(40, at_us=clock.now_us()))
    assert len(await owners(history)) == 41
    clock.advance(1801)
    assert await owners(history) == ["o40"]  # told no more at once,
    for _ in range(40):
        await happen(store, line(1, "renewed", "other"))
    assert await rows(store) == 1  # and forgotten by the store in its own time


async def test_at_most_so_many_are_kept_for_a_lock() -> None:
    store = MemoryStore()
    history = History(Engine(store), HistoryWriter(store, SYSTEM, HOUR_US, max_per_lock=10))
    for number in range(100):
        await happen(store, line(number), line(number, lock_key="other") if number < 5 else line(0, "renewed"))
        if number % 7 == 0:
            await history.of("k")
    page = await history.of("k", limit=6)
    assert [hold["ownerId"] for hold in page["history"]] == [f"o{number}" for number in range(99, 93, -1)]
    page = await history.of("k", limit=6, cursor=page["nextCursor"])
    assert [hold["ownerId"] for hold in page["history"]] == [f"o{number}" for number in range(93, 89, -1)]
    assert page["nextCursor"] is None
    assert 10 <= await rows(store) < 40
    assert len(await owners(history, "other")) == 5


async def test_a_gap_in_the_log_is_said_where_an_answer_spans_it_and_only_there() -> None:
    clock = ManualClock(now_us=1_700_000_000_000_000)
    store = MemoryStore(clock)
    history = History(Engine(store, clock), HistoryWriter(store, clock, HOUR_US))

    async def end(number: int) -> None:
        clock.advance(1)
        now_us = clock.now_us()
        event = Event("released", "k", f"o{number}", now_us, now_us, since_us=now_us)
        await happen(store, ("lock/k", encode_line("r", event)))

    await end(1)
    assert (await history.of("k"))["complete"]
    clock.advance(60)
    await end(2)
    await happen(store, *(line(0, "renewed", "other") for _ in range(2 * TAIL)))
    clock.advance(60)
    assert not (await history.of("k"))["complete"]
    await end(3)
    await end(4)
    whole = await history.of("k")
    assert ([hold["ownerId"] for hold in whole["history"]], whole["complete"]) == (["o4", "o3", "o1"], False)
    newer = await history.of("k", limit=2)
    assert ([hold["ownerId"] for hold in newer["history"]], newer["complete"]) == (["o4", "o3"], True)
    older = await history.of("k", limit=2, cursor=newer["nextCursor"])
    assert ([hold["ownerId"] for hold in older["history"]], older["complete"]) == (["o1"], False)
    again = History(Engine(store, clock), HistoryWriter(store, clock, HOUR_US))
    assert not (await again.of("k"))["complete"]  # it is remembered, not only known
    clock.advance(3600)
    await end(5)
    assert (await again.of("k"))["complete"]  # what is missing would be forgotten by now


async def test_a_line_that_cannot_be_read_is_a_gap_and_stops_nothing() -> None:
    """Somebody else wrote it, or another version did: a watch leaves it out as well."""
    store = MemoryStore()
    history = History(Engine(store), HistoryWriter(store, SYSTEM, HOUR_US))
    await happen(store, line(1))
    assert (await history.of("k"))["complete"]
    await happen(store, line(2), ("lock/k", b"by hand"), line(3))
    found = await history.of("k")
    assert [hold["ownerId"] for hold in found["history"]] == ["o3", "o2", "o1"]
    assert not found["complete"]
    await happen(store, line(4))
    assert await owners(history) == ["o4", "o3", "o2", "o1"]


class _Stuck(MemoryStore):
    """Takes no commit of the history."""

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        if any(change.key == POSITION for change in changes):
            await asyncio.get_running_loop().create_future()
        assert all(change.key.startswith(("lock/", "done/", "floor/")) for change in changes)
        await super().commit(changes, log, not_after_us)


async def test_no_lock_call_waits_for_the_history_nor_carries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "CATCH_UP_S", 0.05)
    engine = Engine(_Stuck())
    await engine.start()
    api = LockApi(engine)
    history = History.over(engine, HOUR_US)
    history.start()
    async with asyncio.timeout(30):
        for _ in range(20):
            grant = await api.acquire("k", {"ownerId": "me"})
            await api.release("k", {"lockToken": grant["lockToken"]})
            await asyncio.sleep(0.01)
        await api.acquire("k", {"ownerId": "still"})
        found = await history.of("k")
    assert [hold["ownerId"] for hold in found["history"]] == ["still"]
    assert found["complete"] is False
    await history.close()
    await engine.close()


async def test_a_hold_that_ends_while_it_is_read_is_told_once() -> None:
    engine = Engine(MemoryStore())
    await engine.start()
    api = LockApi(engine)
    history = History.over(engine, HOUR_US)
    cycles = 0

    async def cycle() -> None:
        nonlocal cycles
        while True:
            grant = await api.acquire("k", {"ownerId": "me"})
            cycles += 1
            await asyncio.sleep(0)
            await api.release("k", {"lockToken": grant["lockToken"]})
            await asyncio.sleep(0)

    cycling = asyncio.ensure_future(cycle())
    while cycles < 120:
        before = cycles
        found = (await history.of("k", limit=1000))["history"]
        tokens = [hold["fencingToken"] for hold in found]
        assert len(set(tokens)) == len(tokens)
        assert len(tokens) >= before
        assert sum(hold["ending"] is None for hold in found) <= 1
        await asyncio.sleep(0)
    cycling.cancel()
    await asyncio.wait([cycling])
    await engine.close()


async def test_the_locks_of_a_session_are_told_to_the_end_of_it() -> None:
    engine = Engine(MemoryStore())
    await engine.start()
    api = LockApi(engine)
    history = History.over(engine, HOUR_US)
    session = (await api.open_session({"ownerId": "s"}))["sessionId"]
    for lock_key in ("a", "b"):
        await api.acquire(lock_key, {"sessionId": session})
        assert [hold["ending"] for hold in (await history.of(lock_key))["history"]] == [None]
    await api.end_session(session)
    for lock_key in ("a", "b"):
        async with asyncio.timeout(30):
            while not all(hold["ending"] for hold in (await history.of(lock_key))["history"]):
                await asyncio.sleep(0.02)
        (ended,) = (await history.of(lock_key))["history"]
        assert (ended["ownerId"], ended["ending"]) == ("s", "released")
    await engine.close()
