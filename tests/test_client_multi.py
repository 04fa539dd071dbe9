"""Several locks at once: all or none, renewed by one call, lost as one; in both faces, with a server and without."""

import asyncio
import signal

import pytest

from fencegate import InvalidInput, LeaseState, LockHeld, LockLost, Locks, connect, sync
from tests.eventually import eventually
from tests.servers import Server
from tests.test_client_process import in_fork
from tests.test_client_time import LossyNetwork

HELD, SUSPENDED, LOST, RELEASED = LeaseState.HELD, LeaseState.SUSPENDED, LeaseState.LOST, LeaseState.RELEASED


@pytest.fixture(params=["http", "memory"])
def url(request: pytest.FixtureRequest) -> str:
    """A server, whose store is SQLite; and a store in memory, without one."""
    return str(request.getfixturevalue("server").url) if request.param == "http" else "memory://multi"


@pytest.fixture
def keys(request: pytest.FixtureRequest) -> list[str]:
    return [f"multi:{request.node.name}/{number}" for number in range(3)]


async def is_free(locks: Locks, key: str) -> bool:
    return not (await locks.status(key))["locked"]


async def test_all_are_held_and_all_are_released(locks: Locks, rival: Locks, keys: list[str]) -> None:
    a, b, c = keys
    async with locks.hold_all([a, (b, "shared"), c], metadata={"why": "test"}) as leases:
        assert list(leases) == keys
        assert len(leases) == 3
        assert (leases[a].mode, leases[b].mode) == ("exclusive", "shared")
        for key, lease in leases.items():
            assert (await rival.status(key))["fencingToken"] == lease.token.wire
            assert lease.headers()["Fencing-Lock"] == key
        async with rival.hold(b, shared=True) as reader:
            assert reader.token == leases[b].token
        assert await rival.try_hold(c) is None
    assert {lease.state for lease in leases.values()} == {leases.state} == {RELEASED}
    async with rival.hold_all(reversed(keys)) as later:
        assert all(later[key].token > leases[key].token for key in keys)


async def test_when_one_is_held_none_is_taken(locks: Locks, rival: Locks, keys: list[str]) -> None:
    a, b, c = keys
    async with locks.hold(b):
        with pytest.raises(LockHeld) as refused:
            await rival.hold_all([a, b, c]).acquire()
        assert refused.value.members["lockKey"] == b
        assert await is_free(locks, a)
        assert await is_free(locks, c)


async def test_two_who_name_the_locks_in_opposite_order_do_not_deadlock(
    locks: Locks, rival: Locks, keys: list[str]
) -> None:
    inside = 0

    async def work(client: Locks, order: list[str]) -> None:
        nonlocal inside
        for _ in range(5):
            async with client.hold_all(order, ttl=60, wait=100):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

    async with asyncio.timeout(100):
        await asyncio.gather(work(locks, keys), work(rival, keys[::-1]))


async def test_a_wait_for_all_is_cancelled_without_a_trace(locks: Locks, rival: Locks, keys: list[str]) -> None:
    async with locks.hold(keys[1]):
        waiting = asyncio.create_task(rival.hold_all(keys, wait=60).acquire())

        async def waits() -> bool:
            return bool((await locks.status(keys[1]))["waiters"])

        await eventually(waits)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with locks.hold_all(keys, wait=30):
        pass


async def test_one_renewal_carries_all(locks: Locks, keys: list[str]) -> None:
    async with locks.hold_all(keys, ttl=6) as leases:
        assert locks._connection.kept() == [leases]
        ends = [(await locks.status(key))["expiresAt"] for key in keys]
        begun_us = leases._started_us
        await eventually(lambda: leases._started_us > begun_us)
        for key, end in zip(keys, ends, strict=True):
            leases[key].ensure_held()
            assert (await locks.status(key))["expiresAt"] > end


async def test_when_one_is_lost_all_are_and_the_rest_is_given_back(locks: Locks, rival: Locks, keys: list[str]) -> None:
    told: list[LeaseState] = []
    with pytest.raises(LockLost, match="as a test"):
        async with locks.hold_all(
            keys, ttl=6, cancel_on_lost=True, on_state=lambda _, state: told.append(state)
        ) as leases:
            await rival.force_release(keys[1], "as a test")
            await asyncio.sleep(60)
    assert {lease.state for lease in leases.values()} == {LOST}
    await eventually(lambda: told == [HELD, LOST])
    async with rival.hold_all(keys, wait=30):
        pass


async def test_a_loss_that_no_renewal_noticed_is_raised_by_the_release_and_the_rest_is_released(
    locks: Locks, rival: Locks, keys: list[str]
) -> None:
    with pytest.raises(LockLost):
        async with locks.hold_all(keys, ttl=300):
            await rival.force_release(keys[1], "test")
    async with rival.hold_all(keys, wait=30):  # far below the TTL
        pass


async def test_one_of_them_may_be_released_before_the_others(locks: Locks, rival: Locks, keys: list[str]) -> None:
    async with locks.hold_all(keys, ttl=6) as leases:
        await leases[keys[0]].release()
        assert leases[keys[0]].state is RELEASED
        async with rival.hold(keys[0]):
            begun_us = leases._started_us
            await eventually(lambda: leases._started_us > begun_us)  # the others are renewed without it
            leases.ensure_held()
            leases[keys[1]].ensure_held()
    for key in keys:
        assert await is_free(rival, key)


async def test_a_revocation_of_one_is_told_of_all_and_ends_all_in_time(
    locks: Locks, rival: Locks, keys: list[str]
) -> None:
    revoked: list[object] = []
    with pytest.raises(LockLost, match="maintenance"):
        async with locks.hold_all(keys, ttl=4.5, on_revoked=revoked.append) as leases:
            await rival.force_release(keys[1], "maintenance", grace=6)
            await eventually(lambda: revoked == [leases])
            assert leases[keys[1]].revoked == leases.revoked
            assert leases[keys[0]].revoked is None
            await asyncio.wait_for(leases.lost.wait(), 30)


async def test_all_are_suspended_together_and_held_again(stoppable: Server, keys: list[str]) -> None:
    told: list[tuple[str, LeaseState]] = []
    async with (
        connect(
            stoppable.url, timeout=0.3, on_state=lambda lease, state: told.append((lease.lock_key, state))
        ) as locks,
        locks.hold_all(keys, ttl=12),
    ):
        stoppable.signal(signal.SIGSTOP)
        await eventually(lambda: all((key, SUSPENDED) in told for key in keys))
        stoppable.signal(signal.SIGCONT)
        await eventually(lambda: all(told.count((key, HELD)) == 2 for key in keys))


async def test_an_acquire_of_all_whose_answer_was_lost_finds_its_leases_again(server: Server, keys: list[str]) -> None:
    async with LossyNetwork(server).open() as network, connect(network.url) as locks, connect(server.url) as direct:
        network.lose_answers("acquire", 2)
        async with locks.hold_all(keys) as leases:
            network.lose_answers("release", 1)
            assert (await direct.status(keys[0]))["fencingToken"] == leases[keys[0]].token.wire
        assert await is_free(direct, keys[0])


@pytest.mark.parametrize("locks_named", [[], ["a", "a"], ["a", ("a", "shared")], ["a/"], [("a", "upgradable")]])
def test_what_cannot_be_asked_for_is_refused_before_anything_is_sent(locks_named: list[str]) -> None:
    for client in (connect("http://127.0.0.1:9"), sync.connect("http://127.0.0.1:9")):
        with pytest.raises(InvalidInput):
            client.hold_all(locks_named)


def test_the_sync_face_holds_several_too(url: str, keys: list[str]) -> None:
    a, b, _ = keys
    with sync.connect(url) as locks, sync.connect(url) as rival:
        with locks.hold_all([a, (b, "shared")]) as leases:
            assert leases[b].mode == "shared"
            with rival.try_hold(a) as refused:
                assert refused is None
        assert (leases.state, leases[a].state, leases.lost.is_set()) == (RELEASED, RELEASED, False)
        with pytest.raises(LockLost), locks.hold_all(keys, ttl=300):
            rival.force_release(b, "test")
        with rival.hold_all(keys, wait=30):
            pass


def test_a_forked_child_has_no_part_in_what_its_parent_holds(server: Server, keys: list[str]) -> None:
    with sync.connect(server.url) as locks, locks.hold_all(keys, ttl=30) as leases:

        def child() -> None:
            assert (leases.state, leases[keys[0]].state) == (LOST, LOST)
            for refused in (leases.ensure_held, leases.release, leases[keys[0]].release):
                with pytest.raises(LockLost, match="forked"):
                    refused()

        in_fork(child)
        leases.ensure_held()
        assert locks.status(keys[0])["fencingToken"] == leases[keys[0]].token.wire
