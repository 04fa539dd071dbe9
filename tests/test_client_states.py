"""HELD, SUSPENDED, LOST: how a lease comes to each, who is told, and what no later answer can change."""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator
from queue import SimpleQueue
from typing import Any

import pytest
import stamina

from fencegate import Lease, LeaseState, LockLost, Revocation, connect, sync
from fencegate.client.grant import Grant, granted, renewed
from fencegate.client.lease import LeaseCore
from fencegate.client.life import Life
from fencegate.client.rota import Rota
from fencegate.clock import SYSTEM, ManualClock
from tests.eventually import eventually, eventually_sync
from tests.servers import Server
from tests.test_client_time import LossyNetwork

HELD, SUSPENDED, LOST, RELEASED = LeaseState.HELD, LeaseState.SUSPENDED, LeaseState.LOST, LeaseState.RELEASED


@pytest.fixture
async def network(server: Server) -> AsyncIterator[LossyNetwork]:
    async with LossyNetwork(server).open() as lossy:
        yield lossy


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"states:{request.node.name}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def grant_at(clock: ManualClock, remaining_ms: int = 10_000) -> Grant:
    reply = {"lockToken": "r.secret", "fencingToken": "34", "ownerId": "me", "ttlMillis": 10_000}
    return granted("a", {}, {**reply, "remainingMillis": remaining_ms}, clock.monotonic_us())


async def test_a_plain_hold_is_held_and_released(server: Server, key: str) -> None:
    told: list[tuple[Lease, LeaseState]] = []
    async with connect(server.url) as locks:
        async with locks.hold(key, on_state=lambda lease, state: told.append((lease, state))) as lease:
            pass
        await eventually(lambda: told == [(lease, HELD), (lease, RELEASED)])


async def test_an_unreachable_server_suspends_and_the_deadline_loses_for_good(stoppable: Server, key: str) -> None:
    told: list[LeaseState] = []
    lost: list[Lease] = []
    async with connect(stoppable.url, timeout=0.3) as locks:
        with pytest.raises(LockLost, match="deadline passed"):
            async with locks.hold(
                key, ttl=5, on_state=lambda _, state: told.append(state), on_lost=lost.append
            ) as lease:
                stoppable.signal(signal.SIGSTOP)
                await eventually(lambda: lease.state is SUSPENDED)
                lease.ensure_held()
                await asyncio.wait_for(lease.lost.wait(), 30)
                stoppable.signal(signal.SIGCONT)
        await eventually(lambda: told == [HELD, SUSPENDED, LOST] and lost == [lease])
        assert "no answer within" in str(lease.why_lost)
        async with locks.hold(key, wait=30) as later:  # the server is back, and the old handle is not
            assert later.token > lease.token
            assert lease.state is LOST
    assert told == [HELD, SUSPENDED, LOST]


async def test_a_server_that_comes_back_in_time_makes_it_held_again(stoppable: Server, key: str) -> None:
    told: list[LeaseState] = []
    async with connect(stoppable.url, timeout=0.3) as locks:
        async with locks.hold(key, ttl=12, on_state=lambda _, state: told.append(state)):
            stoppable.signal(signal.SIGSTOP)
            await eventually(lambda: told == [HELD, SUSPENDED])
            stoppable.signal(signal.SIGCONT)
            await eventually(lambda: told == [HELD, SUSPENDED, HELD])
        await eventually(lambda: told[-1] is RELEASED)


@pytest.mark.parametrize("retries", [True, False])
async def test_a_lost_answer_is_not_a_lost_lock(network: LossyNetwork, key: str, retries: bool) -> None:
    told: list[LeaseState] = []
    stamina.set_active(retries)  # an application that turns retries off must not lose its locks by it
    try:
        async with connect(network.url) as locks:
            network.lose_answers("renew", 2)
            async with locks.hold(key, ttl=9, on_state=lambda _, state: told.append(state)) as lease:
                await eventually(lambda: told == [HELD, SUSPENDED, HELD])
                lease.ensure_held()
    finally:
        stamina.set_active(True)


async def test_the_client_hears_of_every_lease(server: Server, key: str) -> None:
    told: list[tuple[str, LeaseState]] = []
    async with connect(server.url, on_state=lambda lease, state: told.append((lease.lock_key, state))) as locks:
        async with locks.hold(f"{key}/1"), locks.hold(f"{key}/2"):
            pass
        await eventually(lambda: len(told) == 4)
    assert told == [(f"{key}/1", HELD), (f"{key}/2", HELD), (f"{key}/2", RELEASED), (f"{key}/1", RELEASED)]


async def test_a_callback_that_raises_is_logged_and_the_hold_goes_on(
    server: Server, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("on purpose")

    async with connect(server.url, on_state=fail) as locks, locks.hold(key, on_state=fail) as lease:
        await eventually(lambda: len(caplog.records) >= 2)
        lease.ensure_held()
    with sync.connect(server.url, on_state=fail) as blocking, blocking.hold(key, on_state=fail) as held:
        await eventually(lambda: len(caplog.records) >= 6)  # two for each HELD and for the RELEASED in between
        held.ensure_held()
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert "on purpose" in caplog.text


def test_a_callback_that_hangs_keeps_no_renewal_and_no_other_callback_from_running(server: Server, key: str) -> None:
    go_on = threading.Event()
    told: list[LeaseState] = []

    def hang(_lease: object, _state: LeaseState) -> None:
        go_on.wait()

    with sync.connect(server.url) as locks:
        try:
            with (
                locks.hold(f"{key}/1", ttl=4, on_state=hang) as hanging,
                locks.hold(f"{key}/2", ttl=4, on_state=lambda _, state: told.append(state)) as other,
            ):
                time.sleep(4.2)  # longer than the lease: it was renewed meanwhile
                hanging.ensure_held()
                other.ensure_held()
            eventually_sync(lambda: told == [HELD, RELEASED])
        finally:
            go_on.set()


def test_the_sync_face_goes_through_the_same_states(stoppable: Server, key: str) -> None:
    told: list[LeaseState] = []
    lost: list[object] = []
    with sync.connect(stoppable.url, timeout=0.3) as locks:
        with (
            pytest.raises(LockLost, match="deadline passed"),
            locks.hold(key, ttl=5, on_state=lambda _, state: told.append(state), on_lost=lost.append) as lease,
        ):
            stoppable.signal(signal.SIGSTOP)
            assert lease.lost.wait(30)
            stoppable.signal(signal.SIGCONT)
        eventually_sync(lambda: told == [HELD, SUSPENDED, LOST] and lost == [lease])


@pytest.mark.parametrize("embedded", [False, True])
async def test_a_holder_who_is_asked_to_let_go_hears_of_it_and_may_finish(
    server: Server, key: str, embedded: bool
) -> None:
    url = "memory://states" if embedded else server.url
    revoked: list[Lease] = []
    async with connect(url) as locks, connect(url) as rival:
        async with locks.hold(key, ttl=6, on_revoked=revoked.append) as lease:
            answer = await rival.force_release(key, "maintenance", grace=60)
            await eventually(lambda: revoked == [lease])
            assert lease.revoked is not None
            assert (lease.revoked.reason, lease.revoked.taken_at) == ("maintenance", answer["takenAt"] / 1000)
            lease.ensure_held()
            begun_us = lease._started_us
            await eventually(lambda: lease._started_us > begun_us)  # it is renewed until then
        async with rival.hold(key, wait=20):  # long before the grace was over
            pass


def test_a_lease_whose_grant_came_after_a_third_of_its_time_is_renewed_at_once(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock), clock)
    clock.advance(5)  # while the answer was on its way
    begun: SimpleQueue[object] = SimpleQueue()
    Rota(clock, begun.put).join(lease)
    assert begun.get(timeout=3) is lease


def test_whoever_joins_while_the_timer_rings_is_renewed_too() -> None:
    begun: SimpleQueue[object] = SimpleQueue()
    rota = Rota(SYSTEM, begun.put)
    first, second = (LeaseCore(short_grant(), SYSTEM) for _ in range(2))

    class Steps(dict[Life, int]):
        def items(self) -> Any:
            """Who is there when the timer rings; and one more comes before that is done."""
            there = list(super().items())
            if second not in self:
                joining = threading.Thread(target=rota.join, args=(second,))
                joining.start()
                joining.join(0.5)
            return there

    rota._steps = Steps()
    rota.join(first)
    assert {begun.get(timeout=5), begun.get(timeout=5)} == {first, second}


def test_whoever_has_left_is_not_renewed() -> None:
    begun: SimpleQueue[object] = SimpleQueue()
    rota = Rota(SYSTEM, begun.put)
    first, gone, last = (LeaseCore(short_grant(), SYSTEM) for _ in range(3))
    for lease in (first, gone, last):
        rota.join(lease)
    rota.leave(gone)
    assert {begun.get(timeout=5), begun.get(timeout=5)} == {first, last}
    assert begun.empty()


def short_grant() -> Grant:
    """Its first renewal is due in a third of a second."""
    reply = {"lockToken": "r.secret", "fencingToken": "34", "ownerId": "me", "ttlMillis": 1000}
    return granted("a", {}, {**reply, "remainingMillis": 60_000}, SYSTEM.monotonic_us())


def test_a_revocation_shortens_the_lease_and_is_told_once(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock), clock)
    heard: list[str] = []
    lease._when_revoked(lambda: heard.append("revoked"))
    revoked = {"reason": "maintenance", "takenAt": 1_700_000_004_000, "remainingMillis": 4_000}
    for _ in range(2):  # each renewal tells of it
        reply = {"fencingToken": "34", "remainingMillis": 10_000, "revoked": revoked}
        lease._extend(renewed(lease._grant, reply, clock.monotonic_us()))
    assert heard == ["revoked"]
    assert lease.revoked is not None
    assert (lease.revoked.reason, lease.revoked.taken_at) == ("maintenance", 1_700_000_004.0)
    assert lease.remaining == pytest.approx(3.9)
    clock.advance(3.95)
    with pytest.raises(LockLost, match="maintenance"):
        lease.ensure_held()


def test_a_refused_renewal_leaves_what_was_granted_and_gives_the_reason_at_the_end(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock), clock)
    lease._end_at_deadline("held for as long as allowed")
    lease._suspend("a later failure is not the reason")
    lease.ensure_held()
    clock.advance(10)
    assert lease.why_lost == "held for as long as allowed"


def test_whatever_comes_after_the_loss_brings_nothing_back(clock: ManualClock) -> None:
    lease = LeaseCore(grant_at(clock), clock)
    told: list[LeaseState] = []
    lease._when_state(told.append)
    lease._suspend("no answer")
    clock.advance(10)
    assert lease.state is LOST
    lease._extend(grant_at(clock))
    lease._suspend("no answer")
    lease._revoke(renewed_with_revocation(clock))
    lease._lose("again")
    assert told == [HELD, SUSPENDED, LOST]
    assert lease.revoked is None


def renewed_with_revocation(clock: ManualClock) -> Revocation:
    reply = {
        "fencingToken": "34",
        "remainingMillis": 10_000,
        "revoked": {"reason": "late", "takenAt": 1, "remainingMillis": 1},
    }
    revoked = renewed(grant_at(clock), reply, clock.monotonic_us()).revoked
    assert revoked is not None
    return revoked
