"""Changes of one frame take turns in a process: in order, and whoever gives up holds nobody up."""

import asyncio

import pytest

from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.objects.bucket.keys import Place
from fencegate_adapters.objects.bucket.turns import Turns

PLACE = Place("objects/k.fg", "k")
OTHER = Place("objects/other.fg", "other")


class Line:
    """Tasks that want turns, and in which order they had them."""

    def __init__(self, wait_s: float = 60.0) -> None:
        self.turns = Turns("files", wait_s)
        self.had: list[int] = []

    async def _take(self, number: int) -> None:
        async with self.turns.of(PLACE):
            self.had.append(number)
            await asyncio.sleep(0)

    async def queue_up(self, numbers: range) -> list["asyncio.Task[None]"]:
        """They stand in line in this order when this returns."""
        tasks = [asyncio.create_task(self._take(number)) for number in numbers]
        await asyncio.sleep(0)
        return tasks


async def test_turns_are_taken_in_the_order_of_coming_also_by_those_who_come_meanwhile() -> None:
    line = Line()
    async with line.turns.of(PLACE):
        first = await line.queue_up(range(3))
    late = await line.queue_up(range(3, 6))  # the turn was handed over, but whoever has it did not run yet
    await asyncio.gather(*first, *late)
    assert line.had == [0, 1, 2, 3, 4, 5]
    assert not line.turns.taken


async def test_other_frames_are_not_waited_for() -> None:
    line = Line()
    async with line.turns.of(PLACE), line.turns.of(OTHER):
        assert set(line.turns.taken) == {PLACE.key, OTHER.key}
    assert not line.turns.taken


async def test_a_turn_ends_with_an_error() -> None:
    line = Line()
    with pytest.raises(ZeroDivisionError):
        async with line.turns.of(PLACE):
            raise ZeroDivisionError
    assert not line.turns.taken


async def test_who_was_cancelled_while_waiting_is_passed_over() -> None:
    line = Line()
    async with line.turns.of(PLACE):
        tasks = await line.queue_up(range(3))
        tasks[0].cancel()
        tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert line.had == [1]
    assert not line.turns.taken


async def test_who_is_cancelled_when_the_turn_was_just_handed_over_hands_it_on() -> None:
    line = Line()
    async with line.turns.of(PLACE):
        tasks = await line.queue_up(range(2))
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert tasks[0].cancelled()
    assert line.had == [1]
    assert not line.turns.taken


async def test_who_waits_too_long_is_told_that_nothing_was_written_and_the_next_gets_its_turn() -> None:
    line = Line(wait_s=0.01)
    async with line.turns.of(PLACE):
        with pytest.raises(ResourceUnavailable, match="'k' take too long; nothing was written"):
            async with line.turns.of(PLACE):
                raise AssertionError("two at once")
        line.turns.wait_s = 60.0
        tasks = await line.queue_up(range(1))
    await asyncio.gather(*tasks)
    assert line.had == [0]
    assert not line.turns.taken


async def test_a_waiter_that_is_dropped_without_an_end_gets_no_turn() -> None:
    """As when an event loop ends around it."""
    line = Line()
    async with line.turns.of(PLACE):
        entering = line.turns.of(PLACE).__aenter__()
        entering.send(None)
        entering.close()
        tasks = await line.queue_up(range(1))
    await asyncio.gather(*tasks)
    assert line.had == [0]
    assert not line.turns.taken
