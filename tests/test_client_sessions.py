"""Sessions: one keep-alive for any number of leases, which live and die with it; with a server and without."""

import asyncio
import logging
import signal

import pytest

from fencegate import InvalidInput, LeaseState, LockHeld, LockLost, Locks, SessionExpired, connect, sync
from fencegate.client.grant import granted
from fencegate.client.lease import LeaseCore
from fencegate.client.session import Opened, SessionCore
from fencegate.clock import ManualClock
from tests.eventually import eventually, eventually_sync
from tests.servers import Server
from tests.test_client_process import in_fork
from tests.test_client_time import LossyNetwork

HELD, SUSPENDED, LOST, RELEASED = LeaseState.HELD, LeaseState.SUSPENDED, LeaseState.LOST, LeaseState.RELEASED


@pytest.fixture(params=["http", "memory"])
def url(request: pytest.FixtureRequest) -> str:
    """A server, whose store is SQLite; and a store in memory, without one."""
    return str(request.getfixturevalue("server").url) if request.param == "http" else "memory://sessions"


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"sessions:{request.node.name}"


async def test_the_locks_of_a_session_are_held_until_it_ends(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.session(ttl=30) as session:
        one = await session.hold(f"{key}/1").acquire()
        two = await locks.hold(f"{key}/2", session=session)
        async with session.hold(f"{key}/3") as three:
            assert {lease.owner_id for lease in (one, two, three)} == {session.owner_id} == {locks.owner_id}
            with pytest.raises(LockHeld):
                await rival.hold(f"{key}/3").acquire()
        assert three.state is RELEASED
        async with rival.hold(f"{key}/3"):  # released by itself, while the session goes on
            one.ensure_held()
        assert session.session_id not in repr(session)
    assert (session.state, one.state, two.state) == (RELEASED, RELEASED, RELEASED)
    assert not one.lost.is_set()
    with pytest.raises(LockLost, match="session"):
        one.ensure_held()
    await one.release()  # nothing is left to do
    async with rival.hold(f"{key}/1", wait=20) as later:
        assert later.token > one.token


async def test_one_renewal_carries_all_leases(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.session(ttl=6) as session:
        leases = [await session.hold(f"{key}/{number}").acquire() for number in range(5)]
        assert locks._connection.kept() == [session]
        ends = [(await rival.status(lease.lock_key))["expiresAt"] for lease in leases]
        begun_us = session._started_us
        await eventually(lambda: session._started_us > begun_us)
        for lease, end in zip(leases, ends, strict=True):
            lease.ensure_held()
            status = await rival.status(lease.lock_key)
            assert status["fencingToken"] == lease.token.wire
            assert status["expiresAt"] > end


async def test_leases_are_suspended_and_lost_with_their_session(stoppable: Server, key: str) -> None:
    told: list[tuple[str, LeaseState]] = []
    async with connect(stoppable.url, timeout=0.3) as locks:
        with pytest.raises(LockLost, match="session"):
            async with locks.session(
                ttl=5, cancel_on_lost=True, on_state=lambda _, state: told.append(("session", state))
            ) as session:
                await session.hold(key, on_state=lambda _, state: told.append(("lease", state)))
                stoppable.signal(signal.SIGSTOP)
                await eventually(lambda: ("lease", SUSPENDED) in told)
                session.ensure_held()
                await asyncio.sleep(60)
        stoppable.signal(signal.SIGCONT)
        await eventually(lambda: told.count(("lease", LOST)) == 1 and told.count(("session", LOST)) == 1)
        for who in ("session", "lease"):
            assert [state for name, state in told if name == who] == [HELD, SUSPENDED, LOST]
        async with locks.hold(key, wait=30):  # it was freed when the session ran out
            pass
        with pytest.raises(LockLost):
            await session.hold(f"{key}/more").acquire()


async def test_a_lost_answer_is_not_a_lost_session(server: Server, key: str) -> None:
    async with LossyNetwork(server).open() as network, connect(network.url) as locks:
        told: list[LeaseState] = []
        network.lose_answers("renew", 2)
        async with locks.session(ttl=9, on_state=lambda _, state: told.append(state)) as session:
            lease = await session.hold(key)
            await eventually(lambda: told == [HELD, SUSPENDED, HELD])
            lease.ensure_held()


async def test_a_waiter_of_a_session_gets_the_lock_in_its_turn(locks: Locks, rival: Locks, key: str) -> None:
    async with rival.session() as session:
        async with locks.hold(key):
            waiting = asyncio.create_task(session.hold(key, wait=60).acquire())
            await eventually(lambda: _waits(locks, key))
        lease = await asyncio.wait_for(waiting, 30)
        assert lease.held


async def _waits(locks: Locks, key: str) -> bool:
    return bool((await locks.status(key))["waiters"])


async def test_a_revoked_lease_ends_in_time_and_its_session_goes_on(locks: Locks, rival: Locks, key: str) -> None:
    revoked: list[object] = []
    async with locks.session(ttl=4.5) as session:
        lease = await session.hold(f"{key}/1", on_revoked=revoked.append)
        other = await session.hold(f"{key}/2")
        answer = await rival.force_release(f"{key}/1", "maintenance", grace=6)
        assert answer["takenAt"] > 0
        await eventually(lambda: revoked == [lease])
        assert lease.revoked is not None
        assert lease.revoked.reason == "maintenance"
        await asyncio.wait_for(lease.lost.wait(), 30)
        assert "maintenance" in str(lease.why_lost)
        other.ensure_held()
        session.ensure_held()


async def test_a_lock_that_was_taken_at_once_is_noticed_by_the_next_renewal_of_its_session(
    locks: Locks, rival: Locks, key: str
) -> None:
    async with locks.session(ttl=6) as session:
        lease = await session.hold(f"{key}/1")
        other = await session.hold(f"{key}/2")
        await rival.force_release(f"{key}/1", "at once")
        await asyncio.wait_for(lease.lost.wait(), 30)
        assert "at once" in str(lease.why_lost)
        other.ensure_held()
        with pytest.raises(LockLost, match="at once"):
            await lease.release()


async def test_max_hold_ends_a_lease_before_its_session(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.session(ttl=30) as session:
        lease = await session.hold(key, max_hold=2)
        await asyncio.wait_for(lease.lost.wait(), 30)
        assert "max_hold" in str(lease.why_lost)
        session.ensure_held()
        async with rival.hold(key, wait=30) as later:
            assert later.token > lease.token


async def test_a_session_that_was_ended_elsewhere_is_noticed(locks: Locks, key: str) -> None:
    session = await locks.session(ttl=3)
    lease = await session.hold(key)
    await (await locks._connection.transport()).end_session(session.session_id)
    await asyncio.wait_for(lease.lost.wait(), 30)
    assert session.state is LOST
    with pytest.raises(SessionExpired):  # and the lock service itself says so
        await (await locks._connection.transport()).renew_session(session.session_id, {})


async def test_closing_the_client_ends_its_sessions(url: str, rival: Locks, key: str) -> None:
    async with connect(url) as client:
        lease = await (await client.session(ttl=60)).hold(key)
    assert lease.state is RELEASED
    async with rival.hold(key, wait=20):
        pass


async def test_a_hold_under_a_session_has_no_ttl_of_its_own_and_is_not_exported(locks: Locks, key: str) -> None:
    async with locks.session() as session:
        with pytest.raises(InvalidInput, match="ttl"):
            session.hold(key, ttl=5)
        async with session.hold(key) as lease:
            with pytest.raises(Exception, match="session"):
                lease.export()
    for bad in (0, 3601, float("nan")):
        with pytest.raises(InvalidInput, match="ttl"):
            locks.session(ttl=bad)


async def test_several_locks_at_once_may_live_by_a_session(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.session() as session:
        async with session.hold_all([f"{key}/1", f"{key}/2"]) as leases:
            assert await rival.try_hold(f"{key}/1") is None
            leases.ensure_held()
        assert leases.state is RELEASED
        again = await session.hold_all([f"{key}/1", f"{key}/2"])
    assert again[f"{key}/1"].state is RELEASED
    async with rival.hold(f"{key}/2", wait=20):
        pass


async def test_the_id_of_a_session_is_not_logged(server: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with connect(server.url) as locks, locks.session(ttl=30) as session, session.hold(key):
        pass
    assert "/v1/sessions/…" in caplog.text
    assert session.session_id not in caplog.text


def test_the_sync_face_has_sessions_too(url: str, key: str) -> None:
    with sync.connect(url) as locks, sync.connect(url) as rival:
        with locks.session(ttl=30) as session:
            with session.hold(f"{key}/1") as lease, session.try_hold(f"{key}/2") as other:
                assert other is not None
                with rival.try_hold(f"{key}/1") as refused:
                    assert refused is None
            one = session.hold(f"{key}/1").acquire()
        assert (lease.state, one.state, session.lost.is_set()) == (RELEASED, RELEASED, False)
        with rival.hold(f"{key}/1", wait=20):
            pass


def test_the_sync_face_loses_them_too(stoppable: Server, key: str) -> None:
    with sync.connect(stoppable.url, timeout=0.3) as locks:
        lost: list[object] = []
        with pytest.raises(LockLost), locks.session(ttl=3, on_lost=lost.append) as session:
            lease = session.hold(key).acquire()
            stoppable.signal(signal.SIGSTOP)
            assert lease.lost.wait(30)
            assert session.lost.wait(30)
            stoppable.signal(signal.SIGCONT)
        eventually_sync(lambda: lost == [session])


def test_a_forked_child_has_no_part_in_its_parents_session(server: Server, key: str) -> None:
    with sync.connect(server.url) as locks, locks.session(ttl=30) as session, session.hold(f"{key}/1") as lease:
        handle = session.hold(f"{key}/2")

        def child() -> None:
            assert (session.state, lease.state) == (LOST, LOST)
            for refused in (session.ensure_held, lease.ensure_held, session.end, lease.release, handle.acquire):
                with pytest.raises(LockLost, match="forked"):
                    refused()
            with locks.session(ttl=5) as own, own.hold(f"{key}/child"):  # one of its own works
                assert own.owner_id != session.owner_id

        in_fork(child)
        session.ensure_held()
        lease.ensure_held()
        assert locks.status(f"{key}/1")["fencingToken"] == lease.token.wire


def test_a_lease_is_never_believed_longer_than_its_session() -> None:
    clock = ManualClock()
    reply = {"sessionId": "s", "ownerId": "me", "ttlMillis": 10_000, "remainingMillis": 10_000, "expiresAt": 10_000}
    session = SessionCore(Opened(reply, clock.monotonic_us()), clock)
    answer = {"lockToken": "t", "fencingToken": "5", "ownerId": "me", "ttlMillis": 60_000, "remainingMillis": 60_000}
    lease = LeaseCore(granted("a", {}, answer, clock.monotonic_us()), clock, session)
    assert lease.remaining == pytest.approx(9.9)
    session._suspend("no answer")
    assert lease.state is SUSPENDED
    clock.advance(9.95)
    with pytest.raises(LockLost, match="session"):  # nobody looked at the session before
        lease.ensure_held()
    session._live_on(clock.monotonic_us(), clock.monotonic_us() + 10_000_000)
    assert (session.state, lease.state) == (LOST, LOST)
    late = LeaseCore(granted("b", {}, answer, clock.monotonic_us()), clock, session)
    assert late.state is LOST
