"""What locks on special terms must do over any store, served by two replicas; `StoreSuite` brings these tests along."""

import asyncio

import pytest

from fencegate.core.commands import ForceRelease, Renew, Renewed, Revoking
from fencegate.core.errors import LockExpired, LockHeld, SessionExpired, SessionNotFound
from fencegate.core.model import Hold, Limits, Terms, members_of
from fencegate.core.ports import Store
from fencegate.engine import Engine
from fencegate.testing.caller import Caller, engines, until

PATIENT = Limits()
SHARED = Terms(shared=True)
ABOVE = Terms(hierarchical=True)


def needs_several_keys(store: Store) -> None:
    if not store.capabilities.several_keys:
        pytest.skip("this store commits single keys")


async def soon(waiting: "asyncio.Future[Hold]") -> Hold:
    async with asyncio.timeout(30):
        return await waiting


async def _is_pending(engine: Engine, lock_key: str) -> bool:
    record = (await engine.look(lock_key)).record
    return record is not None and any(hold.pending for hold in record.holds)


async def _is_empty(store: Store, prefix: str) -> bool:
    return not await store.scan(prefix, "", 1)


class TermsSuite:
    """See the head of this file. A fixture `store` gives the store to test."""

    # --- shared, permits, priority ---------------------------------------------------------------------------------

    async def test_readers_of_two_replicas_share_a_token_and_a_writer_comes_between_the_next(
        self, store: Store
    ) -> None:
        async with engines(store, store, limits=PATIENT) as (one, two):
            first = await Caller(one, "A").acquire("k", terms=SHARED)
            second = await Caller(two, "B").acquire("k", terms=SHARED)
            assert first.token == second.token
            writer = asyncio.ensure_future(Caller(two, "W").acquire("k", wait_s=30))
            await Caller(one, "A").until_waiting("k", "W")
            with pytest.raises(LockHeld):
                await Caller(one, "C").acquire("k", terms=SHARED)
            late = asyncio.ensure_future(Caller(one, "C").acquire("k", wait_s=30, terms=SHARED))
            await Caller(one, "A").until_waiting("k", "W", "C")
            await Caller(one, "A").release("k", first)
            await Caller(two, "B").release("k", second)
            wrote = await soon(writer)
            assert wrote.token > first.token
            assert not late.done()
            await Caller(two, "W").release("k", wrote)
            assert (await soon(late)).token > wrote.token

    async def test_permits_of_two_replicas_have_slots_and_tokens_of_their_own(self, store: Store) -> None:
        terms = Terms(limit=2)
        async with engines(store, store, limits=PATIENT) as (one, two):
            first = await Caller(one, "A").acquire("k", terms=terms)
            second = await Caller(two, "B").acquire("k", terms=terms)
            assert {first.slot, second.slot} == {0, 1}
            assert first.token != second.token
            waiting = asyncio.ensure_future(Caller(two, "C").acquire("k", wait_s=30, terms=terms))
            await Caller(one, "A").until_waiting("k", "C")
            await Caller(one, "A").release("k", first)
            third = await soon(waiting)
            assert third.slot == first.slot
            assert third.token > max(first.token, second.token)

    async def test_a_higher_priority_comes_first_on_whichever_replica_it_waits(self, store: Store) -> None:
        async with engines(store, store, limits=PATIENT) as (one, two):
            hold = await Caller(one, "A").acquire("k")
            low = asyncio.ensure_future(Caller(one, "low").acquire("k", wait_s=30))
            await Caller(one, "A").until_waiting("k", "low")
            high = asyncio.ensure_future(Caller(two, "high").acquire("k", wait_s=30, terms=Terms(priority=5)))
            await Caller(one, "A").until_waiting("k", "high", "low")
            await Caller(one, "A").release("k", hold)
            got = await soon(high)
            assert not low.done()
            await Caller(two, "high").release("k", got)
            await soon(low)

    async def test_lock_delay_after_a_forced_release_keeps_the_lock_closed_and_then_wakes_who_waits(
        self, store: Store
    ) -> None:
        async with engines(store, store, limits=PATIENT) as (one, two):
            await Caller(one, "A").acquire("k", terms=Terms(lock_delay_us=700_000))
            await one.run(ForceRelease("k", "stuck"))
            with pytest.raises(LockHeld):
                await Caller(two, "B").acquire("k")
            await soon(asyncio.ensure_future(Caller(two, "B").acquire("k", wait_s=30)))

    async def test_a_forced_release_with_grace_is_told_at_renewals_and_then_takes_the_lock(self, store: Store) -> None:
        async with engines(store, store, limits=PATIENT) as (one, two):
            hold = await Caller(one, "A").acquire("k", ttl_s=20)
            waiting = asyncio.ensure_future(Caller(two, "B").acquire("k", wait_s=30))
            await Caller(one, "A").until_waiting("k", "B")
            revoking = await two.run(ForceRelease("k", "deploy", 2_000_000))
            assert isinstance(revoking, Revoking)
            told = await one.run(Renew("k", hold.who.lock_token))
            assert isinstance(told, Renewed)
            assert told.revoked is not None
            assert told.revoked.reason == "deploy"
            # Without a clock of the store's, it is later by the time that the news took.
            assert 0 <= told.revoked.at_us - revoking.at_us <= (0 if store.capabilities.clock else 10_000_000)
            assert (await soon(waiting)).granted_us >= revoking.at_us
            with pytest.raises(LockExpired):
                await Caller(one, "A").renew("k", hold)

    # --- several at once -------------------------------------------------------------------------------------------

    async def test_several_locks_are_had_all_or_none_and_with_one_token(self, store: Store) -> None:
        needs_several_keys(store)
        async with engines(store, store, limits=PATIENT) as (one, two):
            hold = await Caller(one, "A").acquire("b")
            with pytest.raises(LockHeld) as refused:
                await Caller(two, "B").acquire_all("a", "b", "c")
            assert refused.value.members["lockKey"] == "b"
            free = [await Caller(one, "C").acquire(key) for key in ("a", "c")]
            for key, other in zip(("a", "c"), free, strict=True):
                await Caller(one, "C").release(key, other)
            await Caller(one, "A").release("b", hold)
            holds = await Caller(two, "B").acquire_all("a", "b", "c")
            assert {other.token for other in holds.values()} == {holds["a"].token}
            assert holds["a"].token > max(hold.token, *(other.token for other in free))
            await Caller(one, "B").release_all(holds)
            await Caller(one, "A").acquire_all("c", "a")

    async def test_as_many_locks_at_once_as_may_be_named_each_held_under_a_session_of_its_own(
        self, store: Store
    ) -> None:
        needs_several_keys(store)
        keys = [f"k{number}" for number in range(64)]
        async with engines(store, limits=PATIENT) as (engine,):
            caller = Caller(engine, "A")
            sessions = [await caller.open_session() for _ in keys]
            for key, session in zip(keys, sessions, strict=True):
                await caller.acquire(key, terms=Terms(session=session))
            with pytest.raises(LockHeld):
                await Caller(engine, "B").acquire_all(*keys, name="too soon")
            await asyncio.gather(*(caller.end_session(session) for session in sessions))
            await caller.release_all(await caller.acquire_all(*keys, name="now"))

    async def test_who_waits_for_several_locks_which_are_but_one_gets_it(self, store: Store) -> None:
        needs_several_keys(store)
        async with engines(store, store, limits=PATIENT) as (one, two):
            hold = await Caller(one, "A").acquire("a")
            waits = [asyncio.ensure_future(Caller(at, "B").acquire_all("a", wait_s=60)) for at in (one, two)]
            await Caller(one, "A").until_waiting("a", "B", "B")
            await Caller(one, "A").release("a", hold)
            async with asyncio.timeout(30):
                for _ in waits:
                    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    waits = [waiting for waiting in waits if waiting not in done]
                    await Caller(two, "B").release_all(done.pop().result())

    async def test_crowds_who_want_several_locks_in_any_order_never_deadlock_and_never_overlap(
        self, store: Store
    ) -> None:
        needs_several_keys(store)
        inside: set[str] = set()
        wanted = (("a", "b"), ("b", "a"), ("b", "c"), ("c", "a"), ("a", "b", "c"), ("c",))

        async def work(caller: Caller, keys: tuple[str, ...]) -> None:
            for _ in range(3):
                if len(keys) == 1:
                    holds = {keys[0]: await caller.acquire(keys[0], wait_s=60)}
                else:
                    holds = await caller.acquire_all(*keys, wait_s=60)
                assert not inside & set(keys)
                inside.update(keys)
                await asyncio.sleep(0)
                inside.difference_update(keys)
                await caller.release_all(holds)

        async with engines(store, store, limits=PATIENT) as replicas, asyncio.timeout(60):
            await asyncio.gather(
                *(work(Caller(replicas[number % 2], f"owner-{number}"), keys) for number, keys in enumerate(wanted))
            )

    async def test_who_waits_for_several_locks_is_offered_them_when_the_last_comes_free_on_another_replica(
        self, store: Store
    ) -> None:
        needs_several_keys(store)
        async with engines(store, store, limits=PATIENT) as (one, two):
            holds = {key: await Caller(one, "A").acquire(key) for key in ("a", "b")}
            waiting = asyncio.ensure_future(Caller(two, "B").acquire_all("a", "b", wait_s=30))
            await Caller(one, "A").until_waiting("a", "B")
            behind = asyncio.ensure_future(Caller(one, "C").acquire("a", wait_s=30))
            await Caller(one, "A").until_waiting("a", "B", "C")
            await Caller(one, "A").release("a", holds["a"])
            await Caller(one, "A").release("b", holds["b"])
            async with asyncio.timeout(30):
                got = await waiting
            assert got["a"].token > max(hold.token for hold in holds.values())
            assert not behind.done()
            await Caller(two, "B").release_all(got)
            await soon(behind)

    async def test_a_cancelled_wait_for_several_locks_leaves_no_place_behind(self, store: Store) -> None:
        needs_several_keys(store)
        async with engines(store, store, limits=PATIENT) as (one, two):
            hold = await Caller(one, "A").acquire("a")
            waiting = asyncio.ensure_future(Caller(two, "B").acquire_all("a", "b", wait_s=30))
            await Caller(one, "A").until_waiting("b", "B")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await Caller(one, "A").until_waiting("b")
            await Caller(one, "A").until_waiting("a")
            await Caller(one, "C").acquire("b")
            await Caller(one, "A").release("a", hold)

    # --- hierarchy -------------------------------------------------------------------------------------------------

    async def test_a_lock_with_everything_below_it_keeps_those_below_out_and_is_kept_out_by_them(
        self, store: Store
    ) -> None:
        needs_several_keys(store)
        async with engines(store, store, limits=PATIENT) as (one, two):
            below = await Caller(two, "B").acquire("a/b/c")
            with pytest.raises(LockHeld):
                await Caller(one, "A").acquire("a/b", terms=ABOVE)
            beside = await Caller(two, "C").acquire("a/bc")  # a refused try leaves nothing behind
            other = await Caller(two, "C").acquire("a/b/d")
            await Caller(two, "C").release("a/b/d", other)
            await Caller(two, "B").release("a/b/c", below)
            above = await Caller(one, "A").acquire("a/b", terms=ABOVE)
            assert above.token > max(below.token, other.token)
            for key, terms in (("a/b/c", None), ("a/b/x/y", ABOVE), ("a", ABOVE), ("a/b", None)):
                with pytest.raises(LockHeld):
                    await Caller(two, "D").acquire(key, terms=terms)
            await Caller(one, "A").release("a/b", above)
            assert (await Caller(two, "D").acquire("a/b/c")).token > above.token
            await Caller(two, "C").release("a/bc", beside)

    async def test_who_waits_above_is_woken_from_below_and_who_waits_below_from_above(self, store: Store) -> None:
        needs_several_keys(store)
        async with engines(store, store, limits=PATIENT) as (one, two):
            below = await Caller(two, "B").acquire("a/b")
            waiting = asyncio.ensure_future(Caller(one, "A").acquire("a", wait_s=30, terms=ABOVE))
            await until(lambda: _is_pending(one, "a"))
            late = asyncio.ensure_future(Caller(two, "C").acquire("a/c", wait_s=30))
            await Caller(one, "A").until_waiting("a/c", "C")  # nobody new gets in while the one above waits
            await Caller(two, "B").release("a/b", below)
            above = await soon(waiting)
            assert above.token > below.token
            assert not late.done()
            await Caller(one, "A").release("a", above)
            assert (await soon(late)).token > above.token

    # --- sessions --------------------------------------------------------------------------------------------------

    async def test_locks_live_as_long_as_their_session_and_go_with_it(self, store: Store) -> None:
        needs_several_keys(store)
        async with engines(store, store, limits=PATIENT) as (one, two):
            caller = Caller(one, "A")
            session = await caller.open_session(ttl_s=20)
            terms = Terms(session=session)
            holds = [await caller.acquire(f"k{number}", ttl_s=1, terms=terms) for number in range(3)]
            waiting = asyncio.ensure_future(Caller(two, "B").acquire("k0", wait_s=30))
            await caller.until_waiting("k0", "B")
            assert (await Caller(two, "A").renew_session(session)).renewals == 1
            await Caller(two, "A").release("k1", holds[1])
            assert len(await store.scan(members_of(session), "", 10)) == 2
            await Caller(two, "A").end_session(session)
            assert (await soon(waiting)).token > holds[0].token
            await Caller(two, "B").acquire("k2")
            assert len(await store.scan(members_of(session), "", 10)) == 0
            with pytest.raises(SessionExpired):
                await caller.acquire("k3", terms=terms)
            with pytest.raises(SessionExpired):
                await caller.renew_session(session)
            with pytest.raises(SessionNotFound):
                await caller.acquire("k3", terms=Terms(session="nobody"))

    async def test_a_session_that_runs_out_frees_its_locks_and_places_though_its_replica_is_gone(
        self, store: Store
    ) -> None:
        needs_several_keys(store)
        async with engines(store, limits=PATIENT) as (two,):
            async with engines(store, limits=PATIENT) as (one,):
                session = await Caller(one, "A").open_session(ttl_s=1.5)
                holds = [
                    await Caller(one, "A").acquire(f"k{number}", terms=Terms(session=session)) for number in range(3)
                ]
            waits = [asyncio.ensure_future(Caller(two, "B").acquire(f"k{number}", wait_s=30)) for number in range(3)]
            got = [await soon(waiting) for waiting in waits]
            assert all(new.token > old.token for new, old in zip(got, holds, strict=True))
            assert min(hold.granted_us for hold in got) >= holds[0].expires_us
            await until(lambda: _is_empty(store, members_of(session)))
