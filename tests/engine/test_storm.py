"""All faults at once: nobody is told wrong, and after it all is well."""

import asyncio
import contextlib
import logging

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import FencegateError, LockHeld, OutcomeUnknown, StoreUnavailable
from fencegate.core.model import lock_entry
from fencegate.engine.codec import decode
from fencegate.testing.caller import Caller, engines
from fencegate.testing.faulty_store import CALM, Faults, FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore

STORM = Faults(
    unavailable=0.03, lost=0.03, unheard=0.05, late=0.03, conflict=0.05, broken_stream=0.05, max_delay_s=0.004
)


class Crowd:
    """Callers who take one lock in turn while everything fails, and what they saw."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.inside: dict[str, int] = {}
        self.tokens: list[int] = []

    async def work(self, caller: Caller, until_us: int) -> None:
        while SYSTEM.monotonic_us() < until_us:
            await self.turn(caller)

    async def turn(self, caller: Caller) -> None:
        command = caller.asks("k", ttl_s=1, wait=True)
        try:
            hold = await caller.engine.acquire(command, 300_000)
        except LockHeld:
            assert command.who.request not in await self.holders(), "told that it has not what it has"
            return
        except (StoreUnavailable, OutcomeUnknown):
            return
        now_us = SYSTEM.now_us()
        if hold.expires_us > now_us:
            self.inside = {owner: until for owner, until in self.inside.items() if until > now_us}
            assert not self.inside, "two at once"
            there = command.who.request in await self.holders()
            assert there or hold.expires_us <= SYSTEM.now_us(), "told that it has what it has not"
            self.inside[caller.owner_id] = hold.expires_us
        self.tokens.append(hold.token)
        await asyncio.sleep(0.002)
        self.inside.pop(caller.owner_id, None)
        with contextlib.suppress(FencegateError):
            await caller.release("k", hold)

    async def holders(self) -> list[str]:
        entry = lock_entry("k")
        found = (await self.store.load([entry])).get(entry)
        record = decode(entry, found.value)[0] if found is not None else None
        now_us = SYSTEM.now_us()
        return [hold.who.request for hold in getattr(record, "holds", ()) if hold.expires_us > now_us]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_in_a_storm_of_faults_nobody_is_told_wrong_and_after_it_all_is_well(
    store: MemoryStore, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "fencegate")
    stores = [FaultyStore(store, seed * 10 + number, STORM) for number in range(2)]
    crowd = Crowd(store)
    async with engines(*stores) as replicas:
        until_us = SYSTEM.monotonic_us() + 2_000_000
        callers = [Caller(replicas[number % 2], f"owner-{number}") for number in range(6)]
        await asyncio.gather(*(crowd.work(caller, until_us) for caller in callers))
        assert crowd.tokens
        assert len(crowd.tokens) == len(set(crowd.tokens)), "a token was given out twice"
        for one in stores:
            one.faults = CALM
        before = len(crowd.tokens)
        holds = []
        async with asyncio.timeout(60):
            for caller in callers:
                holds.append(await caller.acquire("k", wait_s=30, ttl_s=30))
                await caller.release("k", holds[-1])
        assert [hold.token for hold in holds] == sorted(hold.token for hold in holds)
        assert min(hold.token for hold in holds) > max(crowd.tokens[:before])
    for one in stores:
        await one.close()
