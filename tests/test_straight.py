"""The straight way of a plain lock: cheaper than the others, and with the same promises."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from fencegate.client.asks import OneLock
from fencegate.client.plain import PlainAcquisition
from fencegate.client.terms import wish_for_one
from fencegate.clock import SYSTEM, ManualClock
from fencegate.core.commands import Release
from fencegate.core.errors import LockExpired, LockHeld, OutcomeUnknown
from fencegate.core.model import Hold, Limits
from fencegate.core.ports import Change, Changes, Landed
from fencegate.testing.caller import Caller, engines
from fencegate_lockservice.api import LockApi
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.over_store import StoreApi
from fencegate_lockservice.stores.memory import MemoryStore


async def seen(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0)


LONG_OFFERS = Limits(offer_us=600_000_000)
"""A wake-up that is missed shows: no offer lapses that would heal it."""


class LateAnswers(MemoryStore):
    """A view on another store whose commits land at once, and are answered when `answers` is set. Nor does it tell of
    changes before `news` is set."""

    def __init__(self, other: MemoryStore) -> None:
        self.__dict__ = dict(other.__dict__)
        self.answers, self.news = asyncio.Event(), asyncio.Event()
        self.answers.set()
        self.news.set()
        self.landed = 0

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        async with aclosing(super().changes(since)) as stream:
            async for changes in stream:
                await self.news.wait()
                yield changes

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        await super().commit(changes, log, not_after_us)
        self.landed += 1
        await self.answers.wait()


class Telling(MemoryStore):
    """Tells of a commit by a call, outside of any task, as a server's answers come. `told` is called after that."""

    told: Callable[[], None] = staticmethod(lambda: None)

    def commit_then(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int, landed: Landed
    ) -> None:
        def tell(done: "asyncio.Task[None]") -> None:
            landed(done.exception())
            self.told()

        asyncio.ensure_future(self.commit(changes, log, not_after_us)).add_done_callback(tell)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def late(store: MemoryStore) -> LateAnswers:
    return LateAnswers(store)


@pytest.fixture
async def pair(store: MemoryStore, late: LateAnswers) -> AsyncIterator[tuple[Caller, Caller]]:
    """Two replicas; the second hears late what became of its commits, when it is told to."""
    async with engines(store, late, limits=LONG_OFFERS) as (one, two):
        yield Caller(one, "A"), Caller(two, "B")
        late.answers.set()


@pytest.mark.parametrize("listens", [True, False])
async def test_an_offer_that_comes_before_the_place_is_known_is_taken_up(
    pair: tuple[Caller, Caller], late: LateAnswers, listens: bool
) -> None:
    one, two = pair
    hold = await one.acquire("k", ttl_s=600)  # long enough for its end not to heal what was missed
    if listens:
        await one.acquire("other")
        other = asyncio.ensure_future(two.acquire("other", wait_s=60))
        await one.until_waiting("other", "B")
    late.answers.clear()
    landed = late.landed
    waiting = asyncio.ensure_future(two.acquire("k", wait_s=60))
    await seen(lambda: late.landed > landed)
    await one.engine.run(Release("k", hold.who.lock_token))
    for _ in range(20):  # so that what the change log told of this was heard
        await asyncio.sleep(0)
    late.answers.set()
    async with asyncio.timeout(30):
        assert (await waiting).token > hold.token
    if listens:
        other.cancel()
        await asyncio.wait([other])


async def test_who_leaves_before_the_place_is_known_leaves_nothing_behind(
    pair: tuple[Caller, Caller], late: LateAnswers
) -> None:
    one, two = pair
    hold = await one.acquire("k")
    late.answers.clear()
    landed = late.landed
    waiting = asyncio.ensure_future(two.acquire("k", wait_s=60))
    await seen(lambda: late.landed > landed)
    waiting.cancel()
    late.answers.set()
    await asyncio.wait([waiting])
    await seen(lambda: not two.engine._lanes.waited_for() and not len(two.engine._lanes))
    await one.engine.run(Release("k", hold.who.lock_token))
    assert (await one.acquire("k")).token > hold.token


async def test_a_request_that_is_new_no_more_is_judged_by_its_past(pair: tuple[Caller, Caller]) -> None:
    one, two = pair
    before = await one.acquire("k")
    await one.engine.run(Release("k", before.who.lock_token))
    command = replace(one.asks("k", name="named"), fresh=True)
    elsewhere = await two.engine.acquire(replace(command, replica=two.engine.replica))
    await two.engine.run(Release("k", elsewhere.who.lock_token))
    with pytest.raises(LockExpired):  # it rests on what was known, finds it changed, and looks
        await one.engine.acquire(command)


async def test_a_request_that_had_to_stand_in_line_is_judged_by_its_past(
    pair: tuple[Caller, Caller], late: LateAnswers
) -> None:
    one, two = pair
    settled = await one.acquire("k", name="named")
    await one.engine.run(Release("k", settled.who.lock_token))
    held = await two.acquire("k")
    late.answers.clear()
    releasing = two.engine._lanes.ask(Release("k", held.who.lock_token))
    behind = asyncio.ensure_future(two.engine.acquire(replace(one.asks("k", name="named"), fresh=True)))
    await asyncio.sleep(0)
    late.answers.set()
    await releasing
    with pytest.raises(LockExpired):
        await behind


@pytest.mark.parametrize("key", ["k", "a/b"])
async def test_a_request_that_lost_its_place_is_judged_by_its_past(
    pair: tuple[Caller, Caller], late: LateAnswers, key: str
) -> None:
    one, two = pair
    first = await one.acquire(key, ttl_s=600)
    late.news.clear()
    command = replace(two.asks(key, wait=True, name="named"), fresh=True)
    waiting = asyncio.ensure_future(two.engine.acquire(command, 60_000_000, 60_000_000))
    await one.until_waiting(key, "B")
    await one.engine.run(Release(key, first.who.lock_token))
    elsewhere = await one.engine.acquire(replace(command, replica=one.engine.replica, wait=False, fresh=False))
    await one.engine.run(Release(key, elsewhere.who.lock_token))
    late.news.set()
    with pytest.raises(LockExpired):
        async with asyncio.timeout(30):
            await waiting


async def test_a_store_that_does_not_answer_leaves_the_outcome_unknown(late: LateAnswers) -> None:
    async with engines(late, limits=LONG_OFFERS) as (engine,):
        caller = Caller(engine, "A")
        hold = await caller.acquire("k")
        late.answers.clear()
        with pytest.raises(OutcomeUnknown, match="no answer within"):
            await engine.release(Release("k", hold.who.lock_token), 0.05)
        with pytest.raises(OutcomeUnknown, match="no answer within"):
            await engine.acquire(caller.asks("j"), limit_s=0.05)
        late.answers.set()


async def test_both_ways_mean_the_same_request(store: MemoryStore) -> None:
    async with engines(store) as (engine,):
        api = LockApi(engine)
        straight = api.straight("k")
        hold = await straight.acquire("k", "alice", 10_000, "r-1", 0, True, 5.0)
        body = {"ownerId": "alice", "ttlMillis": 10_000, "requestId": "r-1"}
        answer = await api.acquire("k", body)
        assert (answer["lockToken"], answer["fencingToken"]) == (hold.who.lock_token, str(hold.token))
        with pytest.raises(LockHeld):
            await straight.acquire("k", "bob", 10_000, "r-2", 0, True, 5.0)
        await straight.release("k", hold.who.lock_token, "alice", 5.0)
        with pytest.raises(LockExpired):
            await straight.acquire("k", "alice", 10_000, "r-1", 0, False, 5.0)


async def test_a_lease_does_not_count_from_before_the_store_was_opened() -> None:
    clock = ManualClock(SYSTEM.now_us())
    async with engines(MemoryStore(clock)) as (engine,):
        acquisition = PlainAcquisition(OneLock("k", wish_for_one({"ttl": 1})), "alice", clock, 5.0)
        clock.advance(2)  # while the store was opened
        grant = await acquisition.run(StoreApi(engine, LockSettings()))
        assert grant.started_us == clock.monotonic_us()
        assert clock.monotonic_us() < grant.deadline_us < clock.monotonic_us() + 1_000_000


async def test_a_lease_that_is_told_of_again_has_only_what_is_left_of_it() -> None:
    clock = ManualClock(SYSTEM.now_us())
    async with engines(MemoryStore(clock)) as (engine,):
        asked = OneLock("k", wish_for_one({"ttl": 10, "request_id": "once"}))
        first = await PlainAcquisition(asked, "alice", clock, 5.0).run(StoreApi(engine, LockSettings()))
        clock.advance(6)
        again = await PlainAcquisition(asked, "alice", clock, 5.0).run(StoreApi(engine, LockSettings()))
        assert again.token == first.token
        assert again.started_us > first.started_us
        assert again.deadline_us <= first.deadline_us


async def test_who_waited_hears_before_the_one_who_let_go_goes_on(store: MemoryStore) -> None:
    async with engines(store) as (engine,):
        order: list[str] = []
        a, b = Caller(engine, "A"), Caller(engine, "B")
        hold = await a.acquire("k")

        async def wait() -> None:
            await b.acquire("k", wait_s=60)
            order.append("granted")

        async def let_go() -> None:
            await engine.run(Release("k", hold.who.lock_token))
            order.append("released")

        waiting = asyncio.ensure_future(wait())
        await a.until_waiting("k", "B")
        await asyncio.gather(waiting, let_go())
        assert order == ["granted", "released"]


@pytest.mark.parametrize("others", [False, True])
async def test_who_waited_goes_on_in_the_moment_of_the_answer_unless_others_are_at_work(others: bool) -> None:
    store = Telling()
    async with engines(store) as (engine,):
        order: list[str] = []
        a, b = Caller(engine, "A"), Caller(engine, "B")

        async def wait() -> Hold:
            got = await engine.acquire_plainly(b.asks("k", wait=True), 60_000_000, 0, 0.0)
            order.append("granted")
            return got

        async def let_go(hold: Hold) -> None:
            await engine.run(Release("k", hold.who.lock_token))
            order.append("released")

        while "told" not in order:  # when the engine begins to hear of others, it looks at the lock anew
            hold = await a.acquire("k")
            waiting = asyncio.ensure_future(wait())
            await a.until_waiting("k", "B")
            order.clear()
            store.told = lambda: order.append("told")
            busy = [a.acquire(f"other:{hold.token}")] if others else []
            await asyncio.gather(let_go(hold), *busy, waiting)
            store.told = lambda: None
            await b.release("k", waiting.result())
        if others:
            assert order[0] == "told"
            assert [word for word in order if word != "told"] == ["granted", "released"]
        else:
            assert order == ["granted", "told", "released"]
