"""Sessions, groups and hierarchies when things go wrong: nobody is told wrong, and after it all is well."""

import asyncio
import contextlib
import logging

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.commands import Renew, RenewAll
from fencegate.core.errors import (
    FencegateError,
    LockHeld,
    OutcomeUnknown,
    SessionExpired,
    SessionNotFound,
    StoreUnavailable,
)
from fencegate.core.model import Hold, Limits, Terms, members_of
from fencegate.engine import Engine
from fencegate.testing.caller import QUICK, Caller, engines, until
from fencegate.testing.faulty_store import CALM, GONE, Faults, FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore

PATIENT = Limits()
ABOVE = Terms(hierarchical=True)
STORM = Faults(
    unavailable=0.02, lost=0.02, unheard=0.04, late=0.02, conflict=0.04, broken_stream=0.04, max_delay_s=0.003
)
KEYS = ("t", "t/a", "t/a/b", "t/c")
ENOUGH = 10
"""So many grants at least. A lock whose release was lost is free when its lease is over: most of a storm."""


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def conflict(one: tuple[str, Hold], other: tuple[str, Hold]) -> bool:
    """Whether these two must not be held at once."""
    for (key, hold), (other_key, _) in ((one, other), (other, one)):
        if key == other_key or (other_key.startswith(f"{key}/") and hold.who.terms.hierarchical):
            return True
    return False


class Crowd:
    """Callers who take locks of one tree on all kinds of terms while everything fails, and what they saw."""

    def __init__(self) -> None:
        self.inside: list[tuple[str, Hold]] = []
        self.grants = 0
        self.tokens: dict[str, list[int]] = {key: [] for key in KEYS}

    async def work(self, caller: Caller, number: int, until_us: int) -> None:
        turn = number
        while SYSTEM.monotonic_us() < until_us or self.grants <= ENOUGH:
            turn += 1
            with contextlib.suppress(LockHeld, StoreUnavailable, OutcomeUnknown, SessionExpired, SessionNotFound):
                await self.take(caller, turn)

    async def take(self, caller: Caller, turn: int) -> None:
        kind = turn % 4
        session = ""
        if kind == 3:
            session = await caller.open_session(ttl_s=1)
        if kind == 0:
            holds = {KEYS[turn % 2]: await caller.acquire(KEYS[turn % 2], ttl_s=1, wait_s=0.3, terms=ABOVE)}
        elif kind == 1:
            holds = await caller.acquire_all("t/a", KEYS[2 + turn % 2], ttl_s=1, wait_s=0.3)
        else:
            key = KEYS[turn % 4]
            terms = Terms(session=session) if session else None
            holds = {key: await caller.acquire(key, ttl_s=1, wait_s=0.3, terms=terms)}
        self.enter(holds)
        await asyncio.sleep(0.002)
        self.leave(holds)
        with contextlib.suppress(FencegateError):
            if session:
                await caller.end_session(session)
            else:
                await caller.release_all(holds)

    def enter(self, holds: dict[str, Hold]) -> None:
        now_us = SYSTEM.now_us()
        self.inside = [(key, hold) for key, hold in self.inside if hold.expires_us > now_us]
        for mine in holds.items():
            key, hold = mine
            if hold.expires_us > now_us:
                for other in self.inside:
                    assert not conflict(mine, other), f"two at once: {mine} and {other}"
            assert hold.token not in self.tokens[key], "a token was given out twice"
            self.tokens[key].append(hold.token)
        self.inside += holds.items()
        self.grants += 1

    def leave(self, holds: dict[str, Hold]) -> None:
        mine = {hold.who.lock_token for hold in holds.values()}
        self.inside = [(key, hold) for key, hold in self.inside if hold.who.lock_token not in mine]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_in_a_storm_nobody_conflicts_above_below_or_in_a_group_and_after_it_all_is_well(
    store: MemoryStore, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "fencegate")
    stores = [FaultyStore(store, seed * 10 + number, STORM) for number in range(2)]
    crowd = Crowd()
    async with engines(*stores, limits=QUICK) as replicas:
        until_us = SYSTEM.monotonic_us() + 2_500_000
        callers = [Caller(replicas[number % 2], f"owner-{number}") for number in range(8)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(crowd.work(caller, number, until_us) for number, caller in enumerate(callers)))
        for one in stores:
            one.faults = CALM
        before = max(token for tokens in crowd.tokens.values() for token in tokens)
        async with asyncio.timeout(60):
            last = await callers[0].acquire("t", wait_s=50, terms=ABOVE)
            assert last.token > before
            await callers[0].release("t", last)
            await callers[1].release_all(await callers[1].acquire_all(*KEYS, wait_s=50))
        await until(lambda: no_members(store))
    for one in stores:
        await one.close()


async def no_members(store: MemoryStore) -> bool:
    return not await store.scan("member/", "", 1)


async def test_a_replica_that_dies_with_waiters_for_several_locks_costs_one_offer(store: MemoryStore) -> None:
    doomed = FaultyStore(store)
    async with engines(store, doomed, limits=QUICK) as (one, two):
        holder = Caller(one, "A")
        hold = await holder.acquire("a")
        dead = asyncio.ensure_future(Caller(two, "dead").acquire_all("a", "b", wait_s=60))
        await holder.until_waiting("b", "dead")
        waiting = asyncio.ensure_future(Caller(one, "B").acquire("b", wait_s=60))
        await holder.until_waiting("b", "dead", "B")
        doomed.faults = GONE
        await holder.release("a", hold)
        async with asyncio.timeout(30):
            await waiting
        dead.cancel()
        await asyncio.gather(dead, return_exceptions=True)


async def test_a_pending_lock_of_a_dead_replica_keeps_those_below_out_for_a_moment_only(store: MemoryStore) -> None:
    doomed = FaultyStore(store)
    async with engines(store, doomed, limits=QUICK) as (one, two):
        below = await Caller(one, "A").acquire("a/b")
        above = asyncio.ensure_future(Caller(two, "dead").acquire("a", wait_s=60, terms=ABOVE))
        await until(lambda: is_pending(one, "a"))
        doomed.faults = GONE
        async with asyncio.timeout(30):
            await Caller(one, "B").acquire("a/c", wait_s=25)
        above.cancel()
        await asyncio.gather(above, return_exceptions=True)
        await Caller(one, "A").release("a/b", below)


async def is_pending(engine: Engine, lock_key: str) -> bool:
    record = (await engine.look(lock_key)).record
    return record is not None and any(hold.pending for hold in record.holds)


async def test_a_renewal_is_not_held_up_by_a_crowd_who_ask_for_several_locks(store: MemoryStore) -> None:
    slow = FaultyStore(store, faults=Faults(max_delay_s=0.02))
    async with engines(slow, limits=PATIENT) as (engine,):
        caller = Caller(engine, "A")
        holds = await caller.acquire_all("a", "b")
        crowd = [
            asyncio.ensure_future(Caller(engine, f"owner-{number}").acquire_all("a", "b", wait_s=60))
            for number in range(100)
        ]
        await asyncio.sleep(0)
        await engine.run(Renew("a", holds["a"].who.lock_token))
        assert sum(waiting.done() for waiting in crowd) == 0
        assert len(await caller.waiters("a")) < 20  # it came through between two of them, and not behind them all
        await engine.run(RenewAll(tuple(Renew(key, hold.who.lock_token) for key, hold in sorted(holds.items()))))
        for waiting in crowd:
            waiting.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)


async def test_a_session_whose_end_could_not_be_tidied_up_is_tidied_up_later(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    async with engines(faulty, limits=PATIENT) as (engine,):
        caller = Caller(engine, "A")
        session = await caller.open_session(ttl_s=1)
        await caller.acquire("k", terms=Terms(session=session))
        faulty.faults = GONE
        await asyncio.sleep(1.2)
        faulty.faults = CALM
        await until(lambda: gone(store, members_of(session)))
        await caller.acquire("k")


async def gone(store: MemoryStore, prefix: str) -> bool:
    return not await store.scan(prefix, "", 1)
