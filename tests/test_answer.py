"""Where the outcome of a command is awaited: like a future, and at once where it was held back until the end."""

import asyncio
from collections.abc import Callable

import pytest

from fencegate.engine.answer import Answer


async def waiting(answer: Answer[str], heard: list[str]) -> str:
    heard.append(await answer)
    return heard[-1]


async def begun(answer: Answer[str]) -> tuple[list[str], "asyncio.Task[str]"]:
    heard: list[str] = []
    task = asyncio.get_running_loop().create_task(waiting(answer, heard))
    await asyncio.sleep(0)
    return heard, task


async def as_callback(call: Callable[[], None]) -> None:
    """Outside of any task, as answers of a server come."""
    done = asyncio.get_running_loop().create_future()

    def run() -> None:
        call()
        done.set_result(None)

    asyncio.get_running_loop().call_soon(run)
    await done


def new() -> Answer[str]:
    return Answer(asyncio.get_running_loop())


async def test_whoever_waits_goes_on_in_the_next_turn_as_with_a_future() -> None:
    answer = new()
    heard, task = await begun(answer)
    answer.set_result("yes")
    assert heard == []
    assert await task == "yes"


async def test_what_is_there_already_is_not_waited_for() -> None:
    answer = new()
    answer.set_result("yes")
    assert await waiting(answer, []) == "yes"


async def test_what_was_held_back_is_heard_before_go_on_returns_and_not_before() -> None:
    answer = new()
    heard, task = await begun(answer)
    seen: list[list[str]] = []

    def bring() -> None:
        answer.hold_back()
        answer.set_result("yes")
        seen.append(list(heard))
        answer.go_on()
        seen.append(list(heard))

    await as_callback(bring)
    assert seen == [[], ["yes"]]
    assert await task == "yes"


async def test_a_task_that_brings_it_is_not_interrupted() -> None:
    answer = new()
    heard, task = await begun(answer)
    answer.hold_back()
    answer.set_result("yes")
    answer.go_on()
    assert heard == []
    assert await task == "yes"


async def test_what_was_held_back_without_an_outcome_is_heard_when_that_comes() -> None:
    answer = new()
    heard, task = await begun(answer)

    def look() -> None:
        answer.hold_back()
        answer.go_on()

    await as_callback(look)
    assert heard == []
    assert not answer.done()
    answer.set_result("later")
    assert await task == "later"


async def test_an_error_is_raised_where_it_is_awaited() -> None:
    answer = new()
    _, task = await begun(answer)
    answer.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await task


async def test_whoever_is_cancelled_stops_waiting_and_what_comes_later_is_for_nobody() -> None:
    answer = new()
    heard, task = await begun(answer)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert answer.done()
    assert heard == []


async def test_a_cancellation_that_comes_with_the_outcome_wins_as_it_does_with_a_future() -> None:
    answer = new()
    heard, task = await begun(answer)
    answer.set_result("yes")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == []


async def test_a_waiter_that_fails_when_it_goes_on_does_not_hurt_whoever_brought_it() -> None:
    answer = new()

    async def fails() -> None:
        await answer
        raise RuntimeError("of the waiter's own")

    task = asyncio.get_running_loop().create_task(fails())
    await asyncio.sleep(0)

    def bring() -> None:
        answer.hold_back()
        answer.set_result("yes")
        answer.go_on()

    await as_callback(bring)
    with pytest.raises(RuntimeError, match="own"):
        await task


async def test_a_waiter_in_uvloop_goes_on_at_once_too() -> None:
    uvloop = pytest.importorskip("uvloop")

    def inside() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test_what_was_held_back_is_heard_before_go_on_returns_and_not_before())

    await asyncio.to_thread(inside)
