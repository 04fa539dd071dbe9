"""Holding a lock: the same promises over a real server and over the embedded stores."""

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest

import fencegate.sync
from fencegate import (
    FencegateError,
    InvalidInput,
    Lease,
    LeaseState,
    LockExpired,
    LockHeld,
    LockLost,
    Locks,
    StoreUnavailable,
    connect,
)


@pytest.fixture(params=["http", "sqlite", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "http":
        server = request.getfixturevalue("server")
        return str(server.url)
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"hold:{request.node.name}"


async def until_free(locks: Locks, key: str, within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while (await locks.status(key))["locked"]:
        assert time.monotonic() < end, f"still held after {within_s} s"
        await asyncio.sleep(0.02)


async def until_waiting(locks: Locks, key: str, waiters: int) -> None:
    while (await locks.status(key))["waiters"] < waiters:
        await asyncio.sleep(0.01)


async def test_a_held_lock_is_refused_to_others_and_free_after_the_block(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.hold(key, ttl=5, metadata={"why": "test"}) as lease:
        assert lease.held
        assert lease.state.value == "held"
        assert 0 < lease.remaining < 5
        status = await rival.status(key)
        assert (status["ownerId"], status["fencingToken"]) == (locks.owner_id, lease.token.wire)
        with pytest.raises(LockHeld) as refused:
            await rival.hold(key).acquire()
        assert refused.value.members["currentOwner"] == locks.owner_id
    assert lease.state is LeaseState.RELEASED
    assert not lease.lost.is_set()
    async with rival.hold(key) as later:
        assert later.token > lease.token


async def test_try_hold_gives_none_where_hold_raises(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.try_hold(key) as lease:
        assert lease is not None
        async with rival.try_hold(key) as other:
            assert other is None
        assert await rival.try_hold(key) is None
    async with rival.try_hold(key) as other:
        assert other is not None


async def test_whoever_takes_the_handle_for_the_lease_is_told_and_does_not_go_on_without_the_lock(key: str) -> None:
    with fencegate.sync.connect("memory://") as locks, pytest.raises(TypeError, match=r"with.*acquire\(\)"):
        assert locks.try_hold(key)
    async with connect("memory://") as own:
        with pytest.raises(TypeError, match=r"async with.*await"):
            assert own.try_hold(key)


async def test_without_a_block_a_handle_is_acquired_and_released(locks: Locks, key: str) -> None:
    handle = locks.hold(key)
    first = await handle.acquire()
    with pytest.raises(FencegateError, match="handle"):
        await handle.acquire()
    await handle.release()
    await handle.release()
    second = await handle
    assert second.token > first.token
    await second.release()
    await second.release()
    await until_free(locks, key)


async def test_waiters_get_the_lock_in_the_order_in_which_they_came(locks: Locks, rival: Locks, key: str) -> None:
    order: list[int] = []
    tokens: list[int] = []

    async def wait_for_turn(number: int) -> None:
        client = locks if number % 2 else rival
        async with client.hold(key, ttl=30, wait=100) as lease:
            order.append(number)
            tokens.append(lease.token)

    async with locks.hold(key, ttl=30):
        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(wait_for_turn(number)))
            await until_waiting(locks, key, number + 1)
        assert order == []
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3]
    assert tokens == sorted(set(tokens))


async def test_a_wait_that_is_over_raises_lock_held_in_time(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.hold(key):
        begun = time.monotonic()
        with pytest.raises(LockHeld):
            await rival.hold(key, wait=0.5).acquire()
        assert 0.45 < time.monotonic() - begun < 20
    async with rival.hold(key):
        pass


async def test_an_exception_of_the_body_passes_and_the_lock_is_released(locks: Locks, rival: Locks, key: str) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        async with locks.hold(key):
            raise ZeroDivisionError
    assert not hasattr(raised.value, "__notes__")
    async with rival.hold(key):
        pass


async def test_a_cancelled_body_releases(locks: Locks, rival: Locks, key: str) -> None:
    inside = asyncio.Event()

    async def body() -> None:
        async with locks.hold(key):
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with rival.hold(key):
        pass


async def test_a_body_that_is_cancelled_again_while_it_releases_still_releases(
    locks: Locks, rival: Locks, key: str
) -> None:
    for turns in range(6):  # the second cancellation falls on another line each time
        inside = asyncio.Event()

        async def body(inside: asyncio.Event = inside) -> None:
            async with locks.hold(key, wait=5):
                inside.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(body())
        await inside.wait()
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_free(rival, key)


async def test_a_cancelled_wait_leaves_nothing_behind(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.hold(key):
        waiting = asyncio.create_task(rival.hold(key, wait=30).acquire())
        await until_waiting(locks, key, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0.1)
    async with locks.hold(key, wait=20):  # the place of the one who left keeps nobody out until its TTL is over
        pass
    await asyncio.sleep(0.4)  # by now the one who left was looked after, too
    await until_free(locks, key)


async def test_an_acquire_that_is_cancelled_at_any_moment_leaves_no_lock_behind(
    locks: Locks, rival: Locks, key: str
) -> None:
    await rival.status(key)
    for step in range(12):
        task = asyncio.create_task(locks.hold(key, ttl=30).acquire())
        await asyncio.sleep(step * 0.0005)
        task.cancel()
        try:
            lease = await task
        except asyncio.CancelledError:
            continue
        except LockHeld:  # the one before is being undone at this moment
            continue
        await lease.release()
    async with rival.hold(key, wait=20):  # below the TTL
        pass


async def test_an_acquire_that_is_cancelled_before_it_begins_leaves_no_coroutine_behind(
    locks: Locks, key: str, recwarn: pytest.WarningsRecorder
) -> None:
    for hold in (locks.hold(key, ttl=30), locks.hold(key, ttl=30, on_lost=lambda _: None)):
        task = asyncio.create_task(hold.acquire())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
        await hold.acquire()
        await hold.release()
    assert [str(warning.message) for warning in recwarn if "never awaited" in str(warning.message)] == []


async def test_a_forced_release_is_noticed_and_raised_at_the_end(locks: Locks, rival: Locks, key: str) -> None:
    with pytest.raises(LockLost):
        async with locks.hold(key, ttl=3) as lease:
            await rival.force_release(key, reason="as a test")
            await asyncio.wait_for(lease.lost.wait(), 30)
            assert lease.lost.is_set()
            with pytest.raises(LockLost, match="as a test"):  # so it was the next renewal, and not the deadline
                lease.ensure_held()


async def test_a_loss_that_no_renewal_noticed_yet_is_raised_by_the_release(
    locks: Locks, rival: Locks, key: str
) -> None:
    with pytest.raises(LockLost):
        async with locks.hold(key, ttl=30):
            await rival.force_release(key, reason="test")


async def test_a_loss_does_not_mask_what_the_body_raised(locks: Locks, rival: Locks, key: str) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        async with locks.hold(key, ttl=30):
            await rival.force_release(key, reason="test")
            raise ZeroDivisionError
    assert any("over" in note for note in raised.value.__notes__)


async def test_cancel_on_lost_ends_the_body_and_raises_lock_lost(locks: Locks, rival: Locks, key: str) -> None:
    with pytest.raises(LockLost, match="as a test"):  # so it was the next renewal, and not the deadline
        async with locks.hold(key, ttl=3, cancel_on_lost=True):
            await rival.force_release(key, reason="as a test")
            await asyncio.sleep(60)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0.01)  # the task goes on as if it had never been cancelled


async def test_a_cancellation_from_outside_stays_one_even_when_the_lock_is_lost(
    locks: Locks, rival: Locks, key: str
) -> None:
    inside = asyncio.Event()

    async def body() -> None:
        async with locks.hold(key, ttl=30, cancel_on_lost=True):
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await inside.wait()
    await rival.force_release(key, reason="test")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_on_lost_is_called_once_in_the_callers_loop(locks: Locks, rival: Locks, key: str) -> None:
    called: list[tuple[Lease, asyncio.AbstractEventLoop]] = []
    handle = locks.hold(key, ttl=1, on_lost=lambda lease: called.append((lease, asyncio.get_running_loop())))
    lease = await handle.acquire()
    await rival.force_release(key, reason="test")
    await asyncio.wait_for(lease.lost.wait(), 30)
    async with asyncio.timeout(20):
        while not called:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # and not a second time
    assert called == [(lease, asyncio.get_running_loop())]
    with pytest.raises(LockLost):
        await handle.release()


async def test_a_re_entrant_hold_shares_the_token_and_is_released_one_by_one(
    locks: Locks, rival: Locks, key: str
) -> None:
    async with locks.hold(key, reentrant=True) as outer:
        async with locks.hold(key, reentrant=True) as inner:
            assert inner.token == outer.token
            assert inner.lock_token != outer.lock_token
        outer.ensure_held()
        assert await rival.try_hold(key, reentrant=True) is None
        with pytest.raises(LockHeld):
            await locks.hold(key).acquire()
    await until_free(locks, key)


async def test_a_request_id_of_the_caller_gives_the_same_lease_and_never_a_second_one(locks: Locks, key: str) -> None:
    request_id = f"{key}:{time.time_ns()}"
    first = await locks.hold(key, request_id=request_id).acquire()
    again = await locks.hold(key, request_id=request_id).acquire()
    assert (again.token, again.lock_token) == (first.token, first.lock_token)
    await first.release()
    with pytest.raises(LockExpired):
        await locks.hold(key, request_id=request_id).acquire()


async def test_an_exported_lease_goes_on_in_another_client(locks: Locks, rival: Locks, key: str) -> None:
    lease = await locks.hold(key, ttl=3).acquire()
    async with rival.attach(lease.export()) as taken_up:
        assert (taken_up.token, taken_up.owner_id) == (lease.token, lease.owner_id)
        taken_up.ensure_held()
    await until_free(locks, key)
    await asyncio.wait_for(lease.lost.wait(), 30)  # the one who exported it hears of the release by its next renewal
    with pytest.raises(LockLost):
        await lease.release()


async def test_a_lease_that_is_over_cannot_be_taken_up(locks: Locks, rival: Locks, key: str) -> None:
    async with locks.hold(key) as lease:
        exported = lease.export()
    with pytest.raises(LockLost):
        await rival.attach(exported)


async def test_closing_a_client_releases_what_it_still_holds(url: str, rival: Locks, key: str) -> None:
    async with connect(url) as client:
        lease = await client.hold(key).acquire()
    assert lease.state is LeaseState.RELEASED
    async with rival.hold(key):
        pass


async def test_list_gives_the_held_locks_of_a_prefix(locks: Locks, key: str) -> None:
    async with locks.hold(f"{key}/b"), locks.hold(f"{key}/a"):
        assert [lock["lockKey"] for lock in await locks.list(f"{key}/")] == [f"{key}/a", f"{key}/b"]
        assert await locks.list(prefix=f"{key}/", namespace="other") == []
    assert await locks.list(f"{key}/") == []


async def test_force_release_of_a_free_lock_says_so(locks: Locks, key: str) -> None:
    assert (await locks.status(key)) == {"lockKey": key, "locked": False}
    with pytest.raises(FencegateError, match="nobody holds"):
        await locks.force_release(key, reason="test")


@pytest.mark.parametrize("bad", ["", "a/", "..", "a\nb", "x" * 1025, "\ud800"])
async def test_a_bad_lock_key_is_refused_before_anything_is_sent(bad: str) -> None:
    locks = connect("http://127.0.0.1:9")
    with pytest.raises(InvalidInput, match="lockKey"):
        locks.hold(bad)
    with pytest.raises(InvalidInput, match="lockKey"):
        await locks.status(bad)


@pytest.mark.parametrize("bad", [None, 5, b"a", True])
def test_a_lock_key_that_is_no_text_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="lockKey: must be a string"):
        connect("http://127.0.0.1:9").hold(bad)


async def test_keys_of_any_legal_form_come_through(locks: Locks, key: str) -> None:
    for name in (f"{key}/a/acquire", f"{key}:%2F", f"{key}:a b?c#d&e", f"{key}:鍵", f"{key}:{'x' * 900}"):
        async with locks.hold(name) as lease:
            assert (await locks.status(name))["fencingToken"] == lease.token.wire


async def test_where_no_server_is_it_says_so_at_once_or_when_the_wait_is_over() -> None:
    async with connect("http://me:hunter2@127.0.0.1:9") as locks:
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9") as told:
            await locks.hold("a").acquire()
        assert "hunter2" not in str(told.value)
        assert time.monotonic() - begun < 10
        with pytest.raises(StoreUnavailable):
            await locks.hold("a", wait=0.5).acquire()
        assert 0.4 < time.monotonic() - begun < 20


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:7420",
        "://x",
        "http://",
        "http:///x",
        "https://here and there",
        "http://h:port",
        "http://127.0.0.1:99999",
        "http://[::1",
        "http://me:hunter2@here:port",
        "http://127.0.0.1:7420?x=1",
        "http://127.0.0.1:7420#x",
    ],
)
def test_what_is_no_address_is_refused_by_connect(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEGATE_URL", url)
    if url:
        with pytest.raises(InvalidInput, match="url") as refused:
            connect()
        assert "hunter2" not in str(refused.value)
    else:
        connect()
