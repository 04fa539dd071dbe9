"""The client and processes: import time, several event loops and threads, fork, and handing a lease on."""

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import fencegate
from fencegate import (
    FencegateError,
    LeaseState,
    LockHeld,
    LockLost,
    Locks,
    ResourceUnavailable,
    StaleToken,
    UnsafeConfiguration,
    connect,
    sync,
)
from fencegate.core.errors import InvalidInput, MethodNotAllowed, RangeNotSatisfiable
from tests.servers import Server


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"process:{request.node.name}"


def in_fork(work: Callable[[], None]) -> None:
    """Run this in a forked child, and fail if it fails there."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + 60
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail("the child hung")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(done[1]) == 0


def run_python(code: str, *arguments: str, within_s: float = 90.0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=within_s, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_connecting_at_import_time_starts_no_thread_no_loop_and_no_io() -> None:
    out = run_python(
        """
import sys, threading
import fencegate, fencegate.sync
locks = fencegate.connect("http://127.0.0.1:9")
fencegate.sync.connect("sqlite:////nowhere/at/all")
locks.hold("a")
assert threading.active_count() == 1, threading.enumerate()
print("httpx" in sys.modules, "sqlalchemy" in sys.modules, "fencegate_lockservice" in sys.modules)
"""
    )
    assert out.split() == ["False", "False", "False"]


def test_the_url_comes_from_the_environment(server: Server, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEGATE_URL", server.url)
    with sync.connect() as locks, locks.hold(key):
        assert locks.status(key)["ownerId"] == locks.owner_id


@pytest.mark.parametrize("embedded", [None, "sqlite", "memory"])
def test_one_client_serves_several_runs_of_asyncio(
    server: Server, key: str, embedded: str | None, tmp_path: Path
) -> None:
    urls = {None: server.url, "sqlite": f"sqlite:///{tmp_path}/locks.db", "memory": "memory://runs"}
    locks = connect(urls[embedded])
    tokens = []

    async def once() -> None:
        async with locks.hold(key) as lease:
            tokens.append(lease.token)

    for _ in range(3):
        asyncio.run(once())
    assert tokens == sorted(set(tokens))

    async def acquire() -> fencegate.Lease:
        return await locks.hold(key, ttl=3).acquire()

    lease = asyncio.run(acquire())
    time.sleep(3.1)  # no loop of ours runs, and the lease is renewed all the same
    lease.ensure_held()
    asyncio.run(lease.release())
    asyncio.run(once())
    asyncio.run(locks.aclose())


def test_a_run_that_ends_in_the_middle_of_a_wait_or_a_hold_leaves_nothing_behind(server: Server, key: str) -> None:
    locks = connect(server.url)

    async def hold(inside: asyncio.Event) -> None:
        async with locks.hold(key):
            inside.set()
            await asyncio.sleep(60)

    async def main() -> None:
        inside = asyncio.Event()
        tasks: list[asyncio.Task[object]] = [asyncio.create_task(hold(inside))]
        await inside.wait()
        tasks.append(asyncio.create_task(locks.hold(key, wait=60).acquire()))
        while not (await locks.status(key))["waiters"]:
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)  # asyncio.run cancels them both

    asyncio.run(main())
    with sync.connect(server.url) as rival, rival.hold(key, wait=20):  # below the TTL
        pass


async def test_a_client_may_be_closed_while_it_opens_its_store(tmp_path: Path, key: str) -> None:
    for turns in range(8):
        locks = connect(f"sqlite:///{tmp_path}/locks.db")
        asking = asyncio.ensure_future(locks.status(key))
        for _ in range(turns):
            await asyncio.sleep(0)
        await locks.aclose()
        with contextlib.suppress(fencegate.FencegateError):  # closed under it, or just in time
            await asking
        await locks.aclose()


def test_the_sync_client_excludes_threads_from_each_other(server: Server, key: str) -> None:
    locks = sync.connect(server.url)
    inside, seen, tokens = [0], [0], []

    def work() -> None:
        for _ in range(5):
            with locks.hold(key, wait=60) as lease:
                inside[0] += 1
                seen[0] = max(seen[0], inside[0])
                tokens.append(lease.token)
                time.sleep(0.002)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    locks.close()
    assert seen == [1]
    assert len(tokens) == 20
    assert tokens == sorted(set(tokens))


def test_the_sync_client_keeps_the_same_promises(server: Server, key: str) -> None:
    with sync.connect(server.url) as locks, sync.connect(server.url) as rival:
        with locks.hold(key, ttl=3) as lease:
            with pytest.raises(LockHeld):
                rival.hold(key).acquire()
            with rival.try_hold(key) as other:
                assert other is None
            time.sleep(3.2)
            lease.ensure_held()
            assert not lease.lost.is_set()
            assert [lock["lockKey"] for lock in rival.list(key)] == [key]
        assert lease.state is LeaseState.RELEASED
        with pytest.raises(ZeroDivisionError) as raised, locks.hold(key):
            rival.force_release(key, reason="test")
            raise ZeroDivisionError
        assert raised.value.__notes__
        with pytest.raises(LockLost), locks.hold(key):
            rival.force_release(key, reason="test")
        exported = locks.hold(key).acquire().export()
        with rival.attach(exported) as taken_up:
            assert rival.status(key)["fencingToken"] == taken_up.token.wire
        assert not rival.status(key)["locked"]


def test_a_sync_wait_that_is_interrupted_leaves_nothing_behind(server: Server, key: str) -> None:
    out = run_python(
        """
import os, signal, sys, threading, time
from fencegate import sync
locks = sync.connect(sys.argv[1])
def interrupt_the_wait():
    while not locks.status(sys.argv[2])["waiters"]:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
with locks.hold(sys.argv[2]):
    try:
        threading.Thread(target=interrupt_the_wait).start()
        locks.hold(sys.argv[2], wait=60).acquire()
    except KeyboardInterrupt:
        print("interrupted")
with locks.hold(sys.argv[2], wait=20):
    print("free")
""",
        server.url,
        key,
    )
    assert out.split() == ["interrupted", "free"]


def test_a_process_that_exits_right_after_a_cancelled_acquire_leaves_no_lock(server: Server, key: str) -> None:
    out = run_python(
        """
import asyncio, sys
from fencegate import connect
locks = connect(sys.argv[1])
async def main():
    await locks.status("warm")
    task = asyncio.create_task(locks.hold(sys.argv[2], ttl=60).acquire())
    for _ in range(8):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    print(task.cancelled())
asyncio.run(main())
""",
        server.url,
        key,
    )
    assert out.split() == ["True"]
    with sync.connect(server.url) as locks, locks.hold(key):
        pass


def test_another_process_takes_a_lease_up(server: Server, key: str) -> None:
    locks = sync.connect(server.url)
    handle = locks.hold(key, ttl=30)
    lease = handle.acquire()
    out = run_python(
        """
import sys
from fencegate import sync
with sync.connect(sys.argv[1]).attach(sys.argv[2]) as lease:
    print(lease.token, lease.owner_id)
""",
        server.url,
        lease.export(),
    )
    assert out.split() == [lease.token.wire, locks.owner_id]
    assert not locks.status(key)["locked"]
    locks.close()


@pytest.mark.parametrize(
    "error",
    [
        StaleToken(33, 34, resource="accounts"),
        LockHeld("held", currentOwner="B", retryAfterMillis=5),
        ResourceUnavailable("gone", outcome="unknown"),
        InvalidInput("ttlMillis", "is too long"),
        MethodNotAllowed("not here", allow="GET"),
        RangeNotSatisfiable(7),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_whole_out_of_another_process(error: FencegateError) -> None:
    """One that can't be unpickled is never told, and a pool of `multiprocessing` tells of nothing else after it."""
    error.add_note("seen by a worker")
    told = pickle.loads(pickle.dumps(error))
    assert (type(told), str(told), told.args, vars(told)) == (type(error), str(error), error.args, vars(error))


def test_after_a_fork_the_childs_client_works_and_its_handles_do_not(server: Server, key: str) -> None:
    locks = sync.connect(server.url)
    parent_owner = locks.owner_id
    handle = locks.hold(key, ttl=3, reentrant=True)
    lease = handle.acquire()

    def child() -> None:
        assert not lease.held
        assert lease.lost.is_set()
        for refused in (lease.ensure_held, lease.headers, lease.export, lease.release, handle.release):
            with pytest.raises(LockLost, match="forked"):
                refused()
        assert locks.owner_id != parent_owner
        with pytest.raises(LockHeld):  # not let in by the parent's name, and the parent's lock was not released
            locks.hold(key, reentrant=True).acquire()
        with locks.hold(f"{key}:child", ttl=3) as own:
            time.sleep(3.2)
            own.ensure_held()

    in_fork(child)
    lease.ensure_held()  # renewed through the fork
    assert locks.status(key)["fencingToken"] == lease.token.wire
    handle.release()
    locks.close()


def test_a_block_that_a_forked_child_leaves_does_not_release_the_parents_lock(server: Server, key: str) -> None:
    locks = sync.connect(server.url, owner_id="named")
    handle = locks.hold(key)
    lease = handle.__enter__()

    def child() -> None:
        assert locks.owner_id.startswith("named:")
        with pytest.raises(LockLost, match="forked"):
            handle.__exit__(None, None, None)

    in_fork(child)
    assert locks.status(key)["fencingToken"] == lease.token.wire
    handle.__exit__(None, None, None)
    locks.close()


async def test_the_async_client_works_in_a_forked_child(server: Server, key: str) -> None:
    async with connect(server.url) as locks, locks.hold(key, ttl=5) as lease:
        child = multiprocessing.get_context("fork").Process(target=_in_child, args=(locks, lease, key))
        child.start()
        await asyncio.to_thread(child.join, 60)
        assert child.exitcode == 0
        lease.ensure_held()
        assert (await locks.status(key))["fencingToken"] == lease.token.wire


def _in_child(locks: Locks, lease: fencegate.Lease, key: str) -> None:
    async def main() -> None:
        with pytest.raises(LockLost):
            lease.ensure_held()
        with pytest.raises(LockLost):
            await lease.release()
        assert await locks.try_hold(key) is None
        async with locks.hold(f"{key}:child"):
            pass

    asyncio.run(main())


def test_an_event_loop_that_moved_to_another_thread_is_not_taken_for_the_one_that_runs_here(key: str) -> None:
    async def own() -> None:
        async with connect("memory://") as locks, locks.hold(key, ttl=5) as lease:
            lease.ensure_held()

    moved = asyncio.new_event_loop()
    moved.run_until_complete(own())
    thread = threading.Thread(target=moved.run_forever)
    runs = threading.Event()
    moved.call_soon(runs.set)
    thread.start()
    try:
        assert runs.wait(30)
        asyncio.run(own())
    finally:
        moved.call_soon_threadsafe(moved.stop)
        thread.join(30)
        moved.close()


async def test_a_child_forked_by_a_running_event_loop_uses_the_loop_that_it_runs_itself(key: str) -> None:
    async def own() -> None:
        async with connect("memory://") as locks, locks.hold(key, ttl=5) as lease:
            lease.ensure_held()

    await own()  # so that this thread knows its event loop
    in_fork(lambda: asyncio.run(own()))


def test_a_forked_child_is_refused_the_parents_embedded_store_at_once(tmp_path: Path, key: str) -> None:
    locks = sync.connect(f"sqlite:///{tmp_path}/locks.db")
    handle = locks.hold(key, ttl=30)
    lease = handle.acquire()

    def child() -> None:
        begun = time.monotonic()
        with pytest.raises(UnsafeConfiguration, match="another process"):
            locks.hold(f"{key}:child").acquire()
        assert time.monotonic() - begun < 20

    in_fork(child)
    assert locks.status(key)["fencingToken"] == lease.token.wire
    handle.release()
    locks.close()
