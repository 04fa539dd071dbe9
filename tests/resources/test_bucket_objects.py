"""Objects in a bucket of a real S3 server: what an object is, in both layouts."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

import obstore
import pytest

from fencegate.clock import SystemClock
from fencegate.core.errors import (
    InvalidInput,
    PreconditionFailed,
    ResourceUnavailable,
    StaleToken,
    TooLarge,
    UnsafeConfiguration,
)
from fencegate.core.ports import Conditions
from fencegate_adapters.objects import BucketObjects
from fencegate_adapters.objects.bucket import janitor
from fencegate_adapters.objects.bucket.keys import BODIES, object_place
from fencegate_adapters.objects.bucket.outcomes import Refused
from fencegate_adapters.objects.bucket.standing import mark_of
from fencegate_adapters.objects.frame import PAST
from tests.folder_objects import FENCE, KEY, get, parts, put
from tests.resources.bucket_fixtures import bucket_objects
from tests.toy_bucket import toy_bucket
from tests.whole_bodies import check_whole_bodies

PLACE = object_place("k")


class StoppedClock(SystemClock):
    """Its date stands still; only its dice differ."""

    def now_us(self) -> int:
        return 1_700_000_000_000_000


@pytest.fixture(params=["framed", "pointer"])
async def objects(request: pytest.FixtureRequest, seaweed_url: str) -> AsyncIterator[BucketObjects]:
    async with bucket_objects(seaweed_url, request.param) as it:
        yield it


@pytest.fixture
async def framed(seaweed_url: str) -> AsyncIterator[BucketObjects]:
    async with bucket_objects(seaweed_url) as it:
        yield it


async def test_everything_known_of_an_object_comes_back(objects: BucketObjects) -> None:
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


async def test_identical_bytes_do_not_bring_an_old_condition_back(framed: BucketObjects) -> None:
    """A, B, A, then a writer that was paused since the first A: on this server, bare bytes let it through."""
    store = framed._blobs._once
    bare = [await store.put_async("bare", data, use_multipart=False) for data in (b"A", b"B", b"A")]
    assert bare[0]["e_tag"] == bare[2]["e_tag"]
    await store.put_async("bare", b"of the paused one", mode={"e_tag": bare[0]["e_tag"]})

    versions = []
    for data in (b"A", b"B", b"A"):
        await put(framed, KEY, FENCE, data, 7)
        known = framed._frames.known(PLACE)
        assert known is not None
        versions.append(known.version)
    assert len(set(versions)) == 3
    with pytest.raises(Refused):
        await framed._blobs.put(PLACE.key, b"of the paused one", versions[0], "text/plain")
    assert await get(framed, KEY) == b"A"


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
@pytest.mark.parametrize("layout", ["framed", "pointer"])
async def test_the_last_known_frame_is_the_one_that_is_there(
    seaweed_url: str, layout: Literal["framed", "pointer"], mode: Literal["enforce", "shadow"]
) -> None:
    """Part of it is made ahead, while the write before it is under way; and then the fence may be raised, the value be
    removed, or the floor be raised by another."""

    async def write(token: int) -> None:
        await one.write(KEY, FENCE, token, b"body", content_type="text/plain", metadata={"by": "me"})
        await check(token)

    async def check(mark: int) -> None:
        known = one._frames.known(PLACE)
        there = await two._frames.load(PLACE)
        assert known is not None
        assert there is not None
        assert (known.header, known.version, known.body_at) == (there.header, there.version, there.body_at)
        assert mark_of(there.header, mode) == mark

    async with (
        bucket_objects(seaweed_url, layout, mode=mode) as one,
        bucket_objects(seaweed_url, layout, mode=mode) as two,
    ):
        for token in (7, 7, 7, 8, 8):
            await write(token)
        await put(one, KEY, FENCE, b"body", 8)
        await check(8)
        await one.claim(FENCE, 9)
        await check(9)
        await write(9)
        await one.delete(KEY, FENCE, 9)
        await check(9)
        await write(9)
        await two.raise_floor(20)
        await write(20)
        await write(20)


async def test_no_version_comes_back_when_nothing_but_the_nonce_differs(seaweed_url: str) -> None:
    """The same bytes by the same holder at the same time, more often than a frame remembers what was before it."""
    async with bucket_objects(seaweed_url, clock=StoppedClock()) as objects:
        versions = []
        for _ in range(PAST + 3):
            await put(objects, KEY, FENCE, b"A", 7)
            known = objects._frames.known(PLACE)
            assert known is not None
            versions.append(known.version)
        assert len(set(versions)) == PAST + 3
        for old in versions[:-1]:
            with pytest.raises(Refused):
                await objects._blobs.put(PLACE.key, b"of the paused one", old, "text/plain")


async def test_a_claim_makes_the_paused_writers_condition_fail_and_leaves_the_value_and_its_etag(
    objects: BucketObjects,
) -> None:
    seen = await put(objects, KEY, FENCE, b"text" * 40_000, 7)
    before = objects._frames.known(PLACE)
    assert before is not None
    await objects.claim(FENCE, 8)
    with pytest.raises(Refused):
        await objects._blobs.put(PLACE.key, b"of the paused one", before.version, "text/plain")
    info, _ = await objects.head(KEY, FENCE)
    assert info is not None
    assert (info.etag, info.token, info.size) == (seen.etag, 7, 160_000)
    assert await get(objects, KEY) == b"text" * 40_000
    assert seen.etag is not None
    await put(objects, KEY, FENCE, b"new", 8, Conditions(if_match=(seen.etag,)))


async def test_conditions_hold_for_writes_creates_and_deletes(objects: BucketObjects) -> None:
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
        await put(objects, KEY, FENCE, b"two", 9, Conditions(if_match=("*",)))
    assert await objects.mark(FENCE) == 9
    assert (await put(objects, KEY, FENCE, b"two", 9, create_only)).created


async def test_a_condition_is_judged_by_what_is_there_and_not_by_what_was_known(seaweed_url: str) -> None:
    async with bucket_objects(seaweed_url) as one, bucket_objects(seaweed_url) as two:
        first = await put(one, KEY, FENCE, b"one", 7)
        second = await put(two, KEY, FENCE, b"two", 7)
        assert first.etag is not None
        assert second.etag is not None
        await put(one, KEY, FENCE, b"three", 7, Conditions(if_match=(second.etag,)))
        with pytest.raises(PreconditionFailed):
            await put(two, KEY, FENCE, b"four", 7, Conditions(if_match=(second.etag,)))


async def test_ranges_of_small_and_large_objects_and_a_reader_keeps_its_version(objects: BucketObjects) -> None:
    await put(objects, KEY, FENCE, b"0123456789", 7)
    for first, last in [(0, 0), (3, 9), (9, 9), (5, 99), (10, 12), (0, -1)]:
        assert await get(objects, KEY, byte_range=(first, last)) == b"0123456789"[first : last + 1]
    old = os.urandom(300_000)
    small_parts = parts(*(old[at : at + 999] for at in range(0, len(old), 999)))
    await objects.write(KEY, FENCE, 7, small_parts, content_type="", metadata={})
    for first, last in [(0, 10), (60_000, 70_000), (100_000, 299_999), (299_990, 400_000)]:
        assert await get(objects, KEY, byte_range=(first, last)) == old[first : last + 1]
    info, body, _ = await objects.read(KEY, FENCE)
    assert info is not None
    assert info.size == len(old)
    received = [await anext(body)]
    await put(objects, KEY, FENCE, b"new", 8)
    received += [part async for part in body]
    assert b"".join(received) == old
    assert await get(objects, KEY) == b"new"


async def test_a_reader_gets_the_bytes_of_one_version_when_another_is_written_before_they_come(
    framed: BucketObjects, seaweed_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = b"old" * 100_000, b"new" * 100_000
    await put(framed, KEY, FENCE, old, 7)
    stream = framed._blobs.stream

    async def late(*asked: Any) -> AsyncIterator[bytes]:
        monkeypatch.undo()
        async with bucket_objects(seaweed_url) as rival:
            await put(rival, KEY, FENCE, new, 8)
        return await stream(*asked)

    monkeypatch.setattr(framed._blobs, "stream", late)
    assert await get(framed, KEY) == new


async def test_bytes_that_somebody_cut_off_are_not_taken_for_the_whole(seaweed_url: str) -> None:
    async with bucket_objects(seaweed_url, "pointer") as objects:
        await put(objects, KEY, FENCE, b"x" * 300_000, 7)
        (body,) = [key async for key in objects._blobs.keys(f"{BODIES}k")]
        await objects._blobs.upload(body, b"x" * 200_000, "text/plain", 5_000_000)
        with pytest.raises(ResourceUnavailable, match="100000 bytes are missing"):
            await get(objects, KEY)


async def test_a_holders_further_write_is_one_request_and_the_first_four(
    framed: BucketObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("get_async", "put_async", "delete_async"):
        real = getattr(obstore, name)

        def spy(*args: object, _name: str = name, _real: object = real, **more: object) -> object:
            asked.append(_name)
            assert callable(_real)
            return _real(*args, **more)

        monkeypatch.setattr(obstore, name, spy)
    await put(framed, KEY, FENCE, b"first", 7)
    assert asked == ["get_async", "put_async", "get_async", "put_async"]
    asked.clear()
    await put(framed, KEY, FENCE, b"second", 7)
    assert asked == ["put_async"]
    with pytest.raises(StaleToken):
        await put(framed, KEY, FENCE, b"stale", 6)
    assert asked == ["put_async"]


async def test_a_body_over_the_limit_is_refused_and_says_which_layout_has_a_higher_one(seaweed_url: str) -> None:
    with pytest.raises(UnsafeConfiguration, match='layout = "pointer"'):
        BucketObjects("s", seaweed_url, guard_template="s:{key}", max_bytes=2**30)
    async with bucket_objects(seaweed_url, max_bytes=1000) as objects:
        with pytest.raises(TooLarge, match='layout = "pointer"'):
            await put(objects, KEY, FENCE, b"x" * 1001, 7)
        assert await get(objects, KEY) is None
        await put(objects, KEY, FENCE, b"x" * 1000, 7)


@pytest.mark.parametrize("layout", ["framed", "pointer"])
async def test_a_body_may_be_given_whole(seaweed_url: str, layout: str) -> None:
    async with bucket_objects(seaweed_url, layout, max_bytes=100_000) as objects:
        await check_whole_bodies(objects)
        bodies = [key async for key in objects._blobs.keys(BODIES)]
        for body in (b"stale", b"y" * 100_001):  # stale is told first, and nothing is uploaded for it
            with pytest.raises(StaleToken):
                await objects.write(KEY, FENCE, 6, body, content_type="", metadata={})
        assert [key async for key in objects._blobs.keys(BODIES)] == bodies


@pytest.mark.parametrize("name", ["k" * 300, "報" * 30])
async def test_a_key_that_is_too_long_for_the_server_is_the_callers_mistake(objects: BucketObjects, name: str) -> None:
    """This one keeps a tree, whose names have at most 255 bytes."""
    for attempt in (
        put(objects, (name,), f"s:{name}", b"body", 7),
        objects.write((name,), f"s:{name}", 7, b"body", content_type="text/plain", metadata={}),
        objects.claim(f"s:{name}", 7),
        objects.delete((name,), f"s:{name}", 7),
    ):
        with pytest.raises(InvalidInput, match="key: is too long"):
            await attempt
    assert await get(objects, (name,), f"s:{name}") is None


async def test_metadata_that_could_not_be_read_back_is_refused(objects: BucketObjects) -> None:
    with pytest.raises(InvalidInput, match="metadata"):
        await objects.write(KEY, FENCE, 7, parts(b"x"), content_type="", metadata={"long": "x" * 40_000})
    assert await get(objects, KEY) is None


# --- names and listing -----------------------------------------------------------------------------------------------


async def test_names_that_need_care_are_kept_apart_and_all_are_listed(framed: BucketObjects) -> None:
    await _all_are_listed(framed)


async def test_names_that_need_care_are_kept_apart_and_all_are_listed_on_azure(azurite_url: str) -> None:
    """Azurite takes no notice of where a page is to begin."""
    async with bucket_objects(azurite_url) as framed:
        await _all_are_listed(framed)


async def _all_are_listed(framed: BucketObjects) -> None:
    names = ["a", "a/b", "a/b/c", "A", "%61", "a.fg", "a.fg/b", "a./b", "a%", "x" * 240, "ü" * 40, "a-b", "a b"]
    names += ["0", "a0", "a/0", "a/.0"]  # a page whose names all begin with a 0 begins behind a slash
    for name in [*names, "a/gone"]:
        await put(framed, tuple(name.split("/")), f"s:{name}", name.encode(), 7)
    await framed.delete(("a", "gone"), "s:a/gone", 7)
    for name in names:
        assert await get(framed, tuple(name.split("/"))) == name.encode()
    whole = [name for name, _ in await framed.list("", "", 100)]
    assert sorted(whole) == sorted(names)
    for limit in (1, 5):
        told: list[str] = []
        while page := await framed.list("", told[-1] if told else "", limit):
            assert len(page) <= limit
            assert not {name for name, _ in page}.intersection(told)
            told += [name for name, _ in page]
        assert told == whole
    plain = "-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz%"
    odd = ("a0", "a/0", "a/.0", "a/..0", "a.0", "/", "//a", "a//b")
    for prefix in (*plain, *odd, "a/", "a.", "a-", "a.fg", "ü", "no"):
        found = [name for name, _ in await framed.list(prefix, "", 100)]
        assert sorted(found) == sorted(name for name in names if name.startswith(prefix))


async def test_names_that_no_key_can_hold_are_refused(framed: BucketObjects) -> None:
    for key in [("..", "x"), ("../x",), ("",), ("a", ""), ("a\0",), ("x" * 1025,), ("ü" * 400,)]:
        with pytest.raises(InvalidInput):
            await put(framed, key, FENCE, b"x", 7)
        with pytest.raises(InvalidInput):
            await get(framed, key)
    assert await framed.list("", "", 10) == []
    with pytest.raises(InvalidInput):
        await framed.list("", "a//b", 10)


# --- bodies of their own ---------------------------------------------------------------------------------------------


async def test_replaced_and_orphaned_bodies_are_removed_and_those_that_may_yet_be_pointed_to_are_not(
    seaweed_url: str,
) -> None:
    async with bucket_objects(seaweed_url, "pointer", readers_s=3600.0) as objects:
        for token in (5, 7):
            await put(objects, KEY, FENCE, b"replaced", token)
        orphans = {token: await objects._layout.receive(PLACE, token, "", parts(b"x")) for token in (6, 8)}
        await put(objects, KEY, FENCE, b"new", 8)
        assert await objects._janitor.clean(PLACE) == 3  # of 5, 6 and 7
        left = [key async for key in objects._blobs.keys("bodies/k")]
        assert orphans[8].key in left
        assert len(left) == 2
        assert await get(objects, KEY) == b"new"


async def test_objects_below_another_do_not_keep_its_bodies_from_being_removed(
    seaweed_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "MAX_REMOVED", 2)
    async with bucket_objects(seaweed_url, "pointer", readers_s=3600.0) as objects:
        for number in range(3):  # their bodies come before those of the object in every listing
            await put(objects, ("k", f"-{number}"), f"s:k/-{number}", b"below", 5)
        for token in (5, 7):
            await put(objects, KEY, FENCE, b"body", token)
        assert await objects._janitor.clean(PLACE) == 1
        assert len([key async for key in objects._blobs.keys("bodies/k")]) == 4


async def test_a_body_that_was_refused_is_removed_at_once(seaweed_url: str) -> None:
    async with bucket_objects(seaweed_url, "pointer", max_bytes=20_000_000) as objects:
        await put(objects, KEY, FENCE, b"there", 7)
        with pytest.raises(PreconditionFailed):
            await put(objects, KEY, FENCE, b"refused", 7, Conditions(if_none_match=("*",)))
        with pytest.raises(TooLarge):
            await objects.write(KEY, FENCE, 7, parts(*[b"x" * 5_000_000] * 5), content_type="text/plain", metadata={})
        assert len([key async for key in objects._blobs.keys("bodies/k")]) == 1


# --- servers that keep no conditions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ignored",
    [
        ("If-Match",),
        ("If-None-Match",),
        ("If-Match", "If-None-Match"),
        ("If-Match of nothing",),
        ("If-Match of another",),
    ],
    ids=" ".join,
)
async def test_a_server_that_ignores_conditions_is_refused(bucket_credentials: None, ignored: tuple[str, ...]) -> None:
    with toy_bucket(*ignored) as endpoint:
        objects = BucketObjects("s", f"s3://bucket/x?endpoint={endpoint}&region=us-east-1", guard_template="s:{key}")
        with pytest.raises(UnsafeConfiguration, match=f"ignores ({'|'.join(each.split()[0] for each in ignored)})"):
            await objects.open()


@pytest.mark.parametrize("condition", ["If-Match", "If-None-Match"])
async def test_a_server_that_looks_at_conditions_first_and_writes_later_is_refused(
    bucket_credentials: None, condition: str
) -> None:
    with toy_bucket(f"{condition} at the end") as endpoint:
        objects = BucketObjects("s", f"s3://bucket/x?endpoint={endpoint}&region=us-east-1", guard_template="s:{key}")
        with pytest.raises(UnsafeConfiguration, match="looks at conditions first and writes later"):
            await objects.open()


async def test_the_same_server_is_taken_when_it_keeps_them(bucket_credentials: None) -> None:
    with toy_bucket() as endpoint:
        async with bucket_objects(f"s3://bucket/x?endpoint={endpoint}&region=us-east-1"):
            pass


async def test_a_server_that_wants_less_haste_is_taken(bucket_credentials: None) -> None:
    with toy_bucket("haste") as endpoint:
        async with bucket_objects(f"s3://bucket/x?endpoint={endpoint}&region=us-east-1"):
            pass


async def test_a_server_that_wants_less_haste_is_waited_for_by_a_write_that_takes_two_requests(
    bucket_credentials: None,
) -> None:
    with toy_bucket("haste") as endpoint:
        async with bucket_objects(f"s3://bucket/x?endpoint={endpoint}&region=us-east-1") as objects:
            assert (await put(objects, KEY, FENCE, b"first", 7)).created
            await objects.claim(FENCE, 8)
            assert await get(objects, KEY) == b"first"


async def test_a_silent_server_is_told_soon_and_not_asked_again_for_each_thing_that_the_probe_may_have_left(
    bucket_credentials: None,
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        url = f"s3://bucket/x?endpoint={endpoint}&region=us-east-1"
        objects = BucketObjects("s", url, guard_template="s:{key}", timeout_s=0.5)
        async with asyncio.timeout(2.5):
            with pytest.raises(ResourceUnavailable, match="can't be reached or broke off"):
                await objects.open()
