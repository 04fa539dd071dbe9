"""How long a connection to Redis stays awake for an answer."""

import asyncio
import itertools
import socket
from typing import TYPE_CHECKING

import pytest

from fencegate.clock import ManualClock
from fencegate_lockservice.stores.redis import awake
from fencegate_lockservice.stores.redis.awake import AWAKE_US, BRISK_US, SELDOM, Awake
from fencegate_lockservice.stores.redis.line import Asked, Line, hear_plainly

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """What was called soon, turn by turn; and what is awaited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, processors: int = 2) -> None:
        monkeypatch.setattr(awake, "_PROCESSORS", processors)
        self.clock = ManualClock()
        self.awaited: list[str] = []
        self.soon: list[Callable[[], None]] = []
        self.awake = Awake(self.soon.append, self.clock, self.awaited)
        self.awake.stay(self.clock.monotonic_us())  # the first, which says nothing of the next

    def ask(self) -> None:
        self.awaited.append("answer")
        self.awake.stay(self.clock.monotonic_us())

    def wait(self, us: int) -> None:
        self.clock.advance((us + 0.5) / 1_000_000)  # it leaves out what is less than a microsecond

    def turn(self, us: int = 10) -> bool:
        """Whether it goes on to the next one without a sleep."""
        self.wait(us)
        soon = list(self.soon)
        self.soon.clear()
        for call in soon:
            call()
        return bool(self.soon)

    def ask_in_vain(self) -> bool:
        """Whether it stayed awake for an answer that comes too late."""
        self.ask()
        stayed = bool(self.soon)
        while self.turn(AWAKE_US):
            pass
        self.awaited.clear()
        return stayed


def test_it_turns_until_the_answer_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    assert not loop.turn(), "nothing was asked"
    loop.ask()
    assert loop.turn()
    assert loop.turn()
    loop.awaited.clear()
    assert not loop.turn()


def test_who_asks_now_and_then_is_not_stayed_awake_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    for _ in range(3):
        loop.wait(BRISK_US + 1)
        loop.ask()
        assert not loop.soon
        loop.awaited.clear()
    loop.wait(BRISK_US)
    loop.ask()
    assert loop.soon


def test_it_does_not_stay_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    loop.ask()
    assert loop.turn(AWAKE_US - 1)
    assert not loop.turn(1)


def test_each_answer_is_stayed_for_when_the_one_before_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    for _ in range(3):
        loop.ask()
        assert loop.turn(AWAKE_US - 1), "the time is that of this answer"
        assert len(loop.soon) == 1
        loop.awaited.clear()  # and the next is asked for before the loop has noticed


def test_answers_that_come_late_are_seldom_stayed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    stayed = [loop.ask_in_vain() for _ in range(1000)]
    behind = [number for number, once in enumerate(stayed) if once]
    gaps = [second - first for first, second in itertools.pairwise(behind)]
    assert gaps[:6] == [2, 4, 8, 16, 32, 64]
    assert set(gaps[6:]) == {SELDOM + 1}


@pytest.mark.parametrize("noticed", [True, False], ids=["between-two", "by-the-next"])
def test_an_answer_in_time_ends_that(monkeypatch: pytest.MonkeyPatch, noticed: bool) -> None:
    loop = Loop(monkeypatch)
    assert [loop.ask_in_vain() for _ in range(6)] == [True, False, True, False, False, False]
    loop.ask()
    assert loop.turn()
    loop.awaited.clear()
    if noticed:
        assert not loop.turn()
    assert [loop.ask_in_vain() for _ in range(6)] == [True, False, True, False, False, False]


def test_where_more_is_asked_for_meanwhile_it_is_seldom_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    stayed = []
    for _ in range(7):
        loop.ask()
        stayed.append(bool(loop.soon))
        loop.awaited.append("another")
        assert not loop.turn()
        loop.awaited.clear()
    assert stayed == [True, False, True, False, False, False, True]


def test_one_processor_is_left_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, processors=1)
    loop.ask()
    assert not loop.soon


@pytest.mark.parametrize("writes", [True, False])
async def test_the_connection_stays_awake_for_commits(monkeypatch: pytest.MonkeyPatch, writes: bool) -> None:
    monkeypatch.setattr(awake, "_PROCESSORS", 2)
    ours, server = socket.socketpair()
    clock, loop = ManualClock(), asyncio.get_running_loop()
    with server:
        _, line = await loop.create_connection(lambda: Line(clock, lambda _: None), sock=ours)
        line._awake.stay(clock.monotonic_us())  # as if one had been asked for just before
        answer: asyncio.Future[object] = loop.create_future()
        line.send(Asked(b"PING", hear_plainly, clock.monotonic_us(), writes, answer))
        looking: list[bool] = []
        for _ in range(5):
            looking.append(line._awake._turning)
            await asyncio.sleep(0)
        assert looking == [writes] * 5
        server.sendall(b"+PONG\r\n")
        assert await answer == b"PONG"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not line._awake._turning
        await line.hang_up()
