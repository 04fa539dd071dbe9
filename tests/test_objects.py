"""Objects in a folder: the resource suite, and what an object is."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from fencegate.core.errors import InvalidInput, PreconditionFailed, ResourceUnavailable, StaleToken
from fencegate.core.ports import Conditions, Key, Objects, Resource, Seen
from fencegate.testing.resource_suite import PER_KEY, Mode, ResourceSuite, Subject
from fencegate_adapters.objects import FolderObjects
from tests.folder_objects import FENCE, KEY, folder_objects, get, parts, put
from tests.whole_bodies import check_whole_bodies


@pytest.fixture
async def objects(tmp_path: Path) -> AsyncIterator[FolderObjects]:
    async with folder_objects(tmp_path) as it:
        yield it


class FolderSubject:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new(self, mode: Mode = "enforce", guard: str = PER_KEY) -> FolderObjects:
        return FolderObjects("s", self._folder, guard_template=guard, mode=mode)

    async def write(self, resource: Resource, key: Key, fence: str, text: str, token: int) -> Seen:
        return await put(cast(Objects, resource), key, fence, text.encode(), token)

    async def read(self, resource: Resource, key: Key, fence: str, token: int | None = None) -> str | None:
        data = await get(cast(Objects, resource), key, fence, token)
        return None if data is None else data.decode()


class TestFolderObjects(ResourceSuite):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return FolderSubject(tmp_path / "not" / "yet" / "there")


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


async def test_a_body_may_be_given_whole(tmp_path: Path) -> None:
    async with folder_objects(tmp_path, max_bytes=100_000) as objects:
        await check_whole_bodies(objects)


async def test_identical_bytes_have_different_etags(objects: FolderObjects) -> None:
    first = await put(objects, KEY, FENCE, b"same", 7)
    await put(objects, KEY, FENCE, b"other", 7)
    again = await put(objects, KEY, FENCE, b"same", 7)
    assert first.etag != again.etag
    assert first.etag is not None
    with pytest.raises(PreconditionFailed):
        await put(objects, KEY, FENCE, b"paused", 7, Conditions(if_match=(first.etag,)))
    assert await get(objects, KEY) == b"same"


async def test_conditions_hold_for_writes_creates_and_deletes(objects: FolderObjects) -> None:
    create_only = Conditions(if_none_match=("*",))
    seen = await put(objects, KEY, FENCE, b"one", 7, create_only)
    assert seen.etag is not None
    with pytest.raises(PreconditionFailed):
        await put(objects, KEY, FENCE, b"two", 7, create_only)
    with pytest.raises(StaleToken):
        await put(objects, KEY, FENCE, b"two", 6, create_only)
    deleted = await objects.delete(KEY, FENCE, 8, Conditions(if_match=(seen.etag,)))
    assert (deleted.mark, deleted.etag, deleted.created) == (8, None, False)
    with pytest.raises(PreconditionFailed):
        await put(objects, KEY, FENCE, b"two", 8, Conditions(if_match=("*",)))
    assert (await put(objects, KEY, FENCE, b"two", 8, create_only)).created


@pytest.mark.parametrize(("first", "last"), [(0, 0), (3, 9), (9, 9), (5, 99), (10, 12), (0, -1)])
async def test_a_range_gives_its_bytes_as_far_as_there_are_any(objects: FolderObjects, first: int, last: int) -> None:
    await put(objects, KEY, FENCE, b"0123456789", 7)
    assert await get(objects, KEY, byte_range=(first, last)) == b"0123456789"[first : last + 1]


async def test_large_bodies_stream_both_ways_and_a_reader_keeps_its_version(objects: FolderObjects) -> None:
    old = os.urandom(1_500_000)
    small_parts = parts(*(old[at : at + 999] for at in range(0, len(old), 999)))
    await objects.write(KEY, FENCE, 7, small_parts, content_type="", metadata={})
    assert await get(objects, KEY, byte_range=(400_000, 1_200_000)) == old[400_000:1_200_001]
    info, body, _ = await objects.read(KEY, FENCE)
    assert info is not None
    assert info.size == len(old)
    received = [await anext(body)]
    await put(objects, KEY, FENCE, b"new", 8)
    received += [part async for part in body]
    assert len(received) > 3
    assert b"".join(received) == old
    assert await get(objects, KEY) == b"new"


async def test_metadata_that_could_not_be_read_back_is_refused(objects: FolderObjects) -> None:
    with pytest.raises(InvalidInput, match="metadata"):
        await objects.write(KEY, FENCE, 7, parts(b"x"), content_type="", metadata={"long": "x" * 40_000})
    assert await get(objects, KEY) is None


# --- names -----------------------------------------------------------------------------------------------------------


async def test_names_that_need_care_are_kept_apart(objects: FolderObjects) -> None:
    names = ["a", "a/b", "a/b/c", "A", "%61", "a.o", "a.d/b", "x" * 79, "x" * 80, "x" * 81, "x" * 80 + "/y", "ü" * 512]
    names += ["x" * 80 + "!", "x" * 80 + "0", "x" * 80 + "!/z"]
    for name in names:
        await put(objects, tuple(name.split("/")), f"s:{name[:99]}", name.encode(), 7)
    for name in names:
        assert await get(objects, tuple(name.split("/"))) == name.encode()
    assert [name for name, _ in await objects.list("", "", 100)] == sorted(names, key=str.encode)


async def test_a_key_of_hundreds_of_segments_works(objects: FolderObjects) -> None:
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
        with pytest.raises(InvalidInput):
            await objects.delete(key, FENCE, 7)
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
        behind = [name for name in expected if name.encode() > b"a/b"]
        assert [name for name, _ in await objects.list(prefix, "a/b", 100)] == behind


async def test_a_page_opens_only_the_directories_that_it_needs(objects: FolderObjects, tmp_path: Path) -> None:
    for number in range(10):
        await put(objects, (f"{number}", "x"), "s:all", b"x", 7)
    # A listing that looked into all directories would trip over these two.
    for number in (2, 8):
        directory = tmp_path / "objects" / f"{number}.d"
        (directory / "x.o").unlink()
        directory.rmdir()
        directory.write_bytes(b"")
    page = await objects.list("", "3/x", 4)
    assert [name for name, _ in page] == ["4/x", "5/x", "6/x", "7/x"]
    with pytest.raises(ResourceUnavailable):
        await objects.list("", "3/x", 5)


async def test_files_that_are_not_ours_are_not_listed(objects: FolderObjects, tmp_path: Path) -> None:
    await put(objects, KEY, FENCE, b"x", 7)
    for name in ("notes.txt", "A.o", ".k.o.swp"):
        (tmp_path / "objects" / name).write_text("from outside")
    assert [name for name, _ in await objects.list("", "", 10)] == ["k"]
