"""A bucket that fails: lost answers, lines that are cut, damage from outside, floors that were broken off."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest

from fencegate.core.errors import ResourceUnavailable, StaleToken, UnsafeConfiguration
from fencegate.testing.fault_proxy import FaultProxy
from fencegate.testing.resource_suite import JOB, PER_KEY
from fencegate_adapters.objects import BucketObjects
from fencegate_adapters.objects.bucket.blobs import Blob, Version
from fencegate_adapters.objects.bucket.keys import RECORD, object_place
from fencegate_adapters.objects.bucket.outcomes import Unsettled
from tests.folder_objects import FENCE, KEY, get, put
from tests.real import moto, seaweed
from tests.resources.bucket_fixtures import BUCKET, bucket_objects

PLACE = object_place("k")


@pytest.fixture
async def objects(seaweed_url: str) -> AsyncIterator[BucketObjects]:
    async with bucket_objects(seaweed_url) as it:
        yield it


@pytest.fixture
async def rival(seaweed_url: str) -> AsyncIterator[BucketObjects]:
    async with bucket_objects(seaweed_url) as it:
        yield it


class LostAnswer:
    """Makes the next write of a frame one of unknown fate: done or not, and then something else happens first."""

    def __init__(
        self,
        objects: BucketObjects,
        monkeypatch: pytest.MonkeyPatch,
        *,
        done: bool,
        meanwhile: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._real = objects._blobs.put
        self._done = done
        self._meanwhile = meanwhile
        self.calls = 0
        monkeypatch.setattr(objects._blobs, "put", self._put)

    async def _put(self, key: str, data: bytes, expected: Version | None, content_type: str) -> Version:
        self.calls += 1
        if self.calls > 1:
            return await self._real(key, data, expected, content_type)
        if self._done:
            await self._real(key, data, expected, content_type)
        if self._meanwhile is not None:
            await self._meanwhile()
        raise Unsettled(key)


# --- lost answers ----------------------------------------------------------------------------------------------------


async def test_a_write_that_landed_is_told_as_written_when_its_answer_is_lost(
    objects: BucketObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(objects, KEY, FENCE, b"first", 7)
    lost = LostAnswer(objects, monkeypatch, done=True)
    seen = await put(objects, KEY, FENCE, b"second", 7)
    info, _ = await objects.head(KEY, FENCE)
    assert info is not None
    assert (info.etag, lost.calls) == (seen.etag, 1)


async def test_a_write_that_landed_and_was_overwritten_is_told_as_written_and_not_written_twice(
    objects: BucketObjects, rival: BucketObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(objects, KEY, FENCE, b"first", 7)
    lost = LostAnswer(objects, monkeypatch, done=True, meanwhile=lambda: put(rival, KEY, FENCE, b"newer", 8))
    await put(objects, KEY, FENCE, b"second", 7)
    assert lost.calls == 1
    assert await get(objects, KEY) == b"newer"


async def test_a_write_that_never_landed_is_refused_once_the_successor_has_written(
    objects: BucketObjects, rival: BucketObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(objects, KEY, FENCE, b"first", 7)
    LostAnswer(objects, monkeypatch, done=False, meanwhile=lambda: put(rival, KEY, FENCE, b"newer", 8))
    with pytest.raises(StaleToken):
        await put(objects, KEY, FENCE, b"second", 7)
    assert await get(objects, KEY) == b"newer"


async def test_a_write_that_can_still_land_is_sent_again_until_it_is_there(
    objects: BucketObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(objects, KEY, FENCE, b"first", 7)
    lost = LostAnswer(objects, monkeypatch, done=False)
    await put(objects, KEY, FENCE, b"second", 7)
    assert lost.calls == 2
    assert await get(objects, KEY) == b"second"


async def test_a_write_whose_trace_is_gone_is_told_as_unknown(
    objects: BucketObjects, rival: BucketObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(objects, KEY, FENCE, b"first", 7)

    async def many() -> None:
        for number in range(20):
            await put(rival, KEY, FENCE, b"%d" % number, 8)

    LostAnswer(objects, monkeypatch, done=False, meanwhile=many)
    with pytest.raises(ResourceUnavailable) as told:
        await put(objects, KEY, FENCE, b"second", 7)
    assert told.value.outcome == "unknown"


@pytest.mark.parametrize("layout", ["framed", "pointer"])
async def test_a_write_that_something_on_the_way_sent_twice_is_told_as_written_though_the_bucket_can_t_be_read_at_first(
    seaweed_url: str, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    async with bucket_objects(seaweed_url, layout) as objects:
        await put(objects, KEY, FENCE, b"first", 7)
        real_put, real_get = objects._blobs.put, objects._blobs.get
        failing = iter([True, True])

        async def put_twice(key: str, data: bytes, expected: Version | None, content_type: str) -> Version:
            await real_put(key, data, expected, content_type)
            return await real_put(key, data, expected, content_type)

        async def get_later(key: str, first_bytes: int | None = None) -> Blob | None:
            if next(failing, False):
                raise ResourceUnavailable("the bucket's server can't be reached")
            return await real_get(key, first_bytes)

        monkeypatch.setattr(objects._blobs, "put", put_twice)
        monkeypatch.setattr(objects._blobs, "get", get_later)
        await put(objects, KEY, FENCE, b"second", 7)
        assert await get(objects, KEY) == b"second"


@pytest.mark.parametrize("layout", ["framed", "pointer"])
async def test_a_write_that_can_still_land_is_unknown_when_it_is_refused_for_another_reason_the_second_time(
    seaweed_url: str, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Credentials that run out between the two, or a server that wants to be asked less often."""
    async with bucket_objects(seaweed_url, layout, timeout_s=0.5) as objects:
        await put(objects, KEY, FENCE, b"first", 7)
        real_put, sent = objects._blobs.put, []

        async def put_later(*request: Any) -> Version:
            sent.append(request)
            if len(sent) == 1:
                raise Unsettled(request[0])
            raise ResourceUnavailable("the bucket's server answered with status 429; nothing was written")

        monkeypatch.setattr(objects._blobs, "put", put_later)
        with pytest.raises(ResourceUnavailable) as told:
            await put(objects, KEY, FENCE, b"second", 7)
        await real_put(*sent[0])
        assert told.value.outcome == "unknown"
        assert await get(objects, KEY) == b"second"


# --- lines -----------------------------------------------------------------------------------------------------------


def through(proxy: FaultProxy, url: str) -> str:
    prefix = url.partition("?")[0]
    return f"{prefix}?endpoint=http://{proxy.address}&region=us-east-1"


@pytest.mark.parametrize("layout", ["framed", "pointer"])
async def test_a_connection_that_is_cut_after_the_server_wrote_loses_nothing(
    seaweed_server: seaweed.SeaweedServer, seaweed_url: str, layout: str
) -> None:
    with FaultProxy(seaweed_server.address) as proxy:
        async with bucket_objects(through(proxy, seaweed_url), layout) as objects:
            await put(objects, KEY, FENCE, b"first", 7)
            proxy.cut_answers(after=b"/objects/k.fg HTTP")
            seen = await put(objects, KEY, FENCE, b"second", 7)
            assert proxy.cuts == 1
            info, _ = await objects.head(KEY, FENCE)
            assert info is not None
            assert info.etag == seen.etag
            assert await get(objects, KEY) == b"second"
            with pytest.raises(StaleToken):
                await put(objects, KEY, FENCE, b"late", 6)


async def test_a_server_that_falls_silent_is_told_as_unknown_and_one_that_is_gone_as_not_written(
    seaweed_server: seaweed.SeaweedServer, seaweed_url: str
) -> None:
    with FaultProxy(seaweed_server.address) as proxy:
        async with bucket_objects(seaweed_url) as patient:
            # Not opened itself: on a loaded machine a start may take longer than it would wait.
            objects = BucketObjects("s", through(proxy, seaweed_url), guard_template=PER_KEY, timeout_s=0.7)
            objects._fenced.kept = patient._fenced.kept
            for attempt in range(20):
                try:
                    await put(objects, KEY, FENCE, b"first", 7)
                    break
                except ResourceUnavailable:
                    assert attempt < 19
            proxy.drop()
            with pytest.raises(ResourceUnavailable) as silent:
                await put(objects, KEY, FENCE, b"second", 7)
            assert silent.value.outcome == "unknown"
            proxy.pass_()
            proxy.close()
            with pytest.raises(ResourceUnavailable) as gone:
                await put(objects, KEY, FENCE, b"third", 7)
            assert gone.value.outcome == "not-written"
            for refusal in (silent, gone):
                assert seaweed.SECRET_KEY not in str(refusal.value)
                assert "http" not in str(refusal.value)


async def test_a_cancelled_upload_in_parts_leaves_nothing_that_looks_like_an_object(seaweed_url: str) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 1_000_000
        sending.set()
        await asyncio.sleep(600)

    sending = asyncio.Event()
    async with bucket_objects(seaweed_url, "pointer") as objects:
        writing = asyncio.create_task(objects.write(KEY, FENCE, 7, stuck(), content_type="", metadata={}))
        await asyncio.wait_for(sending.wait(), 60)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await get(objects, KEY) is None
        assert [key async for key in objects._blobs.keys("bodies")] == []
    where = urlsplit(seaweed_url)
    s3 = boto3.client("s3", endpoint_url=parse_qs(where.query)["endpoint"][0], region_name="us-east-1")
    begun = s3.list_multipart_uploads(Bucket=where.netloc).get("Uploads", [])
    assert [upload for upload in begun if upload["Key"].startswith(where.path.strip("/"))] == []


async def test_a_missing_bucket_is_told(moto_server: moto.MotoServer) -> None:
    url = f"s3://no-such-bucket/x?endpoint={moto_server.endpoint}&region=us-east-1"
    with pytest.raises(ResourceUnavailable, match="no such bucket"):
        await BucketObjects("s", url, guard_template="s:{key}").open()


async def test_a_missing_container_is_told(azurite_url: str) -> None:
    url = urlsplit(azurite_url)._replace(netloc="no-such-container").geturl()
    with pytest.raises(ResourceUnavailable, match="no such bucket"):
        await BucketObjects("s", url, guard_template="s:{key}").open()


@pytest.mark.parametrize("name", ["NoSuchBucket", "logs/ContainerNotFound.txt", "The specified bucket does not exist"])
async def test_an_object_may_be_named_like_the_error_of_a_missing_bucket(objects: BucketObjects, name: str) -> None:
    key, fence = tuple(name.split("/")), f"s:{name}"
    assert await get(objects, key, fence) is None
    await put(objects, key, fence, b"here", 7)
    assert await get(objects, key, fence) == b"here"


async def test_wrong_credentials_are_told_without_secrets(
    seaweed_server: seaweed.SeaweedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = f"endpoint={seaweed_server.endpoint}&region=us-east-1"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    refused = BucketObjects("s", f"s3://{BUCKET}/x?{endpoint}", guard_template="s:{key}")
    with pytest.raises(ResourceUnavailable, match="check the credentials") as told:
        await refused.open()
    assert "another-secret" not in str(told.value)
    with pytest.raises(UnsafeConfiguration, match="holds no credentials") as in_url:
        BucketObjects("s", "s3://me:hunter2@bucket/x", guard_template="s:{key}")
    assert "hunter2" not in str(in_url.value)


# --- from outside ----------------------------------------------------------------------------------------------------


async def test_a_damaged_frame_accepts_nothing_and_is_not_taken_for_a_new_object(objects: BucketObjects) -> None:
    await put(objects, KEY, FENCE, b"before", 7)
    store = objects._blobs._once
    whole = bytes(await (await store.get_async(PLACE.key)).bytes_async())
    for damaged in (whole[:-1], whole + b"x", b"not a frame at all" * 9, b""):
        await store.put_async(PLACE.key, damaged)
        for call in (
            lambda: put(objects, KEY, FENCE, b"late", 99),
            lambda: objects.claim(FENCE, 99),
            lambda: get(objects, KEY),
        ):
            with pytest.raises(ResourceUnavailable, match="damaged"):
                await call()
        await objects.raise_floor(50)  # what accepts nothing needs no floor
    await store.put_async("objects/j.fg", whole)
    with pytest.raises(ResourceUnavailable, match="of another object"):
        await get(objects, ("j",))


async def test_an_object_that_vanished_under_a_writer_is_not_made_anew(objects: BucketObjects) -> None:
    await put(objects, KEY, FENCE, b"before", 7)
    await objects._blobs.delete(PLACE.key)
    with pytest.raises(ResourceUnavailable, match="raise the floor"):
        await put(objects, KEY, FENCE, b"after", 7)


async def test_an_object_that_vanished_stays_refused_until_it_is_restored_or_the_floor_raised(
    objects: BucketObjects,
) -> None:
    await put(objects, KEY, FENCE, b"before", 7)
    store = objects._blobs._once
    frame = bytes(await (await store.get_async(PLACE.key)).bytes_async())
    await objects._blobs.delete(PLACE.key)
    assert await get(objects, KEY) is None  # which tells us that it is gone
    for token in (7, 5, 9):  # of these the second is stale
        with pytest.raises(ResourceUnavailable, match="raise the floor"):
            await put(objects, KEY, FENCE, b"after", token)
        with pytest.raises(ResourceUnavailable, match="raise the floor"):
            await objects.claim(FENCE, token)
    await store.put_async(PLACE.key, frame)
    with pytest.raises(StaleToken):
        await put(objects, KEY, FENCE, b"stale", 5)
    await put(objects, KEY, FENCE, b"restored", 7)
    await objects._blobs.delete(PLACE.key)
    await objects.raise_floor(8)
    with pytest.raises(StaleToken):
        await put(objects, KEY, FENCE, b"stale", 7)
    await put(objects, KEY, FENCE, b"after", 9)


async def test_an_object_that_was_restored_is_written_again_also_where_one_lock_guards_all(seaweed_url: str) -> None:
    async with bucket_objects(seaweed_url, guard_template=JOB) as objects:
        await put(objects, KEY, JOB, b"before", 7)
        store = objects._blobs._once
        frame = bytes(await (await store.get_async(PLACE.key)).bytes_async())
        await objects._blobs.delete(PLACE.key)
        assert await get(objects, KEY, JOB) is None
        with pytest.raises(ResourceUnavailable, match="restore it"):
            await put(objects, KEY, JOB, b"after", 7)
        await store.put_async(PLACE.key, frame)
        await put(objects, KEY, JOB, b"restored", 7)
        assert await get(objects, KEY, JOB) == b"restored"


async def test_a_look_from_before_the_first_write_does_not_make_the_object_a_lost_one(
    seaweed_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bucket_objects(seaweed_url, guard_template=JOB) as objects:
        look, looked, written = objects._blobs.get, asyncio.Event(), asyncio.Event()

        async def late(key: str, first_bytes: int | None = None) -> Blob | None:
            found = await look(key, first_bytes)
            looked.set()
            await written.wait()
            return found

        with monkeypatch.context() as patched:
            patched.setattr(objects._blobs, "get", late)
            reading = asyncio.create_task(get(objects, KEY, JOB))
            await looked.wait()
        await put(objects, KEY, JOB, b"first", 7)
        written.set()
        assert await reading is None
        await put(objects, KEY, JOB, b"second", 7)
        assert await get(objects, KEY, JOB) == b"second"


async def test_a_bucket_that_lost_its_record_is_not_taken_for_a_new_one(seaweed_url: str) -> None:
    async with bucket_objects(seaweed_url) as objects:
        await put(objects, KEY, FENCE, b"text", 7)
        await objects._blobs.delete(RECORD)
    with pytest.raises(UnsafeConfiguration, match="fencegate fence floor s VALUE"):
        async with bucket_objects(seaweed_url):
            pass
    again = BucketObjects("s", seaweed_url, guard_template="{resource}:{key}")
    await again.raise_floor(50)
    async with bucket_objects(seaweed_url) as objects:
        with pytest.raises(StaleToken):
            await put(objects, KEY, FENCE, b"late", 49)
        assert await get(objects, KEY) == b"text"


async def test_a_record_that_is_older_than_its_objects_is_refused(objects: BucketObjects) -> None:
    store = objects._blobs._once
    old = bytes(await (await store.get_async(RECORD)).bytes_async())
    await put(objects, KEY, FENCE, b"text", 7)
    await objects.raise_floor(50)
    await store.put_async(RECORD, old)
    await objects.open()
    with pytest.raises(UnsafeConfiguration, match="as after a restore"):
        await put(objects, KEY, FENCE, b"late", 60)


async def test_a_floor_that_was_broken_off_refuses_to_open_until_it_is_repeated(seaweed_url: str) -> None:
    async with bucket_objects(seaweed_url) as objects:
        for number in range(3):
            await put(objects, (f"{number}",), f"s:{number}", b"text", 7)
        await objects._records.begin_raising(50)  # and the process dies here
        with pytest.raises(UnsafeConfiguration, match="fence floor s 50"):
            async with bucket_objects(seaweed_url):
                pass
        await objects.raise_floor(40)
    async with bucket_objects(seaweed_url) as objects:
        for number in range(3):
            with pytest.raises(StaleToken):
                await put(objects, (f"{number}",), f"s:{number}", b"late", 49)


async def test_a_floor_stops_a_write_that_had_read_the_record_before(
    objects: BucketObjects, rival: BucketObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is paused between its last look at the record and its write, on an object that is new."""
    real = objects._blobs.put

    async def paused(key: str, data: bytes, expected: Version | None, content_type: str) -> Version:
        if expected is not None:
            monkeypatch.setattr(objects._blobs, "put", real)
            await rival.raise_floor(60)
        return await real(key, data, expected, content_type)

    monkeypatch.setattr(objects._blobs, "put", paused)
    with pytest.raises(StaleToken) as refused:
        await put(objects, KEY, FENCE, b"late", 59)
    assert refused.value.highest == 60
    assert await get(rival, KEY) is None


async def test_the_layout_is_recorded_and_a_floor_changes_it_without_touching_the_values(seaweed_url: str) -> None:
    async with bucket_objects(seaweed_url) as objects:
        found = await objects._blobs.get(RECORD)
        assert found is not None
        assert json.loads(found.data)["form"] == "framed"
        await put(objects, KEY, FENCE, b"framed" * 20_000, 7)
    with pytest.raises(UnsafeConfiguration, match="form is 'pointer' but was 'framed'"):
        async with bucket_objects(seaweed_url, "pointer"):
            pass
    for layout in ("pointer", "framed"):
        changed = BucketObjects("s", seaweed_url, guard_template="{resource}:{key}", layout=layout)
        await changed.raise_floor(8)
        async with bucket_objects(seaweed_url, layout) as objects:
            await put(objects, (layout,), f"s:{layout}", layout.encode(), 9)
            assert await get(objects, KEY) == b"framed" * 20_000
            assert await get(objects, ("pointer",)) == b"pointer"


async def test_one_lock_over_several_objects_says_that_it_is_best_effort(seaweed_url: str) -> None:
    async with bucket_objects(seaweed_url, guard_template=JOB) as objects:
        assert objects.guarantee.kind == "best-effort"
    one_by_one = BucketObjects("s", seaweed_url, guard_template="reports:{key}")
    assert one_by_one.guarantee.kind == "atomic"
