"""The keys of a bucket, its URL, and frames that are read without us: what goes in comes out, and nothing else does."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencegate.core.errors import InvalidInput, UnsafeConfiguration
from fencegate.core.names import Guard
from fencegate_adapters.objects.bucket.keys import (
    MAX_KEY_BYTES,
    Homes,
    bodies_of,
    body_key,
    body_token,
    fence_place,
    name_of,
    name_prefix,
    object_place,
)
from fencegate_adapters.objects.bucket.url import BucketUrl
from fencegate_adapters.objects.frame import Header, Standing, encode
from fencegate_adapters.objects.raw import unframe

segments = st.text(st.characters(exclude_characters="/", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1)
names = st.lists(segments.filter(lambda it: it not in (".", "..")), min_size=1, max_size=3).map("/".join)
short_names = names.filter(lambda name: len(name.encode()) < 200)


@settings(max_examples=40)
@given(short_names)
def test_a_name_comes_back_from_its_key(name: str) -> None:
    key = object_place(name).key
    assert name_of(key) == name
    assert key.isascii()
    assert body_token(name, body_key(name, 7, "ab" * 16)) == 7


@settings(max_examples=40)
@given(short_names, st.integers(0, 20))
def test_the_key_of_a_name_begins_as_its_prefixes_do(name: str, length: int) -> None:
    assert object_place(name).key.startswith(name_prefix(name[:length]))


@settings(max_examples=40)
@given(short_names, short_names)
def test_no_frame_is_a_directory_of_another(one: str, two: str) -> None:
    assert not object_place(two).key.startswith(f"{object_place(one).key}/")
    assert not bodies_of(two).startswith(object_place(one).key)


def test_the_longest_key_of_a_name_fits() -> None:
    for name in ("x" * 1024, "ü" * 500):
        with pytest.raises(InvalidInput, match="too long"):
            object_place(name)
    longest = "x" * (MAX_KEY_BYTES - 1 - 60)
    assert len(body_key(longest, 2**63 - 1, "ab" * 16)) <= MAX_KEY_BYTES
    object_place(longest)


@pytest.mark.parametrize("template", ["{resource}:{key}", "x:{key}:y", "{key}", "{key}/{key}", "a.c:{key}"])
def test_the_mark_of_an_objects_own_lock_is_in_the_object(template: str) -> None:
    guard = Guard(template, "files")
    homes = Homes(guard)
    assert homes.one_by_one
    for key in (("a",), ("a", "b"), ("it's",)):
        assert homes.place(guard.lock_key(key)) == object_place("/".join(key))
    assert homes.place("another:lock") == fence_place("another:lock") or template == "{key}"


def test_a_lock_over_all_objects_has_a_place_of_its_own() -> None:
    homes = Homes(Guard("job:rebuild", "files"))
    assert not homes.one_by_one
    assert homes.place("job:rebuild") == fence_place("job:rebuild")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket/a/../b", "segment"),
        ("s3://bucket/a b", "letters"),
        ("s3://key:secret@bucket/x", "no credentials"),
        ("s3://bucket/x?secret_access_key=abc", "not an option"),
        ("s3://bucket/x?endpoint=http://key:secret@host", "without credentials"),
        ("s3://bucket/x?endpoint=file:///etc", "endpoint must be"),
        ("s3://bucket/x?region=a&region=b", "an option twice"),
        ("ftp://bucket/x", "s3://bucket/prefix"),
    ],
)
def test_a_wrong_url_is_refused_without_repeating_it(url: str, says: str) -> None:
    with pytest.raises(UnsafeConfiguration, match=says) as refused:
        BucketUrl.parse("files", url)
    for secret in ("abc", "key:", ":secret"):
        assert secret not in str(refused.value)


def test_urls_of_every_kind_are_read() -> None:
    assert BucketUrl.parse("f", "s3://b/p/q/?region=eu-west-1") == BucketUrl("s3", "b", "p/q", {"region": "eu-west-1"})
    assert BucketUrl.parse("f", "azure://c?account=a") == BucketUrl("az", "c", "", {"account": "a"})
    assert BucketUrl.parse("f", "gs://b/p") == BucketUrl("gs", "b", "p")


def test_a_frame_can_be_read_by_the_command_that_ships() -> None:
    standing = Standing(7, 0, 1, "00" * 16)
    plain = Header("a.csv", 7, "00" * 16, 5, standing=standing)
    gone = Header("a.csv", 7, "00" * 16, tombstone=True, standing=standing)
    pointer = Header("a.csv", 7, "00" * 16, 5, standing=Standing(7, 0, 1, "00" * 16, "bodies/a.csv/x"))
    assert unframe(encode(pointer)).body_key == "bodies/a.csv/x"
    assert unframe(encode(gone)).header.tombstone
    run = subprocess.run(
        [sys.executable, "-m", "fencegate_adapters.objects.raw"],
        input=encode(plain) + b"a,b,c",
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert run.stdout == b"a,b,c"
