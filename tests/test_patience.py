"""The limit of a call: what takes too long is cancelled and told as unknown; nobody else's cancellation is taken."""

import asyncio
import gc
import time
import weakref

import pytest

from fencegate.client.patience import within
from fencegate.core.errors import OutcomeUnknown
from fencegate.limits import Waits


def _cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_what_answers_in_time_gives_its_answer() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 7

    assert await within(answer(), 10) == 7


async def test_what_takes_too_long_is_cancelled_and_told_as_unknown() -> None:
    cancelled = False

    async def stuck() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    with pytest.raises(OutcomeUnknown, match=r"0\.05 s"):
        await within(stuck(), 0.05)
    assert cancelled
    assert _cancelling() == 0  # the task goes on as if nothing had been


async def test_a_call_that_is_cut_off_while_it_finishes_still_answers() -> None:
    async def finishes_all_the_same() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done"
        raise AssertionError

    assert await within(finishes_all_the_same(), 0.05) == "done"
    assert _cancelling() == 0


async def test_an_error_of_a_call_that_is_cut_off_is_its_own() -> None:
    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("of its own")

    with pytest.raises(KeyError):
        await within(fails(), 0.05)
    assert _cancelling() == 0


async def test_a_cancellation_from_outside_stays_one() -> None:
    begun = asyncio.Event()

    async def stuck() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(within(stuck(), 60))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_limits_may_lie_within_each_other() -> None:
    async def inner() -> str:
        try:
            await within(asyncio.Event().wait(), 0.05)
        except OutcomeUnknown:
            return "the inner one"
        raise AssertionError

    assert await within(inner(), 60) == "the inner one"


async def test_a_thousand_limits_at_once_are_all_kept() -> None:
    async def one(number: int) -> bool:
        try:
            await within(asyncio.Event().wait() if number % 2 else asyncio.sleep(0), 0.05)
        except OutcomeUnknown:
            return False
        return True

    answers = await asyncio.gather(*(one(number) for number in range(1000)))
    assert answers == [number % 2 == 0 for number in range(1000)]


async def test_a_bound_future_has_all_of_its_time_though_the_event_loop_stood_still_before() -> None:
    loop = asyncio.get_running_loop()
    waits = Waits.of(loop)
    waits.bound(loop.create_future(), 60, TimeoutError)  # so that the timer is set already
    await asyncio.sleep(0)
    loop.call_soon(time.sleep, 0.5)
    await asyncio.sleep(0)
    bound, begun_s = loop.create_future(), loop.time()
    waits.bound(bound, 0.3, TimeoutError)
    with pytest.raises(TimeoutError):
        await bound
    assert loop.time() - begun_s >= 0.3


def test_an_event_loop_that_was_closed_is_not_kept_by_what_was_bound_in_it() -> None:
    async def bind() -> "weakref.ref[asyncio.AbstractEventLoop]":
        loop = asyncio.get_running_loop()
        bound: asyncio.Future[None] = loop.create_future()
        Waits.of(loop).bound(bound, 60, TimeoutError)
        bound.set_result(None)
        return weakref.ref(loop)

    gone = asyncio.run(bind())
    gc.collect()
    assert gone() is None
