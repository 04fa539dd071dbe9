"""The frame of an object, and the file names that objects get: what goes in comes out, and nothing else does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fencegate.core.errors import InvalidInput
from fencegate.core.token import MAX_TOKEN
from fencegate_adapters.objects.frame import (
    MAX_HEADER_BYTES,
    MAX_TEXT_BYTES,
    PAST,
    BadFrame,
    Header,
    Standing,
    decode,
    encode,
    sequel,
)
from fencegate_adapters.objects.names import file_path, object_name, piece

HEADER = Header("reports/2024.csv", 34, "00" * 15 + "ff", 5, 1_700_000_000_000_000, "text/csv", {"by": "B"})
BODY = b"a,b,c"

nonces = st.binary(min_size=16, max_size=16).map(bytes.hex)
standings = st.builds(
    Standing,
    mark=st.integers(0, MAX_TOKEN),
    shadow=st.integers(0, MAX_TOKEN),
    epoch=st.integers(0, 2**62),
    etag=st.one_of(st.just(""), nonces),
    body=st.text(max_size=100),
    past=st.lists(nonces, max_size=PAST).map('","'.join),
)
headers = st.builds(
    Header,
    key=st.text(min_size=1, max_size=100),
    token=st.integers(1, MAX_TOKEN),
    nonce=nonces,
    size=st.integers(0, 2**62),
    modified_us=st.integers(0, 2**62),
    content_type=st.text(max_size=50),
    metadata=st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=5),
    tombstone=st.booleans(),
    standing=st.one_of(st.none(), standings),
)
segments = st.text(st.characters(exclude_characters="/", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1)
object_names = st.lists(segments.filter(lambda it: it not in (".", "..")), min_size=1, max_size=4).map("/".join)
long_names = st.lists(st.text("ab!0", min_size=70, max_size=200), min_size=1, max_size=3).map("/".join)


@given(headers, st.binary(max_size=100))
def test_a_header_comes_back_as_it_was(header: Header, body: bytes) -> None:
    written = encode(header)
    follows = 0 if header.standing is not None and header.standing.body else header.size
    assert decode(written + body, len(written) + follows) == (header, len(written))


@given(headers)
def test_the_text_of_a_header_is_json(header: Header) -> None:
    key, content_type, metadata, *more = json.loads(encode(header)[60:])
    assert (key, content_type, metadata) == (header.key, header.content_type, header.metadata)
    it = header.standing
    expected = [] if it is None else [[str(it.mark), str(it.shadow), str(it.epoch), it.etag, it.body, [*it.nonces]]]
    assert more == expected


@given(headers, headers, nonces)
def test_what_is_made_ahead_reads_as_it_would_without(before: Header, value: Header, nonce: str) -> None:
    fence = before.standing or Standing()
    standing = replace(fence, etag=nonce, body="", past=fence.past_after(before.nonce))
    header = replace(value, nonce=nonce, tombstone=False, standing=standing)
    ahead = sequel(before)
    assert ahead.past == standing.past
    assert encode(header, ahead) == encode(header)


@given(st.lists(nonces, min_size=1, max_size=2 * PAST))
def test_a_frame_remembers_the_latest_nonces_before_its_own(given: list[str]) -> None:
    standing = Standing()
    for nonce in given:
        standing = Standing(past=standing.past_after(nonce))
    assert standing.nonces == tuple(reversed(given))[:PAST]


@pytest.mark.parametrize("standing", [Standing(etag="5"), Standing(past="0" * 31), Standing(past='a","' + "0" * 32)])
def test_a_frame_whose_nonces_are_none_is_refused(standing: Standing) -> None:
    written = encode(replace(HEADER, standing=standing))
    with pytest.raises(BadFrame):
        decode(written + BODY, len(written) + len(BODY))


@given(headers, st.integers(0, 2**62))
def test_the_length_of_a_header_does_not_depend_on_the_size_of_the_body(header: Header, size: int) -> None:
    assert len(encode(header)) == len(encode(replace(header, size=size)))


@pytest.mark.parametrize("length", range(len(encode(HEADER) + BODY)))
def test_a_frame_that_was_cut_off_anywhere_is_refused(length: int) -> None:
    cut = (encode(HEADER) + BODY)[:length]
    with pytest.raises(BadFrame):
        decode(cut, len(cut))


@given(st.integers(0, len(encode(HEADER)) - 1), st.integers(1, 255))
def test_a_header_with_any_byte_changed_is_refused(at: int, difference: int) -> None:
    damaged = bytearray(encode(HEADER) + BODY)
    damaged[at] ^= difference
    with pytest.raises(BadFrame):
        decode(bytes(damaged), len(damaged))


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        decode(data, len(data))


def test_a_frame_with_bytes_too_many_is_refused() -> None:
    with pytest.raises(BadFrame, match="6 bytes of body instead of 5"):
        decode(encode(HEADER) + BODY + b"!", len(encode(HEADER)) + 6)


def test_a_frame_of_a_newer_format_says_so() -> None:
    newer = bytearray(encode(HEADER))
    newer[9] += 1
    with pytest.raises(BadFrame, match="newer"):
        decode(bytes(newer), len(newer) + 5)


def test_a_header_that_could_not_be_read_back_is_not_written() -> None:
    encode(replace(HEADER, metadata={"m": "x" * (MAX_TEXT_BYTES - 100)}))
    with pytest.raises(ValueError, match=str(MAX_TEXT_BYTES)):
        encode(replace(HEADER, metadata={"m": "x" * MAX_TEXT_BYTES}))
    assert len(encode(HEADER)) < MAX_HEADER_BYTES


@given(st.one_of(object_names, long_names))
def test_file_names_give_the_object_name_back(name: str) -> None:
    read = b""
    for file_name in file_path(name):
        assert len(file_name) <= 255
        assert "/" not in file_name
        assert file_name == file_name.lower()
        part = piece(file_name)
        assert part is not None
        read += part.raw + (b"/" if part.suffix == ".d" else b"")
    assert read.decode() == name


@given(st.lists(st.one_of(object_names, long_names, st.text("aA.%/", min_size=1, max_size=4)), min_size=2))
def test_no_file_of_one_object_is_a_directory_of_another(names: list[str]) -> None:
    names = sorted({name for name in names if all(segment not in ("", ".", "..") for segment in name.split("/"))})
    paths = {file_path(name) for name in names}
    assert len(paths) == len(names)
    directories = {path[:depth] for path in paths for depth in range(1, len(path))}
    assert not paths & directories


@pytest.mark.parametrize(
    "file_name", ["", "x", "x.txt", "%41", "A.o", "%4A.o", "%6.o", "é.o", "%61.o", "x.o~", ".o.swp"]
)
def test_files_that_are_not_ours_stand_for_nothing(file_name: str) -> None:
    assert piece(file_name) is None


@pytest.mark.parametrize("name", ["", "..", ".", "a/", "/a", "a/../b", "a//b", "a\0b", "a\nb", "\ud800", "x" * 1025])
def test_names_that_could_escape_or_not_be_kept_are_refused(name: str) -> None:
    for key in ((name,), tuple(name.split("/"))):
        with pytest.raises(InvalidInput):
            object_name(key)
