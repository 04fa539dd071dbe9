"""The thread of a client process, and what the sync face asks of it: waiting, interrupts, exit, fork, green threads."""

import asyncio
import concurrent.futures
import contextvars
import gc
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fencegate import sync
from fencegate.client.background import Background, background
from tests.eventually import eventually_sync
from tests.servers import Server
from tests.test_client_process import in_fork, run_python


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"background:{request.node.name}"


def run_silent_python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@contextmanager
def held_by_another_thread(mutex: threading.RLock) -> Iterator[None]:
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            held.set()
            let_go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        yield
    finally:
        let_go.set()
        thread.join()


def test_work_sees_the_callers_context() -> None:
    asked_by: contextvars.ContextVar[str] = contextvars.ContextVar("asked_by", default="nobody")

    async def look() -> str:
        await asyncio.sleep(0)
        return asked_by.get()

    asked_by.set("us")
    assert background().run(look()) == "us"


class Failed(Exception):
    """Built-in ones can't be looked for weakly."""


def test_an_error_tells_of_both_threads_and_is_gone_when_it_is_forgotten() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise Failed

    def call() -> tuple[list[str], "weakref.ref[Failed]"]:
        try:
            background().run(fail())
        except Failed as error:
            return [frame.name for frame in traceback.extract_tb(error.__traceback__)], weakref.ref(error)
        raise AssertionError("it did not fail")

    gc.disable()
    try:
        names, error = call()
        assert (names[0], names[-1]) == ("call", "fail")
        eventually_sync(lambda: error() is None)  # the thread may be about to let go of it
    finally:
        gc.enable()


def test_work_that_somebody_else_cancels_is_not_taken_for_a_cancellation_of_the_caller() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(concurrent.futures.CancelledError):
        background().run(cancelled())


def test_work_that_ends_in_an_exit_ends_the_caller_and_not_the_thread() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def go_on() -> str:
        return "here"

    thread = Background()
    with pytest.raises(SystemExit):
        thread.run(leave())
    assert thread.run(go_on()) == "here"


@pytest.mark.parametrize("thread", ["main", "fencegate"])
def test_an_interrupt_cancels_the_work_and_waits_for_nothing(thread: str) -> None:
    """Also when another thread takes it, or it comes just before the wait begins: the kernel wakes nobody then."""
    out = run_silent_python(
        """
import asyncio, signal, sys, threading
from fencegate.client.background import background
begun, ended = threading.Event(), threading.Event()
async def work():
    begun.set()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        ended.set()
        await asyncio.sleep(60)
def interrupt():
    begun.wait(60)
    threads = {each.name: each for each in threading.enumerate()} | {"main": threading.main_thread()}
    signal.pthread_kill(threads[sys.argv[1]].ident, signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    background().run(work())
except KeyboardInterrupt:
    print("interrupted", ended.wait(60))
""",
        thread,
    )
    assert out.split() == ["interrupted", "True"]


def test_an_interrupt_at_whatever_moment_leaves_no_lock_behind() -> None:
    out = run_python(
        """
import os, random, signal, threading, time
from fencegate import sync
locks = sync.connect("memory://")
acquiring, over = [False], [False]
def interrupt_now_and_then():
    while not over[0]:
        time.sleep(random.random() * 0.002)
        if acquiring[0]:
            os.kill(os.getpid(), signal.SIGINT)
def handler(*_):
    if acquiring[0]:
        acquiring[0] = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, handler)
thread = threading.Thread(target=interrupt_now_and_then)
thread.start()
interrupted = 0
while interrupted < 300:
    handle = locks.hold(f"storm:{interrupted}", ttl=60)
    try:
        acquiring[0] = True
        handle.acquire()
        acquiring[0] = False
    except KeyboardInterrupt:
        interrupted += 1
    handle.release()  # it may have come just after the lock was there
over[0] = True
thread.join()
patience = time.monotonic() + 30
while locks.list("storm:") and time.monotonic() < patience:
    time.sleep(0.01)
print(len(locks.list("storm:")))
""",
    )
    assert out.split() == ["0"]


def test_exit_handlers_of_the_application_may_still_release(server: Server, key: str) -> None:
    """Those that were registered before ours come after it, when the thread has stopped."""
    out = run_silent_python(
        """
import atexit, sys
def late():
    handle.release()
    print("late", background().loop.is_running(), locks.status(sys.argv[2])["locked"])
atexit.register(late)
from fencegate import sync
from fencegate.client.background import background
def early():
    print("early", background().loop.is_running(), locks.status(sys.argv[2])["locked"])
atexit.register(early)
locks = sync.connect(sys.argv[1])
handle = locks.hold(sys.argv[2], ttl=60)
handle.acquire()
""",
        server.url,
        key,
    )
    assert out.split() == ["early", "True", "True", "late", "False", "False"]


def test_a_process_ends_in_silence_while_its_threads_wait_and_work(server: Server, key: str) -> None:
    run_silent_python(
        """
import sys, threading
from fencegate import sync
locks = sync.connect(sys.argv[1])
began = threading.Barrier(4)
def work(number):
    handle = locks.hold(f"{sys.argv[2]}:{number}", ttl=5)
    while True:
        with handle:
            began.wait()
for number in range(3):
    threading.Thread(target=work, args=(number,), daemon=True).start()
for _ in range(5):
    began.wait(60)
""",
        server.url,
        key,
    )


def test_green_threads_are_given_an_event_loop_that_gives_way() -> None:
    """gevent and eventlet replace this function, and what waits in C code would stop all of them."""
    code = """
import _thread, sys
real = _thread.start_new_thread
if sys.argv[1] == "green":
    _thread.start_new_thread = lambda *arguments: real(*arguments)
from fencegate.client.background import background
async def name():
    import asyncio
    return type(asyncio.get_running_loop()).__module__
print(background().run(name()).partition(".")[0])
"""
    assert run_silent_python(code, "green").split() == ["asyncio"]
    assert run_silent_python(code, "usual").split() == ["uvloop"]


def test_in_a_forked_child_a_lease_is_lost_whatever_the_parents_threads_were_doing(server: Server, key: str) -> None:
    with sync.connect(server.url) as locks, locks.hold(key) as lease:

        def child() -> None:
            assert lease.lost.is_set()
            assert lease.lost.wait(0)

        with held_by_another_thread(lease._mutex):
            in_fork(child)
        assert not lease.lost.is_set()


def test_the_event_of_a_loss_is_one_and_those_who_ask_for_it_afterwards_find_it_set(server: Server, key: str) -> None:
    with sync.connect(server.url) as locks, sync.connect(server.url) as rival:
        lease = locks.hold(key, ttl=3).acquire()
        rival.force_release(key, reason="test")
        eventually_sync(lambda: not lease.held)
        event = lease.lost
        assert event.wait(0)
        assert lease.lost is event
