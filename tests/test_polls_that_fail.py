"""Overlapping polls of which one fails, gets stuck or is cancelled, at every step: in simulated time, to the step."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from fencegate.client.acquisition import Acquisition
from fencegate.client.asks import OneLock
from fencegate.client.plain import PlainAcquisition
from fencegate.client.terms import wish_for_one
from fencegate.clock import repeatable
from fencegate.core.commands import Release
from fencegate.core.errors import LockHeld, NotOwner, OutcomeUnknown, ShuttingDown, StoreUnavailable, TooManyWaiters
from fencegate.core.model import LockRecord, lock_entry
from fencegate.core.ports import Change, Entry
from fencegate.engine import Engine
from fencegate.engine.codec import decode
from fencegate.testing.caller import Caller
from fencegate.verify.sim.clock import SimClock
from fencegate.verify.sim.loop import BEGINNING_US, ProcessLoop
from fencegate.verify.sim.world import Process, World
from fencegate_lockservice.config import LockSettings
from fencegate_lockservice.over_store import StoreApi
from fencegate_lockservice.stores.memory import MemoryStore

if TYPE_CHECKING:
    from fencegate.client.grant import Grant

POLL_S = 0.334
"""A third of the TTL."""
SECOND_S = POLL_S * 0.75
"""When the second poll begins, or a moment after."""
A_LITTLE_S = 0.02

Fate = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


async def stuck(call: Coroutine[Any, Any, Any]) -> Any:
    """It is done, and its answer does not come."""
    await asyncio.gather(call, return_exceptions=True)
    await asyncio.Event().wait()


def fails(error: Exception, after_s: float = 0.0) -> Fate:
    """It does not arrive, or so it looks."""

    async def fate(call: Coroutine[Any, Any, Any]) -> Any:
        call.close()
        await asyncio.sleep(after_s)
        raise error

    return fate


def fails_later(error: Exception, after_s: float) -> Fate:
    """It is done, and then the connection is cut."""

    async def fate(call: Coroutine[Any, Any, Any]) -> Any:
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.sleep(after_s)
        raise error

    return fate


def answered_late(by_s: float) -> Fate:
    async def fate(call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await call
        finally:
            await asyncio.sleep(by_s)

    return fate


def late(by_s: float) -> Fate:
    """It is long on its way."""

    async def fate(call: Coroutine[Any, Any, Any]) -> Any:
        try:
            await asyncio.sleep(by_s)
        except BaseException:
            call.close()
            raise
        return await call

    return fate


class FarStore(MemoryStore):
    """Each call takes a while, there and back."""

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        await asyncio.sleep(0.001)
        found = await super().load(keys)
        await asyncio.sleep(0.001)
        return found

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        await asyncio.sleep(0.001)
        await super().commit(changes, log, not_after_us)
        await asyncio.sleep(0.001)


class Line(StoreApi):
    """A way to the engine on which polls fare as they are told to, by their number."""

    fates: Mapping[int, Fate] = {}
    polls = 0

    async def acquire(self, lock_key: str, body: Any) -> Any:
        self.polls += 1
        call = super().acquire(lock_key, body)
        return await (self.fates[self.polls](call) if self.polls in self.fates else call)


class Scene:
    """A lock that A holds, one who waits for it, and the engine of a simulated process."""

    def __init__(self, world: World, process: Process) -> None:
        self.clock = SimClock(world)
        self.process = process
        self.store = FarStore(self.clock)
        self.engine = Engine(self.store, self.clock)
        self.line = Line(self.engine, LockSettings())
        self.acquisition: Acquisition[Any]

    def asks(self, wait_s: float, way: type[Acquisition[Any]] = Acquisition, **fates: Fate) -> "asyncio.Task[Grant]":
        """`first=`, `second=`: how the polls fare."""
        numbers = {"first": 1, "second": 2, "third": 3}
        self.line.fates = {numbers[name]: fate for name, fate in fates.items()}
        wish = wish_for_one({"ttl": 1, "wait": wait_s})
        self.acquisition = way(OneLock("k", wish), "B", self.clock, 5.0)
        return asyncio.get_running_loop().create_task(self.acquisition.run(self.line))

    def seconds(self) -> float:
        return self.clock.monotonic_us() / 1e6

    async def record(self) -> LockRecord:
        found = await self.store.load([lock_entry("k")])
        record = decode("lock/k", found[lock_entry("k")].value).record
        assert isinstance(record, LockRecord)
        return record

    async def polls_there(self) -> int:
        return sum(len(waiter.attempts) for waiter in (await self.record()).queue)

    async def let_go(self, lock_token: str) -> None:
        await self.engine.run(Release("k", lock_token))


def played(act: Callable[[Scene], Coroutine[Any, Any, None]]) -> int:
    """Play it; gives how many steps it took."""
    with repeatable(0):
        world = World("polls")
        process = world.process("client")
        task = process.spawn(act(Scene(world, process)))
        try:
            world.run(BEGINNING_US + 600_000_000)
            task.result()
            return world.steps
        finally:
            world.end()


@pytest.fixture(autouse=True)
def _nothing_is_swallowed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What fails in a callback, or in a task that nobody asked, is a fault of ours."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(ProcessLoop, "call_exception_handler", lambda _, context: told.append(context))
    yield
    assert told == []


async def held(scene: Scene) -> str:
    return (await Caller(scene.engine, "A").acquire("k", ttl_s=600)).who.lock_token


@pytest.mark.parametrize("error", [StoreUnavailable("no"), TooManyWaiters("full"), OutcomeUnknown("?")])
@pytest.mark.parametrize("after_s", [0.0, POLL_S])
def test_a_second_poll_that_fails_costs_nothing_but_itself(error: Exception, after_s: float) -> None:
    async def act(scene: Scene) -> None:
        lock_token = await held(scene)
        asked = scene.asks(60, second=fails(error, after_s))
        await asyncio.sleep(POLL_S + A_LITTLE_S if after_s == 0 else POLL_S + SECOND_S)
        assert await scene.polls_there() >= 1 or after_s
        await asyncio.sleep(2 * POLL_S)
        assert await scene.polls_there() >= 1
        await scene.let_go(lock_token)
        began_s = scene.seconds()
        await asked
        assert scene.seconds() - began_s < A_LITTLE_S

    played(act)


@pytest.mark.parametrize(
    ("error", "doubtful"),
    [
        (StoreUnavailable("no"), False),
        (TooManyWaiters("full"), False),
        (OutcomeUnknown("?"), True),
        (ShuttingDown("go"), True),
    ],
)
def test_a_second_poll_that_fails_leaves_a_doubt_only_where_it_may_have_been_heard(
    error: Exception, doubtful: bool
) -> None:
    async def act(scene: Scene) -> None:
        await held(scene)
        with pytest.raises(LockHeld):
            await scene.asks(0.6, second=fails(error))
        assert scene.acquisition.doubtful is doubtful

    played(act)


@pytest.mark.parametrize("way", [Acquisition, PlainAcquisition])
def test_where_a_record_has_no_room_for_a_second_poll_the_wait_goes_on_with_one(way: type[Acquisition[Any]]) -> None:
    async def act(scene: Scene) -> None:
        lock_token = await held(scene)
        asked = scene.asks(60, way)
        await asyncio.sleep(9.5 * POLL_S)  # a record remembers its last commits, up to a number
        while await scene.polls_there() != 1:
            await asyncio.sleep(0.001)
        found = await scene.store.load([lock_entry("k")])
        scene.engine._lanes._max_value = len(found[lock_entry("k")].value) + 4
        alone = [await scene.polls_there()]
        for _ in range(100):
            await asyncio.sleep(POLL_S / 20)
            alone.append(await scene.polls_there())
        assert set(alone) <= {0, 1}
        assert sum(alone) > 85  # none for a moment, since a poll that leaves takes two calls to the store
        while await scene.polls_there() != 1:
            await asyncio.sleep(0.001)
        await scene.let_go(lock_token)
        began_s = scene.seconds()
        await asked
        assert scene.seconds() - began_s < A_LITTLE_S

    played(act)


def test_a_wait_that_goes_well_to_its_end_leaves_no_doubt() -> None:
    async def act(scene: Scene) -> None:
        await held(scene)
        for way in (Acquisition, PlainAcquisition):
            began_s = scene.seconds()
            with pytest.raises(LockHeld):
                await scene.asks(1.1, way)
            assert 1.1 <= scene.seconds() - began_s < 1.1 + A_LITTLE_S
            assert not scene.acquisition.doubtful

    played(act)


def test_when_the_first_poll_is_stuck_the_grant_of_the_second_counts_and_at_once() -> None:
    async def act(scene: Scene) -> None:
        lock_token = await held(scene)
        asked = scene.asks(60, first=stuck)
        await asyncio.sleep(SECOND_S + A_LITTLE_S)
        second_us = scene.clock.monotonic_us()
        await asyncio.sleep(POLL_S / 2)
        await scene.let_go(lock_token)
        began_s = scene.seconds()
        grant = await asked
        assert scene.seconds() - began_s < A_LITTLE_S
        assert second_us - A_LITTLE_S * 1e6 < grant.started_us <= second_us
        assert grant.deadline_us <= second_us + 1_000_000

    played(act)


def test_a_grant_whose_answer_is_stuck_is_found_by_the_second_poll() -> None:
    async def act(scene: Scene) -> None:
        lock_token = await held(scene)
        asked = scene.asks(60, first=stuck)
        await asyncio.sleep(POLL_S / 4)
        await scene.let_go(lock_token)
        began_s = scene.seconds()
        grant = await asked
        assert scene.seconds() - began_s < POLL_S
        hold = (await scene.record()).holds[0]
        assert grant.token == hold.token
        assert grant.deadline_us < began_s * 1e6 + 1_000_000 + A_LITTLE_S * 1e6  # what is left of it, and no more

    played(act)


def test_when_the_first_poll_is_stuck_the_wait_goes_on_with_the_second_and_is_over_in_time() -> None:
    async def act(scene: Scene) -> None:
        await held(scene)
        began_s = scene.seconds()
        asked = scene.asks(1.5, first=stuck)
        await asyncio.sleep(SECOND_S + POLL_S + 0.1)
        assert await scene.polls_there() >= 1
        with pytest.raises(LockHeld):
            await asked
        assert 1.5 <= scene.seconds() - began_s < 1.5 + A_LITTLE_S
        assert scene.acquisition.doubtful

    played(act)


def test_when_the_first_poll_fails_the_second_is_not_kept_waiting() -> None:
    async def act(scene: Scene) -> None:
        lock_token = await held(scene)
        asked = scene.asks(60, first=fails(OutcomeUnknown("cut"), POLL_S - A_LITTLE_S))
        await asyncio.sleep(POLL_S - A_LITTLE_S)
        await scene.let_go(lock_token)  # in the moment in which a repeat would be waited for
        began_s = scene.seconds()
        await asked
        assert scene.seconds() - began_s < A_LITTLE_S

    played(act)


def test_when_the_lease_was_over_before_anybody_heard_of_it_it_is_asked_for_anew() -> None:
    async def act(scene: Scene) -> None:
        lock_token = await held(scene)
        asked = scene.asks(60, first=stuck, second=late(1.5))
        await asyncio.sleep(POLL_S / 4)
        await scene.let_go(lock_token)
        grant = await asked
        holds = (await scene.record()).holds
        assert [hold.token for hold in holds] == [grant.token]
        assert scene.clock.monotonic_us() < grant.deadline_us

    played(act)


def test_an_old_request_is_not_waited_for_once_its_lease_was_over() -> None:
    async def act(scene: Scene) -> None:
        lock_token = await held(scene)
        cut = fails_later(OutcomeUnknown("cut"), 1.2)
        asked = scene.asks(60, first=cut, second=late(1.5), third=late(9))
        await asyncio.sleep(POLL_S / 4)
        await scene.let_go(lock_token)
        began_s = scene.seconds()
        await asked
        assert scene.seconds() - began_s < 3
        assert scene.line.polls == 4

    played(act)


def test_when_two_polls_fail_the_third_is_not_kept_waiting_either() -> None:
    async def act(scene: Scene) -> None:
        lock_token = await held(scene)
        asked = scene.asks(60, first=fails(StoreUnavailable("no")), second=fails(OutcomeUnknown("cut"), POLL_S))
        while not (scene.line.polls == 3 and scene.acquisition._next is None):
            await asyncio.sleep(0.001)
        await scene.let_go(lock_token)
        began_s = scene.seconds()
        await asked
        assert scene.seconds() - began_s < A_LITTLE_S

    played(act)


def test_when_somebody_cancels_the_second_poll_the_wait_goes_on() -> None:
    async def act(scene: Scene) -> None:
        lock_token = await held(scene)
        asked = scene.asks(60)
        await asyncio.sleep(SECOND_S + A_LITTLE_S)
        second = scene.acquisition._next
        assert second is not None
        second.answer.cancel()
        await asyncio.sleep(2 * POLL_S)
        await scene.let_go(lock_token)
        await asked

    played(act)


def test_a_refusal_for_good_while_the_second_poll_stands_leaves_a_doubt() -> None:
    async def act(scene: Scene) -> None:
        await held(scene)
        with pytest.raises(NotOwner):
            await scene.asks(60, first=fails(NotOwner("?"), POLL_S - A_LITTLE_S))
        assert scene.acquisition.doubtful

    played(act)


def test_the_second_poll_is_heard_even_when_the_first_was_answered_after_the_wait_was_over() -> None:
    async def act(scene: Scene) -> None:
        await held(scene)
        with pytest.raises(LockHeld):
            await scene.asks(0.5, first=answered_late(0.3), second=answered_late(0.3))
        assert not scene.acquisition.doubtful

    played(act)


@pytest.mark.parametrize("way", [Acquisition, PlainAcquisition])
def test_a_service_that_stops_sends_both_polls_away_and_that_leaves_a_doubt(way: type[Acquisition[Any]]) -> None:
    async def act(scene: Scene) -> None:
        await held(scene)
        asked = scene.asks(1.0, way)
        await asyncio.sleep(SECOND_S + A_LITTLE_S)
        assert await scene.polls_there() == 2
        await scene.engine.stop_waiting()
        with pytest.raises((ShuttingDown, LockHeld)):  # the last look does not wait, and is not sent away
            await asked
        assert scene.acquisition.doubtful

    played(act)


class Cancels:
    """Cancels a task before a turn of the event loop, by its number."""

    def __init__(self, loop: ProcessLoop, task: "asyncio.Task[Any]", before: int) -> None:
        self._task = task
        self._left = before
        self.was_over = False
        self._step = loop.step
        loop.step = self._turn  # type: ignore[method-assign]

    def _turn(self) -> None:
        if self._left == 0:
            self.was_over = not self._task.cancel()
        self._left -= 1
        self._step()


@pytest.mark.parametrize("let_go_at_s", [9.0, 0.1, SECOND_S, SECOND_S + 0.01, POLL_S, POLL_S + 0.1])
@pytest.mark.parametrize("way", [Acquisition, PlainAcquisition])
def test_cancelled_at_any_turn_nothing_is_left_behind(way: type[Acquisition[Any]], let_go_at_s: float) -> None:
    """Every turn of a wait of three polls, with the lock coming free never, or at some time."""

    async def cancelled(scene: Scene, before_turn: int) -> bool:
        lock_token = await held(scene)
        asked = scene.asks(0.8, way)
        loop = scene.process.loop
        cancels = Cancels(loop, asked, before_turn)
        loop.call_later(let_go_at_s, lambda: loop.create_task(scene.let_go(lock_token)))
        await asyncio.wait([asked])
        await asyncio.sleep(A_LITTLE_S)
        if asked.cancelled():
            assert not any(waiter.attempts for waiter in (await scene.record()).queue)
            assert not scene.engine._lanes.waited_for()
        if not asked.cancelled() and asked.exception() is None:
            await scene.let_go(asked.result().lock_token)
        elif scene.acquisition.doubtful:
            await scene.acquisition.undo(scene.line)
        await asyncio.sleep(0.2)  # a lease would last longer
        record = await scene.record()
        assert record.offer is None
        assert {hold.who.owner_id for hold in record.holds} <= {"A"}
        return cancels.was_over

    def goes_on(before_turn: int) -> bool:
        over: list[bool] = []

        async def act(scene: Scene) -> None:
            over.append(await cancelled(scene, before_turn))

        played(act)
        return not over[0]

    turns = 0
    while goes_on(turns):
        turns += 1
    assert turns > 10
