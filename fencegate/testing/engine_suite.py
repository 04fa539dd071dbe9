"""What the lock engine must do over any store; `StoreSuite` brings these tests along."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.commands import Release
from fencegate.core.errors import LockExpired, LockHeld, NotOwner
from fencegate.core.model import Hold, Limits, LockRecord, lock_entry
from fencegate.core.ports import Change, Store
from fencegate.engine import tending
from fencegate.engine.codec import decode, encode
from fencegate.testing.caller import QUICK, Caller, engines, until
from fencegate.testing.committing import by
from fencegate.testing.faulty_store import GONE, FaultyStore

PATIENT = Limits()


def is_same(one: Hold, other: Hold) -> bool:
    """Whether these are the same lease. (Its times may be told by two clocks.)"""
    return (one.who, one.token, one.slot) == (other.who, other.token, other.slot)


class EngineSuite:
    """Rules of locking, as tests. A fixture `store` gives the store to test."""

    # --- exclusion and order ---------------------------------------------------------------------------------------

    async def test_two_replicas_never_give_a_lock_to_two_and_tokens_rise(self, store: Store) -> None:
        inside: list[str] = []
        tokens: list[int] = []

        async def work(caller: Caller) -> None:
            for _ in range(6):
                hold = await caller.acquire("k", wait_s=20)
                inside.append(caller.owner_id)
                tokens.append(hold.token)
                assert inside == [caller.owner_id]
                await asyncio.sleep(0)
                inside.remove(caller.owner_id)
                assert await caller.release("k", hold) == 0

        async with engines(store, store, limits=PATIENT) as replicas:
            await asyncio.gather(*(work(Caller(replicas[number % 2], f"owner-{number}")) for number in range(8)))
        assert len(tokens) == 48
        assert tokens == sorted(set(tokens))

    async def test_waiters_of_two_replicas_are_served_in_the_order_in_which_they_came(self, store: Store) -> None:
        served: list[str] = []

        async def work(caller: Caller) -> None:
            hold = await caller.acquire("k", wait_s=20)
            served.append(caller.owner_id)
            await caller.release("k", hold)

        async with engines(store, store, limits=PATIENT) as replicas:
            first = Caller(replicas[0], "first")
            hold = await first.acquire("k")
            names: list[str] = []
            works = []
            for number in range(6):
                names.append(f"owner-{number}")
                works.append(asyncio.ensure_future(work(Caller(replicas[number % 2], names[-1]))))
                await first.until_waiting("k", *names)
            await first.release("k", hold)
            await asyncio.gather(*works)
        assert served == names

    async def test_locks_of_different_keys_do_not_wait_for_each_other(self, store: Store) -> None:
        async with engines(store) as (engine,):
            caller = Caller(engine, "A")
            holds = await asyncio.gather(*(caller.acquire(f"k{number}") for number in range(50)))
            await asyncio.gather(*(caller.release(f"k{number}", hold) for number, hold in enumerate(holds)))

    async def test_a_lock_of_one_replica_is_renewed_and_released_through_another(self, store: Store) -> None:
        async with engines(store, store) as (one, two):
            hold = await Caller(one, "A").acquire("k", ttl_s=5)
            longer = await Caller(two, "A").renew("k", hold, 60)
            assert (longer.token, longer.renewals) == (hold.token, 1)
            assert longer.expires_us > hold.expires_us
            with pytest.raises(LockHeld):
                await Caller(two, "B").acquire("k")
            with pytest.raises(NotOwner):
                await Caller(two, "B").release("k", hold)
            assert await Caller(two, "A").release("k", hold) == 0
            assert await Caller(one, "A").release("k", hold) == 0  # a repeat gets the first answer
            with pytest.raises(LockExpired):
                await Caller(one, "A").renew("k", hold)
            assert (await Caller(one, "B").acquire("k")).token > hold.token

    async def test_a_repeated_request_gets_the_same_lock_from_any_replica_and_never_a_second_one(
        self, store: Store
    ) -> None:
        async with engines(store, store) as (one, two):
            hold = await Caller(one, "A").acquire("k", name="r1")
            assert is_same(await Caller(two, "A").acquire("k", name="r1"), hold)
            await Caller(two, "A").release("k", hold)
            for engine in (one, two):
                with pytest.raises(LockExpired):
                    await Caller(engine, "A").acquire("k", name="r1")

    # --- waiting ---------------------------------------------------------------------------------------------------

    async def test_a_release_on_one_replica_wakes_the_waiter_of_the_other_at_once_and_only_that_one(
        self, store: Store
    ) -> None:
        counted = FaultyStore(store)
        async with engines(counted, counted, limits=PATIENT) as (one, two):
            holder, waiter, other = Caller(one, "A"), Caller(two, "B"), Caller(two, "C")
            hold = await holder.acquire("k", ttl_s=60)
            waiting = asyncio.ensure_future(waiter.acquire("k", wait_s=60, ttl_s=60))
            await holder.until_waiting("k", "B")
            behind = asyncio.ensure_future(other.acquire("k", wait_s=60, ttl_s=60))
            await holder.until_waiting("k", "B", "C")
            before, start_us = counted.commits, SYSTEM.monotonic_us()
            await holder.release("k", hold)
            got = await waiting
            assert SYSTEM.monotonic_us() - start_us < 15_000_000  # the hold would have lasted for a minute
            assert got.token > hold.token
            assert counted.commits - before <= 3
            assert not behind.done()
            await waiter.release("k", got)
            await other.release("k", await behind)

    async def test_a_lease_that_runs_out_wakes_the_waiter_without_any_polling(self, store: Store) -> None:
        counted = FaultyStore(store)
        async with engines(counted, counted, limits=PATIENT) as (one, two):
            start_us = SYSTEM.monotonic_us()
            hold = await Caller(one, "A").acquire("k", ttl_s=3)
            waiting = asyncio.ensure_future(Caller(two, "B").acquire("k", wait_s=60))
            await Caller(one, "A").until_waiting("k", "B")
            async with aclosing(store.changes(None)) as stream:
                await anext(stream)  # by now both replicas were told of all that was committed
            await asyncio.sleep(0.1)
            before = counted.loads + counted.commits
            await asyncio.sleep(0.5)
            assert counted.loads + counted.commits - before <= 2  # news that came late may bring a look each
            got = await waiting
            assert 3_000_000 <= SYSTEM.monotonic_us() - start_us < 30_000_000
            assert got.token > hold.token
            with pytest.raises(LockExpired):
                await Caller(one, "A").release("k", hold)

    async def test_a_replica_that_dies_with_its_waiters_costs_one_offer(self, store: Store) -> None:
        doomed = FaultyStore(store)
        limits = replace(QUICK, offer_us=2_000_000, suspect_us=60_000_000)
        async with engines(store, doomed, limits=limits) as (one, two):
            holder = Caller(one, "A")
            hold = await holder.acquire("k", ttl_s=60)
            dead = []
            names: list[str] = []
            for number in range(6):
                names.append(f"dead-{number}")
                dead.append(asyncio.ensure_future(Caller(two, names[-1]).acquire("k", wait_s=60)))
                await holder.until_waiting("k", *names)
            waiting = asyncio.ensure_future(Caller(one, "B").acquire("k", wait_s=60))
            await holder.until_waiting("k", *names, "B")
            doomed.faults = GONE
            start_us = SYSTEM.monotonic_us()
            await holder.release("k", hold)
            assert (await waiting).token > hold.token
            assert SYSTEM.monotonic_us() - start_us < 5 * limits.offer_us  # and not one for each of them
            for waiter in dead:
                waiter.cancel()
            await asyncio.gather(*dead, return_exceptions=True)

    async def test_a_cancelled_wait_leaves_no_place_behind(self, store: Store) -> None:
        async with engines(store, store, limits=PATIENT) as (one, two):
            holder = Caller(one, "A")
            hold = await holder.acquire("k")
            waiting = asyncio.ensure_future(Caller(two, "B").acquire("k", wait_s=20))
            await holder.until_waiting("k", "B")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await holder.until_waiting("k")
            await holder.release("k", hold)
            await holder.acquire("k")

    async def test_a_wait_that_is_cancelled_as_it_succeeds_leaves_no_lock_behind(self, store: Store) -> None:
        async with engines(store, store, limits=PATIENT) as (one, two):
            holder, other = Caller(one, "A"), Caller(two, "B")
            for turn in range(8):
                hold = await holder.acquire("k", wait_s=30, ttl_s=60)
                waiting = asyncio.ensure_future(other.acquire("k", wait_s=60, ttl_s=60))
                await holder.until_waiting("k", "B")
                releasing = asyncio.ensure_future(holder.release("k", hold))
                for _ in range(turn):
                    await asyncio.sleep(0)
                waiting.cancel()
                (got,) = await asyncio.gather(waiting, return_exceptions=True)
                await releasing
                if isinstance(got, Hold):
                    await other.release("k", got)
            await holder.acquire("k", wait_s=30)

    async def test_a_wait_that_ends_is_refused_and_keeps_its_place_only_when_it_has_a_name(self, store: Store) -> None:
        async with engines(store, store, limits=PATIENT) as (one, two):
            holder = Caller(one, "A")
            hold = await holder.acquire("k", ttl_s=60)
            with pytest.raises(LockHeld) as refused:
                await Caller(two, "B").acquire("k", wait_s=0.05)
            assert refused.value.members["currentOwner"] == "A"
            await holder.until_waiting("k")
            with pytest.raises(LockHeld):
                await Caller(two, "C").acquire("k", wait_s=0.05, name="c1")
            await holder.until_waiting("k", "C")
            behind = asyncio.ensure_future(Caller(one, "D").acquire("k", wait_s=60))
            await holder.until_waiting("k", "C", "D")
            back = asyncio.ensure_future(Caller(one, "C").acquire("k", wait_s=60, name="c1"))

            async def stands_again() -> bool:
                record = (await one.look("k")).record
                return record is not None and bool(record.queue[0].attempts)

            await until(stands_again)
            await holder.release("k", hold)
            got = await back
            assert not behind.done()
            await Caller(one, "C").release("k", got)
            assert (await behind).token > got.token

    async def test_polls_of_one_request_stand_side_by_side_and_get_the_same_lock(self, store: Store) -> None:
        async with engines(store, store, limits=PATIENT) as (one, two):
            holder = Caller(one, "A")
            hold = await holder.acquire("k")
            polls: list[asyncio.Future[Hold]] = []

            async def stand(count: int) -> bool:
                record = (await one.look("k")).record
                return record is not None and [len(waiter.attempts) for waiter in record.queue] == [count]

            for engine in (one, two, two):
                polls.append(asyncio.ensure_future(Caller(engine, "B").acquire("k", wait_s=60, name="b1")))
                await until(partial(stand, len(polls)))
            assert await holder.waiters("k") == ["B"]
            polls[1].cancel()
            await asyncio.gather(polls[1], return_exceptions=True)
            await until(partial(stand, 2))
            assert await holder.waiters("k") == ["B"]
            await holder.release("k", hold)
            async with asyncio.timeout(30):
                assert is_same(await polls[0], await polls[2])

    # --- folding ---------------------------------------------------------------------------------------------------

    async def test_a_hundred_callers_at_one_lock_need_few_commits(self, store: Store) -> None:
        counted = FaultyStore(store)
        async with engines(counted, limits=PATIENT) as (engine,):
            holds: list[Hold] = []

            async def work(caller: Caller) -> None:
                hold = await caller.acquire("k", wait_s=20)
                holds.append(hold)
                await caller.release("k", hold)

            first = Caller(engine, "first")
            hold = await first.acquire("k")
            names = [f"owner-{number}" for number in range(100)]
            works = [asyncio.ensure_future(work(Caller(engine, name))) for name in names]
            await first.until_waiting("k", *names)
            assert counted.commits <= 5
            await first.release("k", hold)
            await asyncio.gather(*works)
            assert counted.commits <= 110  # a release hands over and is taken up in one commit
        tokens = [hold.token for hold in holds]
        assert tokens == sorted(set(tokens))

    async def test_refusals_rest_on_a_fresh_look_and_not_on_what_was_known(self, store: Store) -> None:
        async with engines(store, store) as (one, two):
            holder, other = Caller(one, "A"), Caller(two, "B")
            hold = await holder.acquire("k")
            with pytest.raises(LockHeld):
                await other.acquire("k")
            await holder.release("k", hold)
            got = await other.acquire("k")  # the second replica still knew it as held
            with pytest.raises(LockHeld):
                await holder.acquire("k")  # the first one still knew it as free
            await other.release("k", got)

    @pytest.mark.parametrize("lock_token", ["above/below.secret", "\0.secret", "\U0001d11e" * 255])
    async def test_a_lock_token_that_nobody_was_given_harms_nobody_who_asks_at_the_same_time(
        self, store: Store, lock_token: str
    ) -> None:
        """What became of it would be kept under a name that some stores can't take, or not beside the lock."""
        lock_key = "k" * 1024
        async with engines(store) as (engine,):
            caller = Caller(engine, "A")
            hold = await caller.acquire(lock_key)
            first = asyncio.ensure_future(caller.renew(lock_key, hold))
            await asyncio.sleep(0)  # it is under way, so that the next two go together
            release = asyncio.ensure_future(engine.run(Release(lock_key, lock_token)))
            results = await asyncio.gather(first, caller.renew(lock_key, hold), release, return_exceptions=True)
            assert [type(result) for result in results] == [Hold, Hold, NotOwner]

    # --- records that nobody uses -----------------------------------------------------------------------------------

    async def test_idle_records_are_forgotten_while_others_are_used_and_no_token_comes_back(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The last token lies ahead of every clock, so that only the floor of its shard can keep it."""
        monkeypatch.setattr(tending, "SWEEP_EVERY_S", 0.05)
        monkeypatch.setattr(tending, "SWEEP_PAUSE_S", 0.05)
        idle = [f"idle-{number}" for number in range(40)]
        async with engines(store, limits=PATIENT) as (engine,):
            caller = Caller(engine, "A")
            for lock_key in idle:
                await caller.release(lock_key, await caller.acquire(lock_key))
        ahead = SYSTEM.now_us() + 3_600_000_000
        entry = lock_entry(idle[0])
        found = (await store.load([entry]))[entry]
        record = decode(entry, found.value).record
        assert isinstance(record, LockRecord)
        value = encode(replace(record, last_token=ahead))
        await store.commit([Change(entry, found.version, SYSTEM.random_id(), value)], [], by(store))
        limits = replace(PATIENT, idle_us=20_000)
        async with engines(store, store, limits=limits) as replicas:
            one, two = (Caller(replica, f"owner-{number}") for number, replica in enumerate(replicas))
            held = await one.acquire("held", ttl_s=600)
            if not store.capabilities.forgets:
                await asyncio.sleep(0.5)
                assert len(await store.load([lock_entry(lock_key) for lock_key in idle])) == len(idle)
            else:
                async with asyncio.timeout(60):
                    tokens = [0]
                    while await store.load([lock_entry(lock_key) for lock_key in idle]):
                        for caller in (one, two):  # it comes and goes meanwhile
                            hold = await caller.acquire("used")
                            tokens.append(hold.token)
                            await caller.release("used", hold)
                        await asyncio.sleep(0.01)
                assert tokens == sorted(set(tokens))
            assert (await two.acquire(idle[0])).token > ahead
            assert (await one.renew("held", held)).token == held.token

    # --- across a restart ------------------------------------------------------------------------------------------

    async def test_locks_survive_a_restart_and_tokens_go_on_rising(
        self, store: Store, open_store: Callable[[], Awaitable[Store]]
    ) -> None:
        if not store.capabilities.durable:
            pytest.skip("this store is not durable")
        async with engines(store) as (engine,):
            held = await Caller(engine, "A").acquire("held")
            freed = await Caller(engine, "A").acquire("freed")
            await Caller(engine, "A").release("freed", freed)
        await store.close()
        again = await open_store()
        async with engines(again) as (engine,):
            with pytest.raises(LockHeld):
                await Caller(engine, "B").acquire("held")
            assert (await Caller(engine, "A").renew("held", held)).token == held.token
            assert await Caller(engine, "A").release("freed", freed) == 0
            assert (await Caller(engine, "B").acquire("freed")).token > freed.token
        await again.close()
