"""The world that simulations run in: time, pauses, crashes, and what is left at the end."""

import asyncio

import pytest

from fencegate.verify.sim.loop import BEGINNING_US
from fencegate.verify.sim.world import World

SECOND_US = 1_000_000
FAR_US = BEGINNING_US + 1000 * SECOND_US


def now_s(world: World) -> float:
    return (world.now_us - BEGINNING_US) / 1e6


def test_waiting_costs_nothing_and_ends_in_order() -> None:
    world, woken = World(1), list[tuple[str, int]]()

    async def sleep(name: str, for_s: float) -> None:
        await asyncio.sleep(for_s)
        woken.append((name, round(now_s(world))))

    one, other = world.process("one"), world.process("other")
    one.spawn(sleep("late", 300))
    other.spawn(sleep("early", 20))
    one.spawn(sleep("soon", 10))
    world.run(FAR_US)
    assert woken == [("soon", 10), ("early", 20), ("late", 300)]
    assert world.steps < 20
    world.end()


def test_a_paused_process_stops_where_it_is_while_others_and_the_clock_go_on() -> None:
    world, ticks = World(2), dict[str, list[float]](one=[], other=[])

    async def tick(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            ticks[name].append(now_s(world))

    one, other = world.process("one"), world.process("other")
    one.spawn(tick("one"))
    other.spawn(tick("other"))
    world.after(int(2.5 * SECOND_US), lambda: one.pause(4 * SECOND_US))
    world.run(BEGINNING_US + 10 * SECOND_US)
    assert [round(at) for at in ticks["other"]] == list(range(1, 10))
    assert not [at for at in ticks["one"] if 2.5 < at < 6.5]
    assert any(6.5 <= at < 6.6 for at in ticks["one"])  # what was due meanwhile is seen to at once
    world.end()


def test_what_arrives_at_a_paused_process_waits_for_it() -> None:
    world, heard = World(3), list[float]()
    process = world.process("one")
    process.pause(5 * SECOND_US)
    process.deliver_after(SECOND_US, lambda: heard.append(now_s(world)))
    process.deliver(lambda: heard.append(now_s(world)))
    world.run(FAR_US)
    assert len(heard) == 2
    assert all(5 <= at < 5.1 for at in heard)
    world.end()


def test_a_crashed_process_does_nothing_more_not_even_clean_up() -> None:
    world, done = World(4), list[str]()

    async def work() -> None:
        await asyncio.sleep(2)
        done.append("went on")

    process = world.process("one")
    process.spawn(work())
    world.after(SECOND_US, process.crash)
    world.after(3 * SECOND_US, lambda: process.deliver(lambda: done.append("heard")))
    world.run(FAR_US)
    assert done == []
    world.end()


def test_a_timer_that_was_cancelled_does_not_ring() -> None:
    world, rung = World(5), list[str]()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(5, rung.append, "no")
        loop.call_later(6, rung.append, "yes")
        timer.cancel()
        try:
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        except TimeoutError:
            rung.append("timeout")

    world.process("one").spawn(work())
    world.run(FAR_US)
    assert rung == ["timeout", "yes"]
    world.end()


def test_at_the_end_every_task_is_gone() -> None:
    world = World(6)
    process = world.process("one")
    task = process.spawn(asyncio.Event().wait())
    world.run(FAR_US)
    assert not task.done()
    world.end()
    assert task.cancelled()
    assert process.loop.is_closed()


def test_who_is_busy_without_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencegate.verify.sim.world.MOST_STEPS", 1000)
    world = World(7)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    world.process("one").spawn(spin())
    with pytest.raises(RuntimeError, match="busy without end"):
        world.run(FAR_US)
    world.end()


def test_the_same_seed_steps_in_the_same_order_and_another_in_another() -> None:
    def order(seed: int) -> list[str]:
        world, steps = World(seed), list[str]()

        async def work(name: str) -> None:
            for _ in range(20):
                steps.append(name)
                await asyncio.sleep(0)

        for name in "abc":
            world.process(name).spawn(work(name))
        world.run(FAR_US)
        world.end()
        return steps

    assert order(1) == order(1)
    assert order(1) != order(2)
