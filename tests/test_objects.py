"""Objects in a folder: the resource suite, and what is special about files."""

import asyncio
import contextlib
import errno
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from fencegate.core.errors import InvalidInput, NotFound, PreconditionFailed, ResourceUnavailable, StaleToken, TooLarge
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Conditions, Key, Objects, Resource, Seen
from fencegate.testing.resource_suite import PER_KEY, Mode, ResourceSuite, Subject, opened
from fencegate_adapters.objects import FolderObjects, disk

KEY: Key = ("k",)
FENCE = "s:k"


async def parts(*data: bytes) -> AsyncIterator[bytes]:
    for part in data:
        yield part


async def put(objects: Objects, key: Key, fence: str, data: bytes, token: int, **more: object) -> Seen:
    conditions = cast(Conditions, more.get("conditions", Conditions()))
    return await objects.write(
        key, fence, token, parts(data), content_type="text/plain", metadata={"by": "me"}, conditions=conditions
    )


async def get(objects: Objects, key: Key, fence: str = FENCE, byte_range: tuple[int, int] | None = None) -> bytes | None:
    info, body, _ = await objects.read(key, fence, None, byte_range)
    data = b"".join([part async for part in body])
    return None if info is None else data


def folder_objects(folder: Path, **options: object) -> FolderObjects:
    return FolderObjects("s", folder, guard_template=PER_KEY, **options)  # type: ignore[arg-type]


@pytest.fixture
async def objects(tmp_path: Path) -> AsyncIterator[FolderObjects]:
    async with opened(folder_objects(tmp_path / "s")) as resource:
        yield cast(FolderObjects, resource)


class FolderSubject:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new(self, mode: Mode = "enforce", guard: str = PER_KEY) -> FolderObjects:
        return FolderObjects("s", self._folder, guard_template=guard, mode=mode)

    async def write(self, resource: Resource, key: Key, fence: str, text: str, token: int) -> Seen:
        return await put(cast(Objects, resource), key, fence, text.encode(), token)

    async def read(self, resource: Resource, key: Key, fence: str, token: int | None = None) -> str | None:
        info, body, _ = await cast(Objects, resource).read(key, fence, token)
        data = b"".join([part async for part in body])
        return None if info is None else data.decode()


class TestFolderObjects(ResourceSuite):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return FolderSubject(tmp_path / "not" / "yet" / "there")


# --- what an object is -----------------------------------------------------------------------------------------------


async def test_everything_known_of_an_object_comes_back(objects: FolderObjects) -> None:
    seen = await put(objects, ("a", "b"), "s:a/b", b"body", 7)
    assert seen.created
    info, head_seen = await objects.head(("a", "b"), "s:a/b")
    assert info is not None
    assert (info.size, info.etag, info.token) == (4, seen.etag, 7)
    assert (info.content_type, info.metadata) == ("text/plain", {"by": "me"})
    assert abs(info.modified_us / 1e6 - time.time()) < 60
    assert (head_seen.etag, head_seen.mark) == (seen.etag, 7)
    assert not (await put(objects, ("a", "b"), "s:a/b", b"", 7)).created
    assert await get(objects, ("a", "b")) == b""


async def test_identical_bytes_have_different_etags(objects: FolderObjects) -> None:
    first = await put(objects, KEY, FENCE, b"same", 7)
    await put(objects, KEY, FENCE, b"other", 7)
    again = await put(objects, KEY, FENCE, b"same", 7)
    assert first.etag != again.etag
    assert first.etag is not None
    with pytest.raises(PreconditionFailed):
        await put(objects, KEY, FENCE, b"paused", 7, conditions=Conditions(if_match=(first.etag,)))
    assert await get(objects, KEY) == b"same"


async def test_conditions_hold_for_writes_creates_and_deletes(objects: FolderObjects) -> None:
    create_only = Conditions(if_none_match=("*",))
    seen = await put(objects, KEY, FENCE, b"one", 7, conditions=create_only)
    assert seen.etag is not None
    with pytest.raises(PreconditionFailed):
        await put(objects, KEY, FENCE, b"two", 7, conditions=create_only)
    with pytest.raises(StaleToken):
        await put(objects, KEY, FENCE, b"two", 6, conditions=create_only)
    await objects.delete(KEY, FENCE, 8, Conditions(if_match=(seen.etag,)))
    with pytest.raises(PreconditionFailed):
        await put(objects, KEY, FENCE, b"two", 8, conditions=Conditions(if_match=("*",)))
    assert (await put(objects, KEY, FENCE, b"two", 8, conditions=create_only)).created


@pytest.mark.parametrize(("first", "last"), [(0, 0), (3, 9), (9, 9), (5, 99), (10, 12), (0, -1)])
async def test_a_range_gives_its_bytes_as_far_as_there_are_any(objects: FolderObjects, first: int, last: int) -> None:
    await put(objects, KEY, FENCE, b"0123456789", 7)
    assert await get(objects, KEY, byte_range=(first, last)) == b"0123456789"[first : last + 1]


async def test_large_bodies_stream_both_ways_and_a_reader_keeps_its_version(objects: FolderObjects) -> None:
    old = os.urandom(1_500_000)
    await objects.write(
        KEY, FENCE, 7, parts(*(old[at : at + 999] for at in range(0, len(old), 999))), content_type="", metadata={}
    )
    info, body, _ = await objects.read(KEY, FENCE)
    received = [await anext(body)]
    await put(objects, KEY, FENCE, b"new", 8)
    received += [part async for part in body]
    assert len(received) > 3
    assert b"".join(received) == old
    assert info is not None
    assert info.size == len(old)
    assert await get(objects, KEY) == b"new"
    assert await get(objects, KEY, byte_range=(1, 1)) == b"e"


async def test_names_that_need_care_are_kept_apart(objects: FolderObjects) -> None:
    names = ["a", "a/b", "a/b/c", "A", "%61", "a.o", "a.d/b", "x" * 79, "x" * 80, "x" * 81, "x" * 80 + "/y", "ü" * 512]
    for name in names:
        await put(objects, tuple(name.split("/")), f"s:{name[:99]}", name.encode(), 7)
    for name in names:
        assert await get(objects, tuple(name.split("/"))) == name.encode()
    assert [name for name, _ in await objects.list("", "", 100)] == sorted(names, key=str.encode)


async def test_a_key_with_too_many_segments_for_a_path_still_works(objects: FolderObjects) -> None:
    key = ("Ä",) * 341
    await put(objects, key, FENCE, b"deep", 7)
    assert await get(objects, key) == b"deep"
    assert [name for name, _ in await objects.list("Ä/Ä", "", 2)] == ["/".join(key)]


async def test_hostile_keys_are_refused_and_leave_nothing(objects: FolderObjects, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for key in [("..", "..", "x"), ("../x",), ("",), ("a", ""), ("a\0",), ("x" * 1025,)]:
        with pytest.raises(InvalidInput):
            await put(objects, key, FENCE, b"x", 7)
        with pytest.raises(InvalidInput):
            await get(objects, key)
    assert sorted(tmp_path.rglob("*")) == before


# --- listing ---------------------------------------------------------------------------------------------------------


async def test_listing_pages_in_byte_order_without_deleted_ones(objects: FolderObjects) -> None:
    names = ["a", "a!", "a/b", "a/b/c", "a/é", "a0", "b", "é", "z" * 90, "z" * 90 + "!", "z" * 90 + "/q"]
    for name in [*names, "a/gone"]:
        await put(objects, tuple(name.split("/")), f"s:{name}", b"x", 7)
    await objects.delete(("a", "gone"), "s:a/gone", 7)
    in_order = sorted(names, key=str.encode)
    for limit in (1, 3, 100):
        told: list[str] = []
        while page := await objects.list("", told[-1] if told else "", limit):
            assert len(page) <= limit
            told += [name for name, _ in page]
        assert told == in_order
    for prefix in ("a", "a/", "a/b", "z" * 85, "é", "nothing", "a/gone"):
        expected = [name for name in in_order if name.startswith(prefix)]
        assert [name for name, _ in await objects.list(prefix, "", 100)] == expected
        assert [name for name, _ in await objects.list(prefix, "a/b", 100)] == [
            name for name in expected if name.encode() > b"a/b"
        ]


async def test_a_page_opens_only_the_directories_that_it_needs(objects: FolderObjects, tmp_path: Path) -> None:
    for number in range(20):
        await put(objects, (f"{number:02}", "x"), "s:all", b"x", 7)
    # A listing that looked into all of them would trip over these.
    for number in (3, 8):
        directory = tmp_path / "s" / "objects" / f"{number:02}.d"
        (directory / "x.o").unlink()
        (directory / "x.o").write_bytes(b"damaged")
    page = await objects.list("", "03/x", 4)
    assert [name for name, _ in page] == ["04/x", "05/x", "06/x", "07/x"]
    with pytest.raises(ResourceUnavailable, match="'08/x' is damaged"):
        await objects.list("", "03/x", 5)


# --- when things go wrong --------------------------------------------------------------------------------------------


async def test_an_oversized_body_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with opened(folder_objects(tmp_path, max_bytes=1_000_000)) as resource:
        objects = cast(FolderObjects, resource)
        await put(objects, KEY, FENCE, b"x" * 1_000_000, 7)
        with pytest.raises(TooLarge):
            await objects.write(
                KEY, FENCE, 8, parts(*[b"y" * 100_000] * 10, b"y"), content_type="", metadata={}
            )
        assert await get(objects, KEY) == b"x" * 1_000_000
        assert await objects.mark(FENCE) == 7
        assert list((tmp_path / "drafts").iterdir()) == []


async def test_a_body_that_breaks_off_leaves_nothing(objects: FolderObjects, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 500_000
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await objects.write(KEY, FENCE, 7, broken(), content_type="", metadata={})
    assert await get(objects, KEY) is None
    assert list((tmp_path / "s" / "drafts").iterdir()) == []


async def test_a_slow_sender_does_not_hold_the_fence_and_loses_to_who_comes_meanwhile(
    objects: FolderObjects, tmp_path: Path
) -> None:
    passed = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 500_000
        await passed.wait()

    sender = asyncio.create_task(objects.write(KEY, FENCE, 7, slow(), content_type="", metadata={}))
    await asyncio.sleep(0.05)
    await put(objects, KEY, FENCE, b"successor", 8)
    passed.set()
    with pytest.raises(StaleToken):
        await sender
    assert await get(objects, KEY) == b"successor"
    assert list((tmp_path / "s" / "drafts").iterdir()) == []


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
    await put(objects, KEY, FENCE, b"after", 7)
    assert await get(objects, KEY) == b"after"
    assert list((tmp_path / "s" / "drafts").iterdir()) == []


async def test_a_fence_that_stays_held_is_waited_for_with_a_bound_and_harms_no_other(tmp_path: Path) -> None:
    async with opened(folder_objects(tmp_path, lock_wait_s=0.3)) as resource:
        objects = cast(FolderObjects, resource)
        await put(objects, KEY, FENCE, b"before", 7)
        with _every_fence_held(tmp_path / "fences"):
            began = time.monotonic()
            stuck = [asyncio.create_task(put(objects, KEY, FENCE, b"x", 7)) for _ in range(20)]
            await put(objects, ("other",), "s:other", b"free", 7)
            assert await get(objects, KEY) == b"before"
            results = await asyncio.gather(*stuck, return_exceptions=True)
            assert time.monotonic() - began < 3
            assert all(isinstance(it, ResourceUnavailable) and it.outcome == "not-written" for it in results)
            with pytest.raises(ResourceUnavailable, match="repeat") as held:
                await objects.raise_floor(50)
            assert held.value.outcome == "unknown"
        await objects.raise_floor(50)
        assert await get(objects, KEY) == b"before"


@contextlib.contextmanager
def _every_fence_held(fences: Path):  # type: ignore[no-untyped-def]
    directory = disk.open_directory(str(fences))
    with contextlib.ExitStack() as held:
        for lock in fences.glob("*.lock"):
            held.enter_context(disk.flocked(lock.name, directory))
        yield
    os.close(directory)
