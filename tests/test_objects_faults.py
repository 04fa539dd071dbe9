"""Objects in a folder when things go wrong: nothing is half-written, nothing is guessed, and no wait is unbounded."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fencegate.core.errors import InvalidToken, ResourceUnavailable, StaleToken, TooLarge, UnsafeConfiguration
from fencegate.core.ports import Conditions
from fencegate_adapters.objects import FolderObjects, disk
from fencegate_adapters.objects.draft import Draft
from fencegate_adapters.objects.frame import Header
from tests.folder_objects import FENCE, KEY, folder_objects, get, parts, put


@pytest.fixture
async def objects(tmp_path: Path) -> AsyncIterator[FolderObjects]:
    async with folder_objects(tmp_path, max_bytes=1_000_000) as it:
        yield it


def drafts(folder: Path) -> list[Path]:
    return list((folder / "drafts").iterdir())


# --- bodies ----------------------------------------------------------------------------------------------------------


async def test_an_oversized_body_is_refused_and_leaves_nothing(objects: FolderObjects, tmp_path: Path) -> None:
    await put(objects, KEY, FENCE, b"x" * 1_000_000, 7)
    too_much = parts(*[b"y" * 100_000] * 10, b"y")
    with pytest.raises(TooLarge):
        await objects.write(KEY, FENCE, 8, too_much, content_type="", metadata={})
    assert await get(objects, KEY) == b"x" * 1_000_000
    assert await objects.mark(FENCE) == 7
    assert drafts(tmp_path) == []


async def test_a_write_is_told_when_mark_and_object_would_survive_a_power_cut(
    objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, int]] = []
    sync, rename, mkdir = os.fsync, os.rename, os.mkdir

    def synced(file: int) -> None:
        sync(file)
        steps.append(("sync", os.fstat(file).st_ino))

    def renamed(name: str, new_name: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        there = os.stat(name, dir_fd=src_dir_fd).st_ino
        assert ("sync", there) in steps, f"{new_name} gets its name before its bytes are on the disk"
        rename(name, new_name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        steps.append(("named", os.fstat(dst_dir_fd).st_ino))

    def made(name: str, mode: int, *, dir_fd: int) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        steps.append(("named", os.fstat(dir_fd).st_ino))

    for name, step in (("fsync", synced), ("rename", renamed), ("mkdir", made)):
        monkeypatch.setattr(os, name, step)
    await put(objects, ("folder", "k"), "s:folder/k", b"x", 7)
    named = [number for number, (what, _) in enumerate(steps) if what == "named"]
    assert len(named) == 3  # the mark, a directory, the object
    assert all(("sync", steps[number][1]) in steps[number:] for number in named)


async def test_a_body_that_breaks_off_leaves_nothing(objects: FolderObjects, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 500_000
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await objects.write(KEY, FENCE, 7, broken(), content_type="", metadata={})
    assert await get(objects, KEY) is None
    assert drafts(tmp_path) == []


async def test_a_slow_sender_does_not_hold_the_fence_and_loses_to_who_came_meanwhile(
    objects: FolderObjects, tmp_path: Path
) -> None:
    begun, passed = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 500_000
        begun.set()
        await passed.wait()

    sender = asyncio.create_task(objects.write(KEY, FENCE, 7, slow(), content_type="", metadata={}))
    await begun.wait()
    await put(objects, KEY, FENCE, b"successor", 8)
    passed.set()
    with pytest.raises(StaleToken):
        await sender
    assert await get(objects, KEY) == b"successor"
    assert drafts(tmp_path) == []


async def test_a_stale_writer_is_refused_before_it_sends_its_body(objects: FolderObjects) -> None:
    async def never() -> AsyncIterator[bytes]:
        pytest.fail("the body was asked for")
        yield b""

    await objects.claim(FENCE, 8)
    with pytest.raises(StaleToken):
        await objects.write(KEY, FENCE, 7, never(), content_type="", metadata={})


async def test_a_cancelled_writer_leaves_nothing_half_written(objects: FolderObjects, tmp_path: Path) -> None:
    for delay_ms in range(12):
        writer = asyncio.create_task(put(objects, KEY, FENCE, b"y" * 700_000, 7))
        await asyncio.sleep(delay_ms / 2000)
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writer
        assert await get(objects, KEY) in (None, b"y" * 700_000)
    # Only now: a thread whose caller was cancelled may have been about to raise the mark until it let the fence go.
    await put(objects, KEY, FENCE, b"after", 7)
    assert await get(objects, KEY) == b"after"
    assert drafts(tmp_path) == []


async def test_a_thread_that_outlives_its_writer_publishes_nothing(objects: FolderObjects, tmp_path: Path) -> None:
    await put(objects, KEY, FENCE, b"before", 7)
    directories = [disk.open_directory(str(tmp_path / name)) for name in ("drafts", "objects")]
    for steps_before in (0, 1):
        draft = Draft(directories[0], Header("k", 7, "ab" * 16))
        if steps_before:
            draft.finish(b"given up")
        draft.discard()
        with pytest.raises(InterruptedError):
            draft.finish(b"given up")
        with pytest.raises(InterruptedError):
            draft.publish("k.o", directories[1])
    assert drafts(tmp_path) == []
    assert await get(objects, KEY) == b"before"
    for directory in directories:
        os.close(directory)


# --- fences ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def every_fence_held(folder: Path) -> Iterator[None]:
    directory = disk.open_directory(str(folder / "fences"))
    with contextlib.ExitStack() as held:
        for lock in (folder / "fences").glob("*.lock"):
            held.enter_context(disk.flocked(lock.name, directory))
        yield
    os.close(directory)


async def test_a_fence_that_stays_held_is_waited_for_with_a_bound_and_harms_no_other(tmp_path: Path) -> None:
    async with folder_objects(tmp_path, lock_wait_s=3) as objects:
        await put(objects, KEY, FENCE, b"before", 7)
        with every_fence_held(tmp_path):
            began = time.monotonic()
            stuck = [asyncio.create_task(put(objects, KEY, FENCE, b"x", 7)) for _ in range(20)]
            await put(objects, ("other",), "s:other", b"free", 7)
            assert await get(objects, KEY) == b"before"
            results = await asyncio.gather(*stuck, return_exceptions=True)
            assert time.monotonic() - began < 30  # one after the other they would need a minute
            assert [it.outcome for it in results if isinstance(it, ResourceUnavailable)] == ["not-written"] * 20
        assert await get(objects, KEY) == b"before"
        assert drafts(tmp_path) == []


async def test_a_floor_is_not_called_raised_while_a_write_that_began_before_can_land(tmp_path: Path) -> None:
    async with folder_objects(tmp_path, lock_wait_s=0.2) as objects:
        await put(objects, KEY, FENCE, b"before", 7)
        with every_fence_held(tmp_path):
            for _ in range(2):
                with pytest.raises(ResourceUnavailable, match="repeat") as refused:
                    await objects.raise_floor(50)
                assert refused.value.outcome == "unknown"
        await objects.raise_floor(50)
        with pytest.raises(StaleToken):
            await put(objects, KEY, FENCE, b"late", 49)


@pytest.mark.parametrize("token", [-1, 0, 2**63])
async def test_what_is_no_token_raises_no_mark(objects: FolderObjects, token: int) -> None:
    with pytest.raises(InvalidToken):
        await objects.claim(FENCE, token)
    with pytest.raises(InvalidToken):
        await put(objects, KEY, FENCE, b"x", token)
    assert await objects.mark(FENCE) == 0


async def test_a_damaged_mark_is_not_taken_for_no_mark(objects: FolderObjects, tmp_path: Path) -> None:
    await put(objects, KEY, FENCE, b"before", 7)
    [mark] = (tmp_path / "fences").glob("*.mark")
    for damage in ("", "{}", '{"lockKey": "s:k"}', mark.read_text().replace("s:k", "s:j")):
        mark.write_text(damage)
        with pytest.raises(ResourceUnavailable, match="damaged"):
            await put(objects, KEY, FENCE, b"late", 99)
        with pytest.raises(ResourceUnavailable, match="damaged"):
            await objects.claim(FENCE, 99)


# --- files -----------------------------------------------------------------------------------------------------------


async def test_a_damaged_object_is_told_and_can_be_written_anew(objects: FolderObjects, tmp_path: Path) -> None:
    await put(objects, KEY, FENCE, b"whole", 7)
    file = tmp_path / "objects" / "k.o"
    for damaged in (file.read_bytes()[:-1], b"", b"not a frame at all" * 9):
        file.write_bytes(damaged)
        with pytest.raises(ResourceUnavailable, match="'k' is damaged"):
            await get(objects, KEY)
        with pytest.raises(ResourceUnavailable, match="'k' is damaged"):
            await put(objects, KEY, FENCE, b"x", 7, Conditions(if_none_match=("*",)))
        with pytest.raises(ResourceUnavailable, match="'k' is damaged"):
            await objects.list("", "", 10)
        await put(objects, KEY, FENCE, b"mended", 7)
        assert await get(objects, KEY) == b"mended"


async def test_the_file_of_one_object_is_not_taken_for_another(objects: FolderObjects, tmp_path: Path) -> None:
    await put(objects, KEY, FENCE, b"of k", 7)
    (tmp_path / "objects" / "k.o").rename(tmp_path / "objects" / "j.o")
    with pytest.raises(ResourceUnavailable, match="'j' is damaged"):
        await get(objects, ("j",))


async def test_links_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "s"
    outside.mkdir()
    async with folder_objects(folder) as objects:
        await put(objects, KEY, FENCE, b"secret", 7)
        (folder / "objects" / "k.o").rename(outside / "k.o")
        (folder / "objects" / "k.o").symlink_to(outside / "k.o")
        (folder / "objects" / "d.d").symlink_to(outside, target_is_directory=True)
        for key in (KEY, ("d", "k")):
            with pytest.raises(ResourceUnavailable):
                await get(objects, key)
            with pytest.raises(ResourceUnavailable) as refused:
                await put(objects, key, FENCE, b"x", 7)
            assert refused.value.outcome == "not-written"
        assert await objects.list("", "", 10) == []
    assert [path.name for path in outside.iterdir()] == ["k.o"]


async def test_a_pipe_in_the_place_of_an_object_does_not_hang_the_reader(
    objects: FolderObjects, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "objects" / "k.o")
    with pytest.raises(ResourceUnavailable):
        await asyncio.wait_for(get(objects, KEY), 30)


async def test_opening_removes_old_drafts_and_leaves_young_ones(tmp_path: Path) -> None:
    async with folder_objects(tmp_path):
        pass
    old, young = tmp_path / "drafts" / "old", tmp_path / "drafts" / "young"
    for draft, age_s in ((old, 3700), (young, 3500)):
        draft.write_bytes(b"half a body")
        os.utime(draft, (time.time() - age_s,) * 2)
    async with folder_objects(tmp_path):
        assert drafts(tmp_path) == [young]


# --- the record ------------------------------------------------------------------------------------------------------


async def test_a_folder_that_lost_its_record_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    async with folder_objects(tmp_path) as objects:
        await objects.raise_floor(50)
    (tmp_path / "fencegate.json").unlink()
    with pytest.raises(UnsafeConfiguration, match="fencegate fence floor s VALUE"):
        async with folder_objects(tmp_path):
            pass
    (tmp_path / "fencegate.json").write_text("{")
    with pytest.raises(UnsafeConfiguration, match="damaged"):
        async with folder_objects(tmp_path):
            pass


async def test_a_refusal_to_open_names_what_changed_and_how_to_go_on(tmp_path: Path) -> None:
    async with folder_objects(tmp_path):
        recorded = json.loads((tmp_path / "fencegate.json").read_text())
    assert recorded == {"name": "s", "guard": "{resource}:{key}", "form": "framed", "mode": "enforce", "floor": "0"}
    with pytest.raises(UnsafeConfiguration, match=r"guard is 'job:x' but was .*`fencegate fence floor s VALUE`"):
        async with folder_objects(tmp_path, guard="job:x"):
            pass
