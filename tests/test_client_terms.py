"""The terms of a hold: the same with a server and without one, in both faces."""

import asyncio
from typing import Any

import pytest

from fencegate import FencegateError, InvalidInput, LockHeld, LockLost, Locks, connect, sync
from fencegate.client.life import LeaseState
from tests.eventually import eventually


@pytest.fixture(params=["http", "memory"])
def url(request: pytest.FixtureRequest) -> str:
    """A server, whose store is SQLite; and a store in memory, without one."""
    return str(request.getfixturevalue("server").url) if request.param == "http" else "memory://terms"


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"terms:{request.node.name}"


async def until_waiting(locks: Locks, key: str, waiters: int) -> None:
    async def are_there() -> bool:
        return bool((await locks.status(key))["waiters"] >= waiters)

    await eventually(are_there)


async def test_shared_holds_overlap_under_one_token_and_keep_writers_out(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.hold(key, shared=True) as one, rival.hold(key, mode="shared") as two:
        assert (one.mode, two.mode) == ("shared", "shared")
        assert one.token == two.token
        assert one.headers()["Fencing-Token"] == one.token.wire  # for fenced reads
        assert await rival.try_hold(key) is None
    async with rival.hold(key) as writer:
        assert writer.mode == "exclusive"
        assert writer.token > one.token
        assert await locks.try_hold(key, shared=True) is None


async def test_permits_have_a_slot_a_token_and_a_fence_each(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.hold(key, limit=2) as one, rival.hold(key, limit=2) as two:
        assert {one.slot, two.slot} == {0, 1}
        assert one.token != two.token
        assert one.fence.endswith(f"#{one.slot}")
        assert one.fence != two.fence
        assert one.headers()["Fencing-Lock"] == one.fence
        with pytest.raises(LockHeld):
            await rival.hold(key, limit=2).acquire()
    async with locks.hold(key) as plain:
        assert (plain.slot, plain.fence) == (None, key)


async def test_a_permit_that_is_handed_on_stays_the_same_permit(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.hold(key, limit=2), locks.hold(key, limit=2) as second:
        taken_up = await rival.attach(second.export())
        assert (taken_up.slot, taken_up.fence, taken_up.mode) == (second.slot, second.fence, "exclusive")
        taken_up._connection.let_go(taken_up)


async def test_the_higher_priority_goes_first_among_those_who_wait(locks: Locks, rival: Locks, key: str) -> None:
    order: list[int] = []

    async def wait_for_turn(priority: int) -> None:
        async with rival.hold(key, ttl=300, wait=100, priority=priority):
            order.append(priority)

    async with locks.hold(key, ttl=60):
        tasks = []
        for number, priority in enumerate((0, 5, -5)):
            tasks.append(asyncio.create_task(wait_for_turn(priority)))
            await until_waiting(locks, key, number + 1)
    await asyncio.gather(*tasks)
    assert order == [5, 0, -5]


async def test_a_lock_that_was_lost_stays_closed_for_its_delay_and_one_that_was_released_does_not(
    locks: Locks, rival: Locks, key: str
) -> None:
    async with locks.hold(key, lock_delay=300):
        pass
    with pytest.raises(LockLost):
        async with locks.hold(key, lock_delay=300):
            await rival.force_release(key, reason="test")
    with pytest.raises(LockHeld) as refused:
        await rival.hold(key).acquire()
    assert refused.value.retry_after_ms > 200_000


async def test_beyond_max_hold_no_renewal_is_granted_and_the_lease_says_why(locks: Locks, key: str) -> None:
    with pytest.raises(LockLost, match="maxHoldMillis"):
        async with locks.hold(key, ttl=4.5, max_hold=4.5) as lease:
            assert lease.why_lost is None
            await eventually(lambda: lease._is_ending)  # the first renewal was refused,
            assert lease.state is LeaseState.HELD  # and what was granted still counts
            await asyncio.wait_for(lease.lost.wait(), 30)
            assert "maxHoldMillis" in str(lease.why_lost)


async def test_owner_and_metadata_are_seen_by_others(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.hold(key, owner="the-job", metadata={"step": 3}) as lease:
        assert lease.owner_id == "the-job"
        holder = (await rival.status(key))["holders"][0]
        assert (holder["ownerId"], holder["metadata"]) == ("the-job", {"step": 3})
        assert await locks.try_hold(key, reentrant=True) is None  # another owner by name
        async with locks.hold(key, owner="the-job", reentrant=True):
            pass


async def test_a_lock_on_a_path_excludes_what_is_below_it(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.hold(f"{key}/a", hierarchical=True) as above:
        assert await rival.try_hold(f"{key}/a/b", hierarchical=True) is None
        async with rival.hold(f"{key}/b", hierarchical=True):
            pass
    async with rival.hold(f"{key}/a/b", hierarchical=True) as below:
        assert below.token > above.token
        assert await locks.try_hold(f"{key}/a", hierarchical=True) is None


@pytest.mark.parametrize(
    ("field", "terms"),
    [
        ("mode", {"mode": "upgradable"}),
        ("shared", {"mode": "exclusive", "shared": True}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": 2.5}),
        ("limit", {"limit": 2, "shared": True}),
        ("priority", {"priority": 1001}),
        ("priority", {"priority": True}),
        ("lock_delay", {"lock_delay": -1}),
        ("lock_delay", {"lock_delay": "10"}),
        ("max_hold", {"max_hold": 0.5}),
        ("max_hold", {"max_hold": float("inf")}),
        ("owner", {"owner": ""}),
        ("request_id", {"request_id": "a\nb"}),
        ("ttl", {"ttl": 0}),
        ("wait", {"wait": -1}),
    ],
)
def test_a_bad_term_is_refused_by_name_before_anything_is_sent(field: str, terms: dict[str, Any]) -> None:
    for locks in (connect("http://127.0.0.1:9"), sync.connect("http://127.0.0.1:9")):
        with pytest.raises(InvalidInput) as refused:
            locks.hold("a", **terms)
        assert refused.value.field == field


@pytest.mark.parametrize("call", ["hold", "try_hold", "hold_all", "session"])
def test_a_term_that_does_not_exist_is_a_type_error(call: str) -> None:
    for locks in (connect("http://127.0.0.1:9"), sync.connect("http://127.0.0.1:9")):
        arguments = [] if call == "session" else ["a"]
        with pytest.raises(TypeError, match="timeout"):
            getattr(locks, call)(*arguments, timeout=3)


async def test_a_forced_release_takes_no_negative_grace(locks: Locks, key: str) -> None:
    with pytest.raises(InvalidInput, match="grace"):
        await locks.force_release(key, "test", grace=-1)


def test_the_sync_face_takes_the_same_terms(url: str, key: str) -> None:
    with sync.connect(url) as locks, sync.connect(url) as rival:
        with locks.hold(key, shared=True) as one, rival.hold(key, mode="shared") as two:
            assert (one.token, one.mode) == (two.token, "shared")
        with locks.hold(key, limit=2, owner="me", priority=3) as permit:
            assert (permit.slot, permit.owner_id) == (0, "me")
            with pytest.raises(FencegateError):
                rival.hold(key).acquire()
