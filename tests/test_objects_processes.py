"""Objects in a folder that several real processes share: stopped, killed, and all at once."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fencegate.testing.resource_suite import JOB
from tests.folder_objects import FENCE, KEY, body_of, folder_objects, get, put

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `tests.folder_objects` as a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def process(*words: object) -> "subprocess.Popen[str]":
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.folder_objects", str(tmp_path), *map(str, words)],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                cwd=Path(__file__).parent.parent,
            )
        )
        return started[-1]

    yield process
    for child in started:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


async def test_a_writer_stopped_right_before_the_fence_is_refused_once_its_successor_wrote(
    start: Start, tmp_path: Path
) -> None:
    paused = start("stop_then_write", 7)
    await asyncio.to_thread(_wait_until_stopped, paused)
    async with folder_objects(tmp_path) as objects:
        assert await get(objects, KEY) is None
        await put(objects, KEY, FENCE, b"of the successor", 8)
        paused.send_signal(signal.SIGCONT)
        said, _ = await asyncio.to_thread(paused.communicate, None, 90)
        assert said == "STALE_TOKEN\n"
        assert await get(objects, KEY) == b"of the successor"
    assert list((tmp_path / "drafts").iterdir()) == []


async def test_the_same_writer_succeeds_when_nobody_came_meanwhile(start: Start, tmp_path: Path) -> None:
    paused = start("stop_then_write", 7)
    await asyncio.to_thread(_wait_until_stopped, paused)
    paused.send_signal(signal.SIGCONT)
    said, _ = await asyncio.to_thread(paused.communicate, None, 90)
    assert said == "written\n"
    async with folder_objects(tmp_path) as objects:
        assert await get(objects, KEY) == b"of the paused one"


def _wait_until_stopped(child: "subprocess.Popen[str]") -> None:
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


async def test_accepted_tokens_of_two_processes_never_decrease(start: Start, tmp_path: Path) -> None:
    async with folder_objects(tmp_path, guard=JOB) as objects:
        racers = [start("race", offset, 90) for offset in (0, 1)]
        said = [(await asyncio.to_thread(racer.communicate, None, 120))[0].splitlines() for racer in racers]
        assert [len(lines) for lines in said] == [90, 90]
        words = [line.split() for lines in said for line in lines]
        accepted = [tuple(map(int, rest)) for verb, *rest in words if verb == "accepted"]
        assert len(accepted) < len(words), "the race must hold refusals to show anything"
        for (earlier, _, ended), (later, began, _) in itertools.permutations(accepted, 2):
            assert earlier <= later or ended > began
        highest = max(token for token, _, _ in accepted)
        assert await objects.mark(JOB) == highest
        listed = await objects.list("", "", 10)
        assert highest in {info.token for _, info in listed}
        for name, info in listed:
            assert await get(objects, (name,)) == f"{info.token}".encode()


async def test_a_killed_writer_loses_nothing_that_it_acknowledged_and_leaves_nothing_half_written(
    start: Start, tmp_path: Path
) -> None:
    acknowledged: dict[str, tuple[str, int]] = {}
    async with folder_objects(tmp_path) as objects:
        for life in range(8):
            first = 1 + 10_000 * life
            writer = start("write_for_ever", first)
            assert writer.stdout is not None
            lines = [await asyncio.to_thread(writer.stdout.readline)]
            killed_at = time.monotonic() + 0.15 + 0.02 * life
            while time.monotonic() < killed_at:
                for name, _ in await objects.list("", "", 100):
                    _assert_whole(await get(objects, tuple(name.split("/"))))
            writer.kill()
            lines += (await asyncio.to_thread(writer.communicate))[0].splitlines(keepends=True)
            for line in lines:
                if line.endswith("\n"):
                    verb, name, text = line.split()
                    acknowledged[name] = (verb, int(text))
            for name, (verb, number) in acknowledged.items():
                _assert_kept(await get(objects, ("d", name)), verb, number)
                assert await objects.mark(f"s:{name}") >= number
    assert len(acknowledged) == 7


def _assert_whole(data: bytes | None) -> None:
    if data is not None:
        assert data == body_of(_number(data))


def _assert_kept(data: bytes | None, verb: str, number: int) -> None:
    """The acknowledged write is there, or the one that was under way when the writer died; never an older one."""
    _assert_whole(data)
    if data is None:
        assert verb == "deleted" or number % 5 == 0
    else:
        assert _number(data) >= number + (verb == "deleted")


def _number(data: bytes) -> int:
    return int(data.split(b"\n", 1)[0])


async def test_a_full_disk_is_told_and_leaves_nothing_half_written(start: Start, tmp_path: Path) -> None:
    async with folder_objects(tmp_path) as objects:
        await put(objects, KEY, FENCE, b"before", 7)
        said, _ = await asyncio.to_thread(start("write_on_a_full_disk").communicate, None, 90)
        assert said == "RESOURCE_UNAVAILABLE not-written\n"
        assert await get(objects, KEY) == b"before"
    assert list((tmp_path / "drafts").iterdir()) == []
