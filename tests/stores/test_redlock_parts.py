"""Parts of a redlock store, each without a server: what followers are told, how a node is copied and looked at."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import pytest

from fencegate.clock import SYSTEM, ManualClock
from fencegate_lockservice.stores.redlock import copy as copying
from fencegate_lockservice.stores.redlock import hints as following
from fencegate_lockservice.stores.redlock.council import Council
from fencegate_lockservice.stores.redlock.hints import Hints
from fencegate_lockservice.stores.redlock.keys import Keys
from fencegate_lockservice.stores.redlock.looking import Looking
from fencegate_lockservice.stores.redlock.members import Config, View
from fencegate_lockservice.stores.redlock.node import COPY, NAMES, Line, Node, Part, Script
from fencegate_lockservice.stores.redlock.untold import Lines, Untold, hint
from fencegate_lockservice.stores.redlock.url import Seat, Settings
from fencegate_lockservice.stores.redlock.voting import Voting
from fencegate_lockservice.stores.redlock.witness import Witness

SEATS = ("a", "b", "c", "d", "e")
VIEW = View(Config("D", SEATS, SEATS), "digest", frozenset(range(5)))


class FakeNode(Node):
    """A node that says what the test has it say."""

    def __init__(self, number: int) -> None:
        super().__init__(number, Seat(SEATS[number], "nowhere", 1), Settings(()), SYSTEM, lambda: None)
        self.asked: list[tuple[Script | None, tuple[Part, ...], asyncio.Future[Any]]] = []

    @property
    def up(self) -> bool:
        return True

    def call(self, *command: Part) -> "asyncio.Future[Any]":
        return self._ask(None, *command)

    def run(self, script: Script, keys: list[str], *arguments: Part) -> "asyncio.Future[Any]":
        return self._ask(script, *keys, *arguments)

    vote = run

    def _ask(self, script: Script | None, *parts: Part) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.asked.append((script, parts, future))
        return future


# --- what is told ----------------------------------------------------------------------------------------------------


class Follower:
    """What it was told: lines, or None where it has to look for itself."""

    def __init__(self) -> None:
        self.told: list[Lines | None] = []
        self.clock = ManualClock()
        self.untold = Untold(3, self.clock, self.told.append, lambda: self.told.append(None))

    def commit(self, name: str, register: str = "lock/k") -> bytes:
        return hint(name, register, [(register, name.encode())], self.clock.now_us())

    def hear(self, packed: bytes, *nodes: int) -> None:
        for number in nodes:
            self.untold.heard(number, packed)


def test_a_commit_is_told_once_when_a_majority_told_of_it() -> None:
    follower = Follower()
    one = follower.commit("c1")
    follower.hear(one, 0, 1)
    follower.hear(one, 0, 1)
    assert not follower.told
    follower.hear(one, 2, 3, 4)
    assert follower.told == [[("lock/k", b"c1")]]
    assert not follower.untold


def test_commits_of_a_lock_are_never_told_in_another_order() -> None:
    follower = Follower()
    one, two, three = (follower.commit(name) for name in ("c1", "c2", "c3"))
    other = follower.commit("o1", "lock/other")
    follower.hear(one, 3)
    follower.hear(two, 3, 4, 2)  # the first is heard of from too few: nodes 0 and 1 can't be heard
    assert follower.told == [None]
    follower.hear(other, 0, 1, 2)
    follower.hear(three, 2, 3, 4)
    assert follower.told == [None, [("lock/other", b"o1")], [("lock/k", b"c3")]]
    follower.hear(one, 0, 1)  # it landed; but it is too late to tell of it
    assert follower.told[3:] == [None]
    follower.hear(two, 0, 1)
    assert len(follower.told) == 4
    assert not follower.untold


def test_what_is_found_to_have_landed_is_told_in_order() -> None:
    follower = Follower()
    for name in ("c1", "c2"):
        follower.hear(follower.commit(name), 0)
    follower.clock.advance(1)
    for name in follower.untold.older_than(500_000):
        follower.untold.landed(name)
    assert follower.told == [[("lock/k", b"c1")], [("lock/k", b"c2")]]


def test_an_old_commit_that_is_heard_of_again_is_not_told_as_new() -> None:
    follower = Follower()
    old = follower.commit("c1")
    follower.clock.advance(60)
    follower.hear(old, 0, 1, 2, 3, 4)
    assert follower.told == [None]


def test_a_commit_that_was_given_up_and_is_taken_up_later_does_not_go_unnoticed() -> None:
    follower = Follower()
    late = follower.commit("c1")
    follower.hear(late, 0)
    follower.clock.advance(6)
    follower.untold.give_up()
    assert follower.told == [None]
    follower.hear(late, 0, 1, 2)
    assert follower.told == [None, [("lock/k", b"c1")]]


async def test_a_majority_of_the_changes_is_enough_to_begin_to_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "ALL_CATCH_UP_WITHIN_S", 0.01)
    nodes = [FakeNode(number) for number in range(5)]
    hints = Hints(nodes, Keys(""), SYSTEM)
    for tail in hints._tails[:3]:
        tail.place = (7, 0)
    beginning = asyncio.ensure_future(hints.changes(None).__anext__())
    while not all(node.asked for node in nodes):
        await asyncio.sleep(0)
    for node in nodes:
        node.asked[0][2].set_result([[b"7-0", []]])
    assert not (await beginning).entries


async def test_a_node_that_does_not_tell_where_its_changes_begin_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "CATCH_UP_WITHIN_S", 0.01)
    node = FakeNode(0)
    hints = Hints([node], Keys(""), SYSTEM)
    with pytest.raises(TimeoutError):
        await hints._read(hints._tails[0], cast(Line, node))


class Telling(FakeNode):
    """A node with a stream of changes, which nothing is added to while it is read."""

    lines: tuple[tuple[bytes, list[bytes]], ...] = ()

    def call(self, *command: Part) -> "asyncio.Future[Any]":
        asked = super().call(*command)
        if command[0] != "XREAD":
            asked.set_result(self.lines[:1] if command[0] == "XRANGE" else self.lines[-1:])
        return asked


async def test_changes_that_were_dropped_while_nobody_read_are_missed_also_where_there_was_none_before() -> None:
    node = Telling(0)
    hints = Hints([node], Keys(""), SYSTEM)
    read = partial(hints._read, hints._tails[0], cast(Line, node))
    first = asyncio.ensure_future(read())
    stream = hints.changes(None)
    async with asyncio.timeout(10):
        assert not (await anext(stream)).reset
        first.cancel()
        node.lines = ((b"9-0", []),)  # and whatever came before it is gone
        second = asyncio.ensure_future(read())
        assert (await anext(stream)).reset
    second.cancel()
    await stream.aclose()


# --- reading and copying ---------------------------------------------------------------------------------------------


class Seated:
    """A council whose nodes all vote."""

    def view(self) -> View:
        return VIEW

    def poke(self) -> None:
        raise AssertionError("all of them answered")


async def test_all_who_answered_count_however_late_it_was() -> None:
    nodes = [FakeNode(number) for number in range(5)]
    voting = Voting(nodes, Keys(""), SYSTEM, cast(Council, Seated()))
    reading = asyncio.ensure_future(voting._read_some(["lock/k"]))
    await asyncio.sleep(0)
    for number, ballot in ((2, b"2"), (3, b"1"), (4, b"2"), (0, b"2"), (1, b"2")):
        nodes[number].asked[0][2].set_result([b"found", b"9", ballot, b"value", b""])
    readings = await reading
    assert readings is not None
    assert (readings["lock/k"].known, readings["lock/k"].value) == (True, b"value")


async def test_large_registers_are_read_once_each_to_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "AT_ONCE_BYTES", 2500)
    names = [f"r{number:03d}".encode() for number in range(100)]
    read: list[Part] = []
    copied: dict[Part, Part] = {}

    class Holder(FakeNode):
        def run(self, script: Script, keys: list[str], *arguments: Part) -> "asyncio.Future[Any]":
            future = super().run(script, keys, *arguments)
            if script is NAMES:
                future.set_result([b"found", names])
            elif script is COPY:
                copied.update(zip(arguments[1::5], arguments[4::5], strict=True))
                future.set_result([b"copied"])
                assert sum(len(cast(bytes, value)) for value in arguments[4::5]) <= 3000
            else:
                read.extend(keys[1:])
                future.set_result([b"found", *[b"1", b"1", b"x" * 1000, b""] * (len(keys) - 1)])
            return future

        vote = run

    nodes = [Holder(number) for number in range(5)]
    view = View(VIEW.config, VIEW.digest, frozenset({0, 1, 2}))
    await copying.copy(nodes, Keys(""), view, 4, "e")
    assert copied == {name.decode(): b"x" * 1000 for name in names}
    assert len(read) == 3 * len(names)


# --- looking ---------------------------------------------------------------------------------------------------------


class FakeLine:
    """A line whose server answers at once, or when the test says so."""

    def __init__(self, node: Mapping[str, Any]) -> None:
        self._answers = node
        self.late: list[asyncio.Future[Any]] = []

    def call(self, command: str, *_: Part) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._answers[command] is None:
            self.late.append(future)
        else:
            future.set_result(self._answers[command])
        return future


async def test_a_round_that_took_long_tells_nothing_of_a_clock() -> None:
    clock = ManualClock(now_us=1_000_000_000_000)
    nodes = [FakeNode(number) for number in range(5)]
    looking = Looking(nodes, Keys(""), clock, Witness(nodes, Keys(""), clock))
    line = FakeLine({"TIME": None, "HGETALL": []})
    for node in nodes:
        node._line = cast(Line, line)

    async def look(seconds: float) -> None:
        sent_s = clock.now_us() // 1_000_000
        await looking.look(strict=True)
        clock.advance(seconds)
        while line.late:
            line.late.pop().set_result([b"%d" % sent_s, b"0"])
        await asyncio.sleep(0)

    await look(1)
    assert looking.off_us() == -500_000
    await look(60)
    assert looking.off_us() == -500_000


async def test_one_that_hangs_does_not_keep_the_look_at_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [FakeNode(number) for number in range(5)]
    looking = Looking(nodes, Keys(""), SYSTEM, Witness(nodes, Keys(""), SYSTEM))
    for number, node in enumerate(nodes):
        says = {"format": "1", "state": "voting", "seat": SEATS[number], "seats": '["a","b","c","d","e"]'}
        packed = [part.encode() for pair in says.items() for part in pair]
        node._line = cast(Line, FakeLine({"TIME": None, "HGETALL": None if number == 4 else packed}))
    monkeypatch.setattr("fencegate_lockservice.stores.redlock.looking.LOOK_WITHIN_S", 10_000)
    found, lines = await looking.look(strict=False)
    assert sorted(found) == [0, 1, 2, 3]
    assert sorted(lines) == [0, 1, 2, 3, 4]
