"""Redis strings and hashes as protected resources, over a real server."""

import hashlib
from collections.abc import AsyncIterator
from typing import Literal

import pytest
import redis.asyncio

from fencegate.core.errors import (
    InvalidInput,
    NotFound,
    PreconditionFailed,
    ResourceUnavailable,
    StaleToken,
    TooLarge,
    UnsafeConfiguration,
)
from fencegate.core.ports import Conditions, Key, Resource, RowWrite, Seen
from fencegate.testing.resource_suite import PER_KEY, Mode, ResourceSuite, opened
from fencegate_adapters.redis import RedisHashes, RedisStrings
from tests.real.redis import redis_program
from tests.resources.redis_fixtures import redis_server, redis_url
from tests.whole_bodies import check_whole_bodies

__all__ = ["redis_program", "redis_server", "redis_url"]


async def body(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def put(strings: RedisStrings, name: str, data: bytes, token: int = 7, **more: Conditions) -> Seen:
    return await strings.write((name,), f"s:{name}", token, body(data), content_type="text/plain", metadata={}, **more)


async def content(strings: RedisStrings, name: str, byte_range: tuple[int, int] | None = None) -> bytes | None:
    info, parts, _ = await strings.read((name,), f"s:{name}", None, byte_range)
    return None if info is None else b"".join([part async for part in parts])


class StringsSubject:
    def __init__(self, url: str) -> None:
        self._url = url

    def new(self, mode: Mode = "enforce", guard: str = PER_KEY) -> RedisStrings:
        return RedisStrings("strings", self._url, guard_template=guard, mode=mode)

    async def write(self, resource: Resource, key: Key, fence: str, text: str, token: int) -> Seen:
        assert isinstance(resource, RedisStrings)
        data = text.encode()
        return await resource.write(key, fence, token, body(data), content_type="text/plain", metadata={})

    async def read(self, resource: Resource, key: Key, fence: str, token: int | None = None) -> str | None:
        assert isinstance(resource, RedisStrings)
        info, parts, _ = await resource.read(key, fence, token)
        return None if info is None else b"".join([part async for part in parts]).decode()


class HashesSubject:
    def __init__(self, url: str) -> None:
        self._url = url

    def new(self, mode: Mode = "enforce", guard: str = PER_KEY) -> RedisHashes:
        return RedisHashes("hashes", self._url, guard_template=guard, mode=mode)

    async def write(self, resource: Resource, key: Key, fence: str, text: str, token: int) -> Seen:
        assert isinstance(resource, RedisHashes)
        return (await resource.write(fence, token, [RowWrite("put", key, {"text": text})]))[1]

    async def read(self, resource: Resource, key: Key, fence: str, token: int | None = None) -> str | None:
        assert isinstance(resource, RedisHashes)
        row, _ = await resource.read(key, fence, token)
        return None if row is None else str(row["text"])


class TestRedisStrings(ResourceSuite):
    @pytest.fixture
    def subject(self, redis_url: str) -> StringsSubject:
        return StringsSubject(redis_url)


class TestRedisHashes(ResourceSuite):
    @pytest.fixture
    def subject(self, redis_url: str) -> HashesSubject:
        return HashesSubject(redis_url)


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A client that knows nothing of fences."""
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def strings(redis_url: str) -> AsyncIterator[RedisStrings]:
    async with opened(RedisStrings("strings", f"{redis_url}?prefix=app:", max_bytes=1000)) as resource:
        assert isinstance(resource, RedisStrings)
        yield resource


@pytest.fixture
async def hashes(redis_url: str) -> AsyncIterator[RedisHashes]:
    async with opened(RedisHashes("hashes", f"{redis_url}?prefix=app:", max_row_bytes=1000)) as resource:
        assert isinstance(resource, RedisHashes)
        yield resource


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [9, 99, 2**53, 2**53 + 1, 2**62, 2**63 - 1])
async def test_neighbours_are_told_apart_whatever_their_size(hashes: RedisHashes, mark: int) -> None:
    # As doubles 2^53 and 2^53 + 1 are equal; as text 9 is above 10.
    await hashes.claim("s:k", mark - 1)
    assert (await hashes.claim("s:k", mark)).mark == mark
    with pytest.raises(StaleToken) as refused:
        await hashes.claim("s:k", mark - 1)
    assert refused.value.highest == mark
    if mark < 2**63 - 1:
        assert (await hashes.claim("s:k", mark + 1)).mark == mark + 1


async def test_a_mark_that_is_not_a_number_accepts_nothing(hashes: RedisHashes, raw: redis.asyncio.Redis) -> None:
    await raw.set("fencegate:fence:s:k", "1e30")
    with pytest.raises(ResourceUnavailable, match="damaged"):
        await hashes.write("s:k", 7, [RowWrite("put", ("k",), {"a": "1"})])
    assert await raw.exists("app:k") == 0


# --- strings ---------------------------------------------------------------------------------------------------------


async def test_others_read_an_ordinary_string_under_its_own_name(
    strings: RedisStrings, raw: redis.asyncio.Redis
) -> None:
    await put(strings, "a:b", b"plain \x00\xff bytes")
    assert await raw.get("app:a:b") == b"plain \x00\xff bytes"
    assert await raw.ttl("fencegate:fence:s:a:b") == -1


async def test_content_type_metadata_and_token_are_kept(strings: RedisStrings) -> None:
    written = await strings.write(("k",), "s:k", 7, body(b"one ", b"two"), content_type="text/x", metadata={"who": "ä"})
    info, seen = await strings.head(("k",), "s:k")
    assert info is not None
    assert (info.size, info.token, info.content_type, info.metadata) == (7, 7, "text/x", {"who": "ä"})
    assert info.etag == written.etag == seen.etag == hashlib.sha1(b"one two").hexdigest()
    assert written.created
    assert not (await put(strings, "k", b"again")).created


async def test_a_range_gives_the_bytes_that_there_are(strings: RedisStrings) -> None:
    await put(strings, "k", b"0123456789")
    assert await content(strings, "k", (2, 4)) == b"234"
    assert await content(strings, "k", (8, 99)) == b"89"


async def test_over_the_limit_nothing_is_written(strings: RedisStrings) -> None:
    await put(strings, "k", b"x" * 1000)
    with pytest.raises(TooLarge):
        await put(strings, "k", b"y" * 1001)
    assert await content(strings, "k") == b"x" * 1000


async def test_a_body_may_be_given_whole(strings: RedisStrings) -> None:
    await check_whole_bodies(strings)


async def test_conditions_look_at_the_bytes_that_are_there_now(strings: RedisStrings, raw: redis.asyncio.Redis) -> None:
    first = await put(strings, "k", b"one")
    assert first.etag is not None
    await raw.set("app:k", b"raw")  # of the same length, and by somebody who goes round us
    with pytest.raises(PreconditionFailed):
        await put(strings, "k", b"two", conditions=Conditions(if_match=(first.etag,)))
    assert await content(strings, "k") == b"raw"
    with pytest.raises(PreconditionFailed):
        await put(strings, "k", b"two", conditions=Conditions(if_none_match=("*",)))
    raw_etag = hashlib.sha1(b"raw").hexdigest()
    await put(strings, "k", b"two", conditions=Conditions(if_match=("nonsense,", raw_etag)))
    assert await content(strings, "k") == b"two"


async def test_a_listing_is_in_order_and_by_pages(strings: RedisStrings, raw: redis.asyncio.Redis) -> None:
    for name in ("b", "a/2", "a/1", "é", "a"):
        await put(strings, name, name.encode())
    await strings.delete(("b",), "s:b", 7)
    await raw.delete("app:a/2")  # by somebody else
    await raw.set("app:a", "longer than before")
    listed = await strings.list("", "", 100)
    assert [name for name, _ in listed] == ["a", "a/1", "é"]
    assert listed[0][1].etag == hashlib.sha1(b"longer than before").hexdigest()
    assert [name for name, _ in await strings.list("", "a", 1)] == ["a/1"]
    assert [name for name, _ in await strings.list("a/", "", 9)] == ["a/1"]
    assert [name for name, _ in await strings.list("", "a/1", 1)] == ["é"]


async def test_a_short_page_behind_many_that_expired_takes_few_calls(
    strings: RedisStrings, raw: redis.asyncio.Redis
) -> None:
    async def calls() -> int:
        told = await raw.info("commandstats")
        return sum(told.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))

    for name in ("a", "y", "z"):
        await put(strings, name, name.encode())
    index = next(iter(await raw.keys("fencegate:index:*")))
    await raw.zadd(index, {f"k{number:04}": 0 for number in range(1000)})  # as of keys whose time to live is over
    before = await calls()
    assert [name for name, _ in await strings.list("", "", 1)] == ["a"]
    assert [name for name, _ in await strings.list("", "a", 1)] == ["y"]
    assert [name for name, _ in await strings.list("", "a", 2)] == ["y", "z"]
    assert await calls() - before < 20


async def test_what_is_no_string_is_refused_and_left_as_it_is(strings: RedisStrings, raw: redis.asyncio.Redis) -> None:
    await raw.lpush("app:k", "item")
    with pytest.raises(InvalidInput, match="list"):
        await put(strings, "k", b"text")
    with pytest.raises(InvalidInput, match="list"):
        await strings.read(("k",), "s:k")
    assert await raw.lrange("app:k", 0, -1) == [b"item"]


async def test_a_string_is_not_written_when_what_is_ours_is_of_another_kind(
    strings: RedisStrings, raw: redis.asyncio.Redis
) -> None:
    await put(strings, "k", b"before")
    for ours in ("fencegate:index:strings", "fencegate:about:app:k"):
        await raw.delete(ours)
        await raw.lpush(ours, "of somebody else")
        with pytest.raises(ResourceUnavailable) as refused:
            await put(strings, "k", b"after")
        assert refused.value.outcome == "not-written"
        await raw.delete(ours)
    assert await raw.get("app:k") == b"before"


# --- hashes ----------------------------------------------------------------------------------------------------------


async def test_put_replaces_patch_merges_and_null_removes(hashes: RedisHashes, raw: redis.asyncio.Redis) -> None:
    rows, seen = await hashes.write("s:k", 7, [RowWrite("put", ("k",), {"a": "1", "b": 2})])
    assert rows == [{"a": "1", "b": "2"}]
    assert seen.created
    rows, seen = await hashes.write("s:k", 7, [RowWrite("patch", ("k",), {"b": None, "c": "ä"})])
    assert rows == [{"a": "1", "c": "ä"}]
    assert not seen.created
    assert await raw.hgetall("app:k") == {b"a": b"1", b"c": "ä".encode()}
    row, read = await hashes.read(("k",), "s:k")
    assert row == {"a": "1", "c": "ä"}
    assert read.etag == seen.etag
    await hashes.write("s:k", 7, [RowWrite("put", ("k",), {"d": "4"})])
    assert await raw.hgetall("app:k") == {b"d": b"4"}


async def test_a_batch_is_all_or_nothing(hashes: RedisHashes, raw: redis.asyncio.Redis) -> None:
    await hashes.write("job", 7, [RowWrite("put", ("a",), {"n": "1"}), RowWrite("put", ("b",), {"n": "1"})])
    good = [RowWrite("put", ("a",), {"n": "2"}), RowWrite("delete", ("b",)), RowWrite("put", ("b",), {"n": "3"})]
    with pytest.raises(NotFound) as missing:
        await hashes.write("job", 8, [*good, RowWrite("patch", ("none",), {"n": "2"})])
    assert missing.value.members["key"] == "none"
    assert await raw.hget("app:a", "n") == b"1"
    assert await hashes.mark("job") == 8, "what is refused after the check leaves the mark raised"
    rows, _ = await hashes.write("job", 8, [*good, RowWrite("patch", ("b",), {"m": "4"})])
    assert rows == [{"n": "2"}, None, {"n": "3"}, {"m": "4", "n": "3"}]
    assert await raw.hgetall("app:b") == {b"n": b"3", b"m": b"4"}


async def test_conditions_of_a_row_are_judged_in_the_same_step(hashes: RedisHashes) -> None:
    _, seen = await hashes.write("s:k", 7, [RowWrite("put", ("k",), {"n": "1"})])
    assert seen.etag is not None
    match = Conditions(if_match=(seen.etag,))
    await hashes.write("s:k", 7, [RowWrite("patch", ("k",), {"n": "2"}, match)])
    with pytest.raises(PreconditionFailed):
        await hashes.write("s:k", 7, [RowWrite("patch", ("k",), {"n": "3"}, match)])
    with pytest.raises(PreconditionFailed):
        await hashes.write("s:k", 7, [RowWrite("put", ("k",), {"n": "3"}, Conditions(if_none_match=("*",)))])
    assert (await hashes.read(("k",), "s:k"))[0] == {"n": "2"}


@pytest.mark.parametrize("value", [1.5, True, None, [], {"nested": "1"}, "\ud800"])
async def test_what_is_not_a_string_or_whole_number_is_refused(hashes: RedisHashes, value: object) -> None:
    with pytest.raises(InvalidInput):
        await hashes.write("s:k", 7, [RowWrite("put", ("k",), {"a": value})])
    assert (await hashes.read(("k",), "s:k"))[0] is None


async def test_a_row_is_neither_empty_nor_over_the_limit(hashes: RedisHashes) -> None:
    with pytest.raises(InvalidInput, match="at least one field"):
        await hashes.write("s:k", 7, [RowWrite("put", ("k",), {})])
    await hashes.write("s:k", 7, [RowWrite("put", ("k",), {"a": "x" * 900})])
    with pytest.raises(InvalidInput, match="at least one field"):
        await hashes.write("s:k", 7, [RowWrite("patch", ("k",), {"a": None})])
    with pytest.raises(TooLarge):
        await hashes.write("s:k", 7, [RowWrite("patch", ("k",), {"b": "x" * 100})])
    assert (await hashes.read(("k",), "s:k"))[0] == {"a": "x" * 900}


async def test_a_row_of_many_fields_is_written_as_a_whole(redis_url: str) -> None:
    wide = {f"field {number}": str(number) for number in range(9000)}
    async with opened(RedisHashes("wide", redis_url)) as resource:
        assert isinstance(resource, RedisHashes)
        await resource.write("s:k", 7, [RowWrite("put", ("k",), wide)])
        await resource.write("s:k", 7, [RowWrite("patch", ("k",), dict.fromkeys(list(wide)[1:]))])
        assert (await resource.read(("k",), "s:k"))[0] == {"field 0": "0"}


async def test_bytes_that_json_cannot_carry_are_told_and_survive_a_patch(
    hashes: RedisHashes, raw: redis.asyncio.Redis
) -> None:
    await raw.hset("app:k", mapping={b"raw": b"\xff"})
    with pytest.raises(ResourceUnavailable, match="UTF-8"):
        await hashes.read(("k",), "s:k")
    await hashes.write("s:k", 7, [RowWrite("patch", ("k",), {"a": "1"})])
    assert await raw.hget("app:k", "raw") == b"\xff"


# --- hostile names, unsafe servers -----------------------------------------------------------------------------------


async def test_nobody_writes_a_fence_or_a_record_through_a_resource(redis_url: str) -> None:
    async with opened(RedisHashes("all", redis_url)) as resource:
        assert isinstance(resource, RedisHashes)
        for name in ("fencegate:fence:s:k", "fencegate:resource:all", "fencegate:born"):
            with pytest.raises(InvalidInput, match="belongs to Fencegate"):
                await resource.write("s:k", 7, [RowWrite("put", (name,), {"a": "1"})])


@pytest.mark.parametrize("key", [(), ("",), ("a", ""), ("a\0b",), ("a\r\nb",), ("..",), ("x" * 1025,), ("\ud800",)])
async def test_a_key_that_is_no_name_is_refused(hashes: RedisHashes, key: Key) -> None:
    with pytest.raises(InvalidInput):
        await hashes.write("s:k", 7, [RowWrite("put", key, {"a": "1"})])


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://:secret@a,b/0", "one host"),
        ("redis://:secret@a/x", "number of a database"),
        ("redis://:secret@a/0?wait=1", "'wait' is not known"),
        ("redis://:secret@a/0?prefix=fencegate:", "belongs to Fencegate"),
        ("redis://:secret@a/0?replicas=-1", "whole number"),
        ("redis://:secret@a/0?replicas=2&replicas=0", "an option twice"),
        ("redis://:secret@a/0?ssl_certfile=x", "rediss"),
        ("rediss://:secret@a/0?ssl_keyfile=x", "ssl_keyfile goes with ssl_certfile"),
        ("redis://:secret@a:port/0", "can't be read"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_telling_its_password(url: str, says: str) -> None:
    with pytest.raises(UnsafeConfiguration, match=says) as refused:
        RedisHashes("hashes", url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("kind", ["strings", "hashes"])
async def test_a_resource_is_not_opened_as_the_other_kind(redis_url: str, kind: Literal["strings", "hashes"]) -> None:
    strings, hashes = RedisStrings("same", redis_url), RedisHashes("same", redis_url)
    async with opened(strings if kind == "strings" else hashes):
        other = hashes if kind == "strings" else strings
        with pytest.raises(UnsafeConfiguration, match="form was"):
            await other.open()
        await other.close()


async def test_the_keys_of_a_lock_store_are_not_opened(redis_url: str, raw: redis.asyncio.Redis) -> None:
    await raw.hset("fencegate-reign", "format", "1")
    resource = RedisHashes("hashes", redis_url)
    with pytest.raises(UnsafeConfiguration, match="keeps locks"):
        await resource.open()
    await resource.close()
    async with opened(RedisHashes("hashes", f"{redis_url}?prefix=app:")):
        pass
