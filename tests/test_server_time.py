"""The clock of a server, from its answers alone; and group commit."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest

from fencegate.clock import ManualClock
from fencegate.core.ports import LogEntry, Unavailable
from fencegate_lockservice.stores.following import Following
from fencegate_lockservice.stores.grouping import Groups, Waiting
from fencegate_lockservice.stores.server_time import DRIFT_PPM, MAX_OFF_US, STALE_US, ServerTime

SECOND = 1_000_000


def asked(clock: ManualClock, time: ServerTime, off_us: int, there_s: float = 0.001, back_s: float = 0.001) -> None:
    """One question and its answer, by a server whose clock is off by so much."""
    sent_us = clock.monotonic_us()
    clock.advance(there_s)
    at_us = clock.now_us() + off_us
    clock.advance(back_s)
    time.heard(sent_us, at_us)


@pytest.mark.parametrize("off_us", [0, 3 * SECOND, -3 * SECOND])
def test_the_true_time_is_always_within_the_interval(off_us: int) -> None:
    clock = ManualClock()
    time = ServerTime(clock, "the server")
    for number in range(200):
        asked(clock, time, off_us, 0.001 * (number % 7), 0.001 * (number % 5))
        now = time.now()
        assert now.earliest <= clock.now_us() + off_us <= now.latest
        clock.advance(0.5)
        now = time.now()
        assert now.earliest <= clock.now_us() + off_us <= now.latest


def test_a_quick_answer_narrows_what_slow_ones_left_open_and_it_wears_out() -> None:
    clock = ManualClock()
    time = ServerTime(clock, "the server")
    asked(clock, time, 0, 1.0, 1.0)
    wide = time.now()
    asked(clock, time, 0, 0.0005, 0.0005)
    narrow = time.now()
    assert wide.latest - wide.earliest >= 2 * SECOND
    assert narrow.latest - narrow.earliest <= 2_000
    asked(clock, time, 0, 1.0, 1.0)  # a slow one doesn't widen it again
    after = time.now()
    assert after.latest - after.earliest <= 2_000 + 2 * 2 * SECOND * DRIFT_PPM // 1_000_000
    clock.advance(40)
    worn = time.now()
    assert worn.latest - worn.earliest >= 40 * SECOND * 2 * DRIFT_PPM // 1_000_000


def test_a_clock_that_drifts_stays_within_and_one_that_was_set_is_believed_at_once() -> None:
    clock = ManualClock()
    time = ServerTime(clock, "the server")
    off_us = 0
    for _ in range(300):
        asked(clock, time, off_us)
        assert time.now().earliest <= clock.now_us() + off_us <= time.now().latest
        clock.advance(1)
        off_us += 100  # 100 ppm
    asked(clock, time, off_us - 4 * SECOND)
    assert time.now().latest < clock.now_us() + off_us - 3 * SECOND
    asked(clock, time, off_us + 4 * SECOND)
    assert time.now().earliest > clock.now_us() + off_us + 3 * SECOND


@pytest.mark.parametrize(("off_us", "says"), [(MAX_OFF_US + SECOND, "ahead of"), (-MAX_OFF_US - SECOND, "behind")])
def test_clocks_that_are_far_apart_refuse_and_say_by_how_much(off_us: int, says: str) -> None:
    clock = ManualClock()
    time = ServerTime(clock, "the server at a:1")
    asked(clock, time, off_us)
    with pytest.raises(Unavailable, match=rf"the server at a:1 is 11\.0 s {says} the clock of this lock service"):
        time.now()
    asked(clock, time, 0)
    time.now()


def test_time_is_not_known_before_the_first_answer_nor_long_after_the_last() -> None:
    clock = ManualClock()
    time = ServerTime(clock, "the server")
    with pytest.raises(Unavailable, match="what time it is"):
        time.now()
    assert time.is_stale()
    asked(clock, time, 0)
    assert not time.is_stale()
    clock.advance(STALE_US / SECOND + 1)
    assert time.is_stale()
    with pytest.raises(Unavailable):
        time.now()
    asked(clock, time, 0)
    time.forget()
    with pytest.raises(Unavailable):
        time.now()


# --- group commit ----------------------------------------------------------------------------------------------------


class Line:
    """Where groups are sent: each waits until it is let go."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.let = asyncio.Event()

    async def send(self, group: Sequence[Waiting[int]]) -> None:
        self.groups.append([waiting.item for waiting in group])
        await self.let.wait()
        for waiting in group:
            if waiting.item < 0:
                raise ValueError("no")
            waiting.done()


async def test_what_comes_while_a_group_is_under_way_goes_together_in_the_next() -> None:
    line = Line()
    groups = Groups(line.send, size=5)
    first = [groups.add(number) for number in range(3)]
    await asyncio.sleep(0.01)
    rest = [groups.add(number) for number in range(3, 11)]
    await asyncio.sleep(0.01)
    assert line.groups == [[0, 1, 2]]
    line.let.set()
    await asyncio.gather(*first, *rest)
    assert line.groups == [[0, 1, 2], [3, 4, 5, 6, 7], [8, 9, 10]]
    await groups.close()


async def test_enough_for_a_group_goes_out_within_the_turn_and_the_rest_at_its_end() -> None:
    line, sent = Line(), list[list[int]]()

    def send(group: Sequence[Waiting[int]]) -> Coroutine[Any, Any, None]:
        sent.append([waiting.item for waiting in group])
        return line.send(group)

    groups = Groups(send, at_once=3, enough=4)
    works = [groups.add(number) for number in range(10)]
    assert sent == [[0, 1, 2, 3], [4, 5, 6, 7]]
    await asyncio.sleep(0)
    assert sent == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    works += [groups.add(number) for number in range(10, 16)]
    assert len(sent) == 3  # no more at once
    line.let.set()
    await asyncio.gather(*works)
    assert sent[3:] == [list(range(10, 16))]
    await groups.close()


async def test_a_group_that_can_not_even_be_begun_tells_its_own_and_nobody_else() -> None:
    line = Line()
    line.let.set()

    def send(group: Sequence[Waiting[int]]) -> Coroutine[Any, Any, None]:
        if group[0].item == 0:
            raise ValueError("no")
        return line.send(group)

    groups = Groups(send, at_once=3, enough=2)
    works = [groups.add(number) for number in range(4)]
    results = await asyncio.gather(*works, return_exceptions=True)
    assert [type(result) for result in results] == [ValueError, ValueError, type(None), type(None)]
    await groups.close()


async def test_a_group_that_fails_tells_those_who_are_left_and_the_next_ones_are_served() -> None:
    line = Line()
    line.let.set()
    groups = Groups(line.send)
    results = await asyncio.gather(groups.add(1), groups.add(-1), groups.add(2), return_exceptions=True)
    assert results[0] is None
    assert [type(result) for result in results[1:]] == [ValueError, ValueError]
    await groups.add(3)


async def test_closing_answers_everybody_and_takes_nothing_more() -> None:
    line = Line()
    groups = Groups(line.send, size=2)
    works = [groups.add(number) for number in range(7)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(groups.close())
    await asyncio.sleep(0.01)
    with pytest.raises(Unavailable):
        await groups.add(99)
    line.let.set()
    await closing
    assert await asyncio.gather(*works) == [None] * 7
    await groups.close()


async def test_whoever_stops_waiting_stops_nobody_else() -> None:
    line = Line()
    groups = Groups(line.send)
    works = [asyncio.ensure_future(groups.add(number)) for number in range(3)]
    await asyncio.sleep(0.01)
    works[1].cancel()
    line.let.set()
    results = await asyncio.gather(*works, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert (results[0], results[2]) == (None, None)
    await groups.close()


# --- the change log, followed ----------------------------------------------------------------------------------------


async def test_whoever_follows_hears_when_the_store_is_closed() -> None:
    async def newest() -> int:
        return 7

    async def tail(since: int) -> AsyncIterator[Sequence[LogEntry] | None]:
        await asyncio.Event().wait()
        yield None

    async def read_log(since: int, limit: int) -> Sequence[LogEntry] | None:
        return None

    following = Following(tail, newest, read_log)
    stream = following.changes(None)
    assert (await anext(stream)).revision == 7
    asleep = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.01)
    await following.close()
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable):
            await asleep
        with pytest.raises(Unavailable):
            await anext(following.changes(None))


def test_a_machine_that_was_paused_is_not_locked_out_when_its_clock_is_right_again() -> None:
    class Paused(ManualClock):
        """The machine stood still for a while: its own clock was set since, and that of the process was not."""

        def wall_us(self) -> int:
            return self.now_us() + 60 * SECOND

    clock = Paused()
    asking, by_tokens = ServerTime(clock, "the server"), ServerTime(clock, "the server", clock.now_us)
    for time in (asking, by_tokens):
        asked(clock, time, 60 * SECOND)
    asking.now()
    with pytest.raises(Unavailable, match="has to be restarted"):
        by_tokens.now()
