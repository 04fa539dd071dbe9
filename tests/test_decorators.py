"""Functions under a lock: `once` makes others skip, `guarded` makes them wait, in both faces, async or not."""

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencegate import FencegateError, InvalidInput, Lease, LockHeld, LockLost, Locks, connect, sync
from tests.child import Child
from tests.eventually import PATIENCE_S, eventually
from tests.servers import Server

LONG_TTL_S = 300.0


@pytest.fixture(params=["http", "sqlite", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "http":
        server = request.getfixturevalue("server")
        return str(server.url)
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture(params=["async client", "sync client"])
def face(request: pytest.FixtureRequest, url: str) -> Iterator[Locks | sync.Locks]:
    """Either client decorates either kind of function."""
    with sync.connect(url) as blocking:
        if request.param == "sync client":
            yield blocking
        else:
            client = connect(url)
            yield client
            asyncio.run(client.aclose())


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"deco:{request.node.name}"


async def until_waiting(locks: Locks, key: str) -> None:
    async def waits() -> bool:
        return bool((await locks.status(key)).get("waiters"))

    await eventually(waits)


def test_once_runs_for_one_caller_and_others_skip(face: Locks | sync.Locks, url: str, key: str) -> None:
    runs: list[str] = []

    @face.once(key, ttl=LONG_TTL_S)
    def report(day: str) -> str:
        """Makes the report."""
        runs.append(day)
        if day == "monday":
            assert report("tuesday") is None  # somebody calls it while it runs
        return f"report of {day}"

    assert report("monday") == "report of monday"
    assert report("wednesday") == "report of wednesday"
    assert runs == ["monday", "wednesday"]
    assert (report.__name__, report.__doc__) == ("report", "Makes the report.")


async def test_once_runs_a_coroutine_function_for_one_caller_and_others_skip(locks: Locks, url: str, key: str) -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    with sync.connect(url) as blocking:

        @locks.once(key, ttl=LONG_TTL_S)
        async def here() -> str:
            started.set()
            await finish.wait()
            return "done"

        @blocking.once(key, ttl=LONG_TTL_S)
        async def elsewhere() -> str:
            return "done elsewhere"

        running = asyncio.create_task(here())
        await started.wait()
        assert await elsewhere() is None
        finish.set()
        assert await running == "done"
        assert await elsewhere() == "done elsewhere"


def test_once_with_keep_skips_for_a_while_after_success_but_not_after_failure(
    face: Locks | sync.Locks, url: str, key: str
) -> None:
    runs: list[int] = []

    @face.once(key, ttl=2, keep=LONG_TTL_S)
    def report(number: int) -> int:
        runs.append(number)
        if number == 1:
            raise ValueError("no data yet")
        return number

    with sync.connect(url) as other:
        with pytest.raises(ValueError, match="no data yet"):
            report(1)
        assert report(2) == 2
        assert report(3) is None
        assert other.status(key)["remainingMillis"] > LONG_TTL_S * 500
    assert runs == [1, 2]


async def test_once_with_keep_skips_for_coroutine_functions_too(locks: Locks, key: str) -> None:
    @locks.once(key, ttl=2, keep=LONG_TTL_S)
    async def report(number: int) -> int:
        return number

    assert await report(1) == 1
    assert await report(2) is None
    assert (await locks.status(key))["remainingMillis"] > LONG_TTL_S * 500


async def test_what_is_kept_runs_out_by_itself(locks: Locks, key: str) -> None:
    @locks.once(key, ttl=1, keep=1)
    async def report(number: int) -> int:
        return number

    assert await report(0) == 0
    async with asyncio.timeout(PATIENCE_S):
        while await report(1) is None:
            await asyncio.sleep(0.1)


async def test_a_held_lock_inside_the_function_is_not_taken_for_a_skip(locks: Locks, key: str) -> None:
    @locks.once(key)
    async def report() -> None:
        raise LockHeld("of another lock")

    with pytest.raises(LockHeld, match="of another lock"):
        await report()


def test_guarded_calls_take_turns_by_their_arguments(face: Locks | sync.Locks, key: str) -> None:
    inside: dict[str, int] = {}
    crowd: list[int] = []

    @face.guarded(f"{key}:{{sku}}", ttl=LONG_TTL_S, wait=PATIENCE_S)
    def reserve(count: int, sku: str = "a", *, pause_s: float = 0.02) -> int:
        inside[sku] = inside.get(sku, 0) + 1
        crowd.append(inside[sku])
        time.sleep(pause_s)
        inside[sku] -= 1
        return count

    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(reserve(n))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(results) == [0, 1, 2, 3]
    assert crowd == [1, 1, 1, 1]


async def test_guarded_coroutine_functions_wait_for_their_turn(locks: Locks, url: str, key: str) -> None:
    with sync.connect(url) as blocking:

        @blocking.guarded(f"{key}:{{sku}}", ttl=LONG_TTL_S)
        async def reserve(sku: str) -> str:
            return f"reserved {sku}"

        async with locks.hold(f"{key}:a", ttl=LONG_TTL_S):
            waiting = asyncio.create_task(reserve("a"))
            await until_waiting(locks, f"{key}:a")
            assert await reserve(sku="b") == "reserved b"  # another lock
            assert not waiting.done()
        async with asyncio.timeout(PATIENCE_S):
            assert await waiting == "reserved a"


async def test_guarded_raises_when_the_wait_was_too_short_and_does_not_run(locks: Locks, key: str) -> None:
    runs: list[int] = []

    @locks.guarded(key, wait=0)
    async def work() -> None:
        runs.append(1)

    @locks.guarded(key, wait=0)
    def plain_work() -> None:
        runs.append(2)

    async with locks.hold(key, ttl=LONG_TTL_S):
        with pytest.raises(LockHeld):
            await work()
        with pytest.raises(LockHeld):
            await asyncio.to_thread(plain_work)
    assert runs == []
    await work()
    await asyncio.to_thread(plain_work)
    assert runs == [1, 2]


async def test_a_cancelled_call_gives_the_lock_back(locks: Locks, key: str) -> None:
    started = asyncio.Event()

    @locks.guarded(key, ttl=LONG_TTL_S)
    async def work() -> None:
        started.set()
        await asyncio.sleep(PATIENCE_S)

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with locks.hold(key, wait=PATIENCE_S):
        pass


def test_a_function_that_asks_for_the_lease_gets_it_and_its_callers_do_not_pass_it(
    face: Locks | sync.Locks, key: str
) -> None:
    @face.guarded(f"{key}:{{sku}}")
    def reserve(lease: Any, sku: str, count: int = 1) -> tuple[str, int, int]:
        lease.ensure_held()
        return (lease.lock_key, lease.token, count)

    guarded: Callable[..., tuple[str, int, int]] = reserve
    lock_key, token, count = guarded("a", count=2)
    assert (lock_key, count) == (f"{key}:a", 2)
    assert token > 0
    assert list(inspect.signature(guarded).parameters) == ["sku", "count"]
    with pytest.raises(TypeError, match="lease"):
        guarded("a", lease="forged")

    @face.once(key)
    def report(*, lease: object = None) -> bool:
        return lease is not None

    assert report() is True


async def test_a_coroutine_function_gets_an_async_lease(locks: Locks, key: str) -> None:
    @locks.once(key)
    async def report(lease: Lease | None = None) -> Lease | None:
        return lease

    lease = await report()
    assert isinstance(lease, Lease)
    assert not lease.held  # the call is over


async def test_a_lock_that_was_lost_meanwhile_is_told(locks: Locks, key: str) -> None:
    @locks.guarded(key, ttl=LONG_TTL_S)
    async def work() -> None:
        await locks.force_release(key, "test")

    @locks.once(key, ttl=LONG_TTL_S, keep=LONG_TTL_S)
    async def report() -> None:
        await locks.force_release(key, "test")

    with pytest.raises(LockLost):
        await work()
    with pytest.raises(LockLost):
        await report()


def test_methods_fill_the_template_from_their_object(face: Locks | sync.Locks, key: str) -> None:
    seen: list[str] = []

    class Shop:
        tenant = "acme"

        @face.guarded(f"{key}:{{self.tenant}}:{{order[sku]}}")
        def reserve(self, order: dict[str, str], lease: Any = None) -> None:
            seen.append(lease.lock_key)

    Shop().reserve({"sku": "7"})
    assert seen == [f"{key}:acme:7"]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("inventory:{ksu}", "ksu.*there are: sku, count"),
        ("inventory:{}", "name of a parameter"),
        ("inventory:{0}", "name of a parameter"),
        ("inventory:{sku", "can't be read"),
        ("inventory:{lease}", "lease"),
        ("inventory:{sku:{width}}", "width"),
        ("", "empty"),
        ("a//b", "segment"),
    ],
)
def test_a_template_that_does_not_fit_is_refused_when_decorating(template: str, says: str) -> None:
    locks = connect("memory://")

    def reserve(sku: str, count: int = 1, lease: object = None) -> None: ...

    with pytest.raises(InvalidInput, match=says):
        locks.guarded(template)(reserve)
    with pytest.raises(InvalidInput, match=says):
        locks.once(template)(reserve)


@pytest.mark.parametrize("sku", [None, "", object(), "a\nb", "../x/..", "x" * 2000])
def test_an_argument_that_makes_no_good_key_is_refused_and_the_function_does_not_run(sku: object) -> None:
    runs: list[int] = []
    locks = sync.connect("memory://")

    @locks.guarded("inventory/{sku}")
    def reserve(sku: object) -> None:
        runs.append(1)

    with pytest.raises(InvalidInput):
        reserve(sku)
    with pytest.raises(TypeError):
        reserve()  # type: ignore[call-arg]
    assert runs == []


def test_what_would_run_after_the_release_is_refused() -> None:
    locks = sync.connect("memory://")
    with pytest.raises(TypeError, match="generator"):

        @locks.guarded("a")
        def rows() -> Iterator[int]:
            yield 1

    with pytest.raises(TypeError, match="generator"):

        @locks.once("a")
        async def async_rows() -> AsyncIterator[int]:
            yield 1

    async def work() -> None: ...

    @locks.guarded("a")
    def start() -> object:
        return work()

    with pytest.raises(TypeError, match="coroutine"):
        start()
    locks.close()


def test_terms_that_make_no_sense_for_every_call_are_refused_when_decorating() -> None:
    locks = connect("memory://")
    with pytest.raises(InvalidInput, match="wait"):
        locks.once("a", wait=5)
    with pytest.raises(InvalidInput, match="request_id"):
        locks.guarded("a", request_id="r")
    with pytest.raises(InvalidInput, match="ttl"):
        locks.guarded("a", ttl=0)
    with pytest.raises(TypeError, match="tll"):
        sync.connect("memory://").guarded("a", tll=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("keep", [0, -1, 0.5, 4000, float("nan"), "10"])
def test_a_bad_time_to_keep_is_refused(keep: Any) -> None:
    with pytest.raises(InvalidInput, match="keep"):
        connect("memory://").once("a", keep=keep)


def test_a_function_does_not_run_when_the_lock_service_is_away() -> None:
    runs: list[int] = []
    locks = sync.connect("http://127.0.0.1:9", timeout=0.5)

    @locks.once("a")
    def report() -> None:
        runs.append(1)

    with pytest.raises(FencegateError):
        report()
    assert runs == []


WORKER = """
    from fencegate.sync import connect
    locks = connect(sys.argv[1])  # as a module would, at import time

    @locks.once(sys.argv[2], ttl=60, keep=300)
    def report():
        return "ran"

    say("ready")
    sys.stdin.readline()
    say(report() or "skipped")
"""


def test_of_several_processes_that_start_a_job_at_once_one_runs_it(server: Server, key: str) -> None:
    children = [Child(WORKER, server.url, key) for _ in range(4)]
    try:
        for child in children:
            assert child.line() == "ready"
        for child in children:
            assert child.process.stdin is not None
            child.process.stdin.write("go\n")
            child.process.stdin.flush()
        assert sorted(child.line() for child in children) == ["ran", "skipped", "skipped", "skipped"]
    finally:
        for child in children:
            child.kill()
