"""Bad input to the gateway gets a clear 4xx that names the field; never a 500, and nothing is written."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from fencegate.clock import SYSTEM
from fencegate.core.errors import UnsafeConfiguration
from fencegate.gateway import Gateway, ResourceSettings
from fencegate.web import ThinApp
from tests.gateway_server import app, make_tables, settings

Headers = list[tuple[bytes, bytes]]
TOKEN: Headers = [(b"fencing-token", b"34")]
NAMES = st.sampled_from(
    [b"fencing-token", b"fencing-lock", b"if-match", b"if-none-match", b"range", b"if-range", b"prefer", b"connection",
     b"if-unmodified-since", b"content-type", b"content-length", b"content-range", b"x-meta-a", b"x-meta-"]
)  # fmt: skip
NFC, NFD = "\u00e9".encode(), "e\u0301".encode()


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    thin: ThinApp, method: str, path: bytes, headers: Headers | None = None, *parts: bytes, dropped: bool = False
) -> Answer:
    """Send exactly these bytes: an HTTP client would mend what must be refused here."""
    raw_path, _, query = path.partition(b"?")
    scope = {"type": "http", "method": method, "raw_path": raw_path, "path": "", "query_string": query}
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.disconnect"} if dropped else {"type": "http.request", "body": b""})
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await thin({**scope, "headers": headers or []}, receive, send)
    if not sent:
        return Answer(0, {}, b"")
    return Answer(sent[0]["status"], dict(sent[0]["headers"]), b"".join(m.get("body", b"") for m in sent[1:]))


@pytest.fixture
async def thin(tmp_path: Path) -> AsyncIterator[ThinApp]:
    make_tables(tmp_path)
    gateway = Gateway(settings(tmp_path), SYSTEM)
    await gateway.open()
    yield app(gateway)
    await gateway.close()


def refused(answer: Answer, status: int, error: str, field: str | None = None) -> None:
    assert (answer.status, answer.json["error"]) == (status, error), answer
    assert answer.headers[b"content-type"] == b"application/problem+json"
    assert answer.json["status"] == status
    if field is not None:
        assert answer.json["field"] == field
        assert field in answer.json["detail"]


async def nothing_written(thin: ThinApp, *resources: str) -> None:
    for resource in resources or ("rows", "objects", "job"):
        answer = await ask(thin, "GET", f"/v1/resources/{resource}/k".encode())
        refused(answer, 404, "NOT_FOUND")
        assert answer.headers[b"fencing-token-highest"] == b"0"


# --- tokens ----------------------------------------------------------------------------------------------------------

NO_TOKENS = [
    "",
    "-1",
    "0",
    "+5",
    " 5",
    "5 ",
    "5.0",
    "1e3",
    "0x10",
    "007",
    "1_000",
    "٣",
    "²",
    "5,5",
    "5, 6",
    "null",
    "NaN",
]
NO_TOKENS += [str(2**63), "9" * 19, "9" * 5000, "5\x00", "'; DROP TABLE rows"]


@pytest.mark.parametrize("text", NO_TOKENS)
async def test_what_is_not_a_token_is_refused(thin: ThinApp, text: str) -> None:
    header = [(b"fencing-token", text.encode())]
    for resource in ("rows", "objects", "job"):
        path = f"/v1/resources/{resource}/k".encode()
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            answer = await ask(thin, method, path, header, b"{}")
            assert answer.status == 400
            if method != "HEAD":
                refused(answer, 400, "INVALID_TOKEN")
        refused(await ask(thin, "POST", path + b"/claim", header), 400, "INVALID_TOKEN")
    refused(await ask(thin, "POST", b"/v1/resources/job/batch", header, b"{}"), 400, "INVALID_TOKEN")
    await nothing_written(thin)


@pytest.mark.parametrize("text", ["a.b.c", "eyJhbGciOiJFZERTQSJ9.eyJ0b2tlbiI6MzR9.c2ln", ".", "..", "34.x"])
async def test_a_sequencer_that_cannot_be_verified_is_refused(thin: ThinApp, text: str) -> None:
    header = [(b"fencing-token", text.encode())]
    refused(await ask(thin, "PUT", b"/v1/resources/rows/k", header, b"{}"), 401, "BAD_SEQUENCER")
    await nothing_written(thin)


async def test_a_write_without_a_token_is_refused(thin: ThinApp) -> None:
    for resource in ("rows", "objects", "job"):
        path = f"/v1/resources/{resource}/k".encode()
        for method in ("PUT", "DELETE"):
            refused(await ask(thin, method, path, [], b"{}"), 428, "TOKEN_REQUIRED")
        refused(await ask(thin, "POST", path + b"/claim"), 428, "TOKEN_REQUIRED")
    refused(await ask(thin, "PATCH", b"/v1/resources/rows/k", [], b"{}"), 428, "TOKEN_REQUIRED")
    refused(await ask(thin, "POST", b"/v1/resources/rows/batch", [], b"{}"), 428, "TOKEN_REQUIRED")
    await nothing_written(thin)


async def test_two_different_tokens_are_refused_and_two_equal_ones_are_one(thin: ThinApp) -> None:
    path = b"/v1/resources/rows/k"
    refused(await ask(thin, "PUT", path, [*TOKEN, (b"fencing-token", b"35")], b"{}"), 400, "INVALID_TOKEN")
    await nothing_written(thin)
    assert (await ask(thin, "PUT", path, [*TOKEN, *TOKEN], b"{}")).status == 201


async def test_a_token_of_another_lock_is_refused(thin: ThinApp) -> None:
    for resource in ("rows", "objects", "job"):
        path = f"/v1/resources/{resource}/k".encode()
        headers = [*TOKEN, (b"fencing-lock", b"rows:other")]
        refused(await ask(thin, "PUT", path, headers, b"{}"), 403, "TOKEN_NOT_FOR_THIS_KEY")
        refused(await ask(thin, "GET", path, headers), 403, "TOKEN_NOT_FOR_THIS_KEY")
        refused(await ask(thin, "POST", path + b"/claim", headers), 403, "TOKEN_NOT_FOR_THIS_KEY")
    body = b'{"writes": [{"op": "put", "key": "k", "value": {}}]}'
    answer = await ask(thin, "POST", b"/v1/resources/rows/batch", headers, body)
    refused(answer, 403, "TOKEN_NOT_FOR_THIS_KEY")
    refused(await ask(thin, "PUT", path, [*TOKEN, (b"fencing-lock", b"\xff")], b"{}"), 422, "INVALID_FENCING_LOCK")
    await nothing_written(thin)
    both = [*TOKEN, (b"fencing-lock", b"rows:k"), (b"fencing-lock", b"rows:other")]
    refused(await ask(thin, "PUT", b"/v1/resources/rows/k", both, b"{}"), 403, "TOKEN_NOT_FOR_THIS_KEY")
    right = [*TOKEN, (b"fencing-lock", b"rows:k")]
    assert (await ask(thin, "PUT", b"/v1/resources/rows/k", right, b"{}")).status == 201


async def test_a_token_that_a_proxy_would_strip_is_refused(thin: ThinApp) -> None:
    headers = [*TOKEN, (b"connection", b"close, Fencing-Token")]
    refused(await ask(thin, "PUT", b"/v1/resources/rows/k", headers, b"{}"), 400, "INVALID_TOKEN")


async def test_where_we_are_the_issuer_a_token_far_beyond_now_is_refused(thin: ThinApp) -> None:
    path = b"/v1/resources/issued/k"
    soon, far = SYSTEM.now_us() + 3_600_000_000, SYSTEM.now_us() + 2 * 86_400_000_000
    for token in (far, 2**63 - 1):
        answer = await ask(thin, "PUT", path, [(b"fencing-token", b"%d" % token)], b"{}")
        refused(answer, 403, "TOKEN_NOT_FOR_THIS_KEY")
        answer = await ask(thin, "POST", path + b"/claim", [(b"fencing-token", b"%d" % token)])
        refused(answer, 403, "TOKEN_NOT_FOR_THIS_KEY")
    assert (await ask(thin, "PUT", path, [(b"fencing-token", b"%d" % soon)], b"{}")).status == 201


# --- keys and paths --------------------------------------------------------------------------------------------------

NO_KEYS = [
    b"", b".", b"..", b"../x", b"%2e%2e%2fx", b"%2e%2e/x", b"a/../b", b"a/./b", b"/a", b"a/", b"a//b", b"a%2F", b"%2Fa",
    b"a%2F%2Fb", b"a%00b", b"a%0d%0ab", b"a%7f", b"%ff", b"a%C3", b"%ED%A0%80", b"%", b"%4", b"%zz", b"a%E2%80%A8b",
    b"k" * 1025, b"k" * 2**20, b"%41" * 1025, b"a/" * 600 + b"b", b"%C2%85",
]  # fmt: skip


@pytest.mark.parametrize("key", NO_KEYS, ids=lambda key: key[:20].decode("latin-1"))
async def test_a_key_that_could_climb_or_hide_is_refused(thin: ThinApp, key: bytes) -> None:
    for resource in (b"rows", b"objects", b"job"):
        path = b"/v1/resources/" + resource + b"/" + key
        for method in ("GET", "PUT", "DELETE"):
            refused(await ask(thin, method, path, TOKEN, b"{}"), 422, "INVALID_KEY", "key")
        refused(await ask(thin, "POST", path + b"/claim", TOKEN), 422, "INVALID_KEY", "key")
        refused(await ask(thin, "GET", b"/v1/fences/" + resource + b"/" + key), 422, "INVALID_KEY", "key")


async def test_hostile_but_legal_keys_are_distinct(thin: ThinApp) -> None:
    keys = [
        NFC, NFD, b"%25", b"_", b"*", b"{tag}", b"a%20", b"a", b"A", b"'%22;--", b"a/b", b"claim", b"batch", b"a:b",
        b"x" * 900,
    ]  # fmt: skip
    for resource in (b"rows", b"objects"):
        for number, key in enumerate(keys):
            body = b'{"n": %d}' % number
            answer = await ask(thin, "PUT", b"/v1/resources/" + resource + b"/" + key, TOKEN, body)
            assert answer.status == 201, (key, answer)
        for number, key in enumerate(keys):
            answer = await ask(thin, "GET", b"/v1/resources/" + resource + b"/" + key)
            assert answer.json == {"n": number}


async def test_an_escaped_slash_names_the_same_key_as_a_plain_one(thin: ThinApp) -> None:
    for resource in (b"rows", b"objects"):
        base = b"/v1/resources/" + resource
        assert (await ask(thin, "PUT", base + b"/a/b", TOKEN, b'{"n": 1}')).status == 201
        assert (await ask(thin, "GET", base + b"/a%2Fb")).json == {"n": 1}


async def test_an_unknown_resource_is_named(thin: ThinApp) -> None:
    for path in (b"/v1/resources/nope/k", b"/v1/resources/nope", b"/v1/fences/nope/k", b"/v1/resources/nope/k/claim"):
        for method in ("GET", "PUT", "POST"):
            answer = await ask(thin, method, path, TOKEN, b"{}")
            refused(answer, 404, "NOT_FOUND")
            assert answer.json["resource"] == "nope"
    refused(await ask(thin, "GET", b"/v1/resources//k"), 422, "INVALID_RESOURCE", "resource")
    refused(await ask(thin, "GET", b"/v1/resources/%ff/k"), 422, "INVALID_RESOURCE", "resource")
    refused(await ask(thin, "GET", b"/v1/resources/" + b"r" * 1000), 422, "INVALID_RESOURCE", "resource")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", b"/v1/resources/rows/k", b"GET, HEAD, PUT, PATCH, DELETE"),
        ("OPTIONS", b"/v1/resources/rows/k", b"GET, HEAD, PUT, PATCH, DELETE"),
        ("POST", b"/v1/resources/rows/k/cl%61im", b"GET, HEAD, PUT, PATCH, DELETE"),
        ("PATCH", b"/v1/resources/objects/k", b"GET, HEAD, PUT, DELETE"),
        ("POST", b"/v1/resources/objects/batch", b"GET, HEAD, PUT, DELETE"),
        ("TRACE", b"/v1/resources/objects/k", b"GET, HEAD, PUT, DELETE"),
        ("PUT", b"/v1/fences/rows/k", b"GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_what_is_allowed(thin: ThinApp, method: str, path: bytes, allow: bytes) -> None:
    answer = await ask(thin, method, path, TOKEN, b"{}")
    refused(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers[b"allow"] == allow


async def test_a_call_that_needs_a_key_says_so(thin: ThinApp) -> None:
    for method, path in [
        ("POST", b"/v1/resources/rows/claim"),
        ("POST", b"/v1/resources/objects/claim"),
        ("GET", b"/v1/resources/rows"),
        ("PUT", b"/v1/resources/rows"),
        ("DELETE", b"/v1/resources/objects"),
        ("GET", b"/v1/fences/rows"),
    ]:
        refused(await ask(thin, method, path, TOKEN, b"{}"), 400, "INVALID_KEY", "key")


@pytest.mark.parametrize(
    "key", [b"acme", b"acme/7/8", b"acme/", b"/7", b"acme/x", b"acme/07", b"acme/+7", b"acme/7.0", b"acme/%207"]
)
async def test_a_key_that_does_not_fit_the_key_columns_is_refused(thin: ThinApp, key: bytes) -> None:
    """`07` and `7` would be one row under two names: where the name makes the lock, that goes round the fence."""
    assert (await ask(thin, "PUT", b"/v1/resources/accounts/acme/7", TOKEN, b'{"balance": 1}')).status == 201
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        answer = await ask(thin, method, b"/v1/resources/accounts/" + key, TOKEN, b'{"balance": 2}')
        assert answer.status in (404, 422), (key, method, answer)
    assert (await ask(thin, "GET", b"/v1/resources/accounts/acme/7")).json["balance"] in (1, "1")


# --- bodies of rows --------------------------------------------------------------------------------------------------

NO_ROWS = [
    b"", b"x", b"[]", b"1", b'"x"', b"null", b"{", b'{"a": 1} x', b'{"a": 1, "a": 2}', b'{"a": {"b": 1, "b": 2}}',
    b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1e999}', b'{"a": ' + b"9" * 5000 + b"}", b'{"a": 18446744073709551616}',
    b'{"a": "\\ud800"}', b'{"\\ud800": 1}', b'{"\\ud800": 1, "\\ud800": 2}', b"\xff\xfe", b'{"a": "\xff"}',
    b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}", b"[" * 100_000, b'{"a":' * 100_000, b"\xef\xbb\xbf{}",
]  # fmt: skip


@pytest.mark.parametrize("body", NO_ROWS, ids=lambda body: body[:20].decode("latin-1"))
async def test_a_body_that_is_no_json_object_is_refused(thin: ThinApp, body: bytes) -> None:
    for method in ("PUT", "PATCH"):
        answer = await ask(thin, method, b"/v1/resources/rows/k", TOKEN, body)
        assert answer.status == 422, answer
        assert answer.json["error"].startswith("INVALID_")
        assert answer.json["field"]
    await nothing_written(thin, "rows")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(row=st.dictionaries(st.text(), JSON_VALUES, max_size=5))
@example(row={"": 2**63})
@hypothesis.settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_row_is_read_back_as_it_was_written_or_refused(thin: ThinApp, row: dict[str, Any]) -> None:
    path = b"/v1/resources/rows/k"
    answer = await ask(thin, "PUT", path, TOKEN, json.dumps(row).encode())
    if answer.status == 422:
        assert answer.json["field"]
    else:
        assert answer.status in (201, 204), answer
        assert (await ask(thin, "GET", path)).json == row


@given(path=st.binary(max_size=40), headers=st.dictionaries(NAMES, st.binary(max_size=30)), body=st.binary())
@hypothesis.settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_comes_is_answered_but_never_by_500(
    thin: ThinApp, path: bytes, headers: dict[bytes, bytes], body: bytes
) -> None:
    for resource in (b"rows", b"objects", b"job", b"accounts"):
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "POST"):
            whole = b"/v1/resources/" + resource + b"/" + path
            answer = await ask(thin, method, whole, [*TOKEN, *headers.items()], body)
            assert 200 <= answer.status < 500, answer


async def test_many_names_with_one_twice_are_refused_quickly(thin: ThinApp) -> None:
    names = ",".join(f'"{number}": 0' for number in range(80_000))
    async with asyncio.timeout(5):
        answer = await ask(thin, "PUT", b"/v1/resources/rows/k", TOKEN, f'{{{names}, "last": 1, "last": 2}}'.encode())
    refused(answer, 422, "INVALID_LAST", "last")


async def test_a_body_over_the_limit_is_refused(thin: ThinApp) -> None:
    big = b'{"a": "' + b"x" * 2**20 + b'"}'
    for headers in (TOKEN, [*TOKEN, (b"content-length", b"%d" % len(big))]):
        refused(await ask(thin, "PUT", b"/v1/resources/rows/k", headers, big), 413, "TOO_LARGE")
        refused(await ask(thin, "PUT", b"/v1/resources/objects/k", headers, big), 413, "TOO_LARGE")
    await nothing_written(thin)


async def test_a_body_over_the_limit_is_told_the_limit_whether_it_said_its_length_or_not(thin: ThinApp) -> None:
    big = b'{"a": "' + b"x" * 2**20 + b'"}'
    lengths = [(b"content-length", b"%d" % len(big)), (b"transfer-encoding", b"chunked")]
    for path in (b"/v1/resources/rows/k", b"/v1/resources/objects/k"):
        said, unsaid = [await ask(thin, "PUT", path, [*TOKEN, length], big[:9], big[9:]) for length in lengths]
        for answer in (said, unsaid):
            refused(answer, 413, "TOO_LARGE")
            assert str(answer.json["maxBytes"]) in answer.json["detail"]
        assert f"max_bytes, {unsaid.json['maxBytes']}" in said.json["detail"]


async def test_a_body_of_another_length_than_declared_is_refused(thin: ThinApp) -> None:
    for resource in (b"rows", b"objects"):
        path = b"/v1/resources/" + resource + b"/k"
        for length in (b"1", b"3", b"-2", b"+2", b"x", b"", b"9" * 30):
            answer = await ask(thin, "PUT", path, [*TOKEN, (b"content-length", length)], b"{}")
            refused(answer, 422, "INVALID_CONTENT_LENGTH", "Content-Length")
        coded = [*TOKEN, (b"transfer-encoding", b"gzip, chunked")]
        refused(await ask(thin, "PUT", path, coded, b"{}"), 422, "INVALID_TRANSFER_ENCODING", "Transfer-Encoding")
        two = [*TOKEN, (b"content-length", b"2"), (b"content-length", b"3")]
        refused(await ask(thin, "PUT", path, two, b"{}"), 422, "INVALID_CONTENT_LENGTH", "Content-Length")
    await nothing_written(thin)


async def test_a_body_that_was_cut_is_never_written(thin: ThinApp) -> None:
    for resource in (b"rows", b"objects"):
        for parts in ((b"{}",), (b'{"a": 1}', b""), ()):
            answer = await ask(thin, "PUT", b"/v1/resources/" + resource + b"/k", TOKEN, *parts, dropped=True)
            assert answer.status == 0
    refused(await ask(thin, "GET", b"/v1/resources/rows/k"), 404, "NOT_FOUND")
    refused(await ask(thin, "GET", b"/v1/resources/objects/k"), 404, "NOT_FOUND")


async def test_an_unknown_column_or_a_wrong_type_is_named(thin: ThinApp) -> None:
    path = b"/v1/resources/accounts/acme/7"
    for body, field in [
        (b'{"nope": 1}', "nope"),
        (b'{"balance": "x"}', "balance"),
        (b'{"balance": null}', "balance"),
        (b'{"balance": {}}', "balance"),
        (b'{"balance": [1]}', "balance"),
        (b'{"balance": 1.5}', "balance"),
        (b'{"note": 5}', "note"),
        (b'{"tenant": "other", "balance": 1}', "tenant"),
        (b'{"id": 8, "balance": 1}', "id"),
        (b'{"balance\\" = 1; --": 1}', 'balance" = 1; --'),
        (b'{"%s": 1}' % (b"n" * 5000), "n" * 128),
    ]:
        answer = await ask(thin, "PUT", path, TOKEN, body)
        assert (answer.status, answer.json.get("field")) == (422, field), (body, answer)
    refused(await ask(thin, "GET", path), 404, "NOT_FOUND")


# --- batches ---------------------------------------------------------------------------------------------------------

PUT_K = {"op": "put", "key": "k", "value": {}}
NO_BATCHES: list[Any] = [
    {}, {"writes": None}, {"writes": {}}, {"writes": []}, {"writes": [PUT_K] * 1001}, {"writes": [PUT_K, None]},
    {"writes": [PUT_K, []]}, {"writes": [PUT_K, {}]}, {"writes": [PUT_K, {**PUT_K, "op": "PUT"}]},
    {"writes": [PUT_K, {**PUT_K, "op": None}]}, {"writes": [PUT_K, {**PUT_K, "op": []}]},
    {"writes": [PUT_K, {**PUT_K, "key": ""}]}, {"writes": [PUT_K, {**PUT_K, "key": 5}]},
    {"writes": [PUT_K, {**PUT_K, "key": []}]}, {"writes": [PUT_K, {**PUT_K, "key": [1]}]},
    {"writes": [PUT_K, {**PUT_K, "key": "../k"}]}, {"writes": [PUT_K, {**PUT_K, "key": "a\u0000"}]},
    {"writes": [PUT_K, {**PUT_K, "key": "k" * 2000}]}, {"writes": [PUT_K, {**PUT_K, "value": 1}]},
    {"writes": [PUT_K, {"op": "put", "key": "k"}]}, {"writes": [PUT_K, {"op": "patch", "key": "k", "value": None}]},
    {"writes": [PUT_K, {"op": "delete", "key": "k", "value": {}}]}, {"writes": [PUT_K, {**PUT_K, "extra": 1}]},
]  # fmt: skip


@pytest.mark.parametrize("body", NO_BATCHES, ids=lambda body: json.dumps(body)[-60:])
async def test_a_bad_batch_is_refused_and_the_write_named(thin: ThinApp, body: Any) -> None:
    for resource in (b"rows", b"job"):
        answer = await ask(thin, "POST", b"/v1/resources/" + resource + b"/batch", TOKEN, json.dumps(body).encode())
        refused(answer, 422, "INVALID_WRITES", "writes")
        if isinstance(body.get("writes"), list) and len(body["writes"]) == 2:
            assert "write 1" in answer.json["detail"]
    await nothing_written(thin)


async def test_a_batch_over_two_locks_or_with_conditions_is_refused(thin: ThinApp) -> None:
    path = b"/v1/resources/rows/batch"
    two = json.dumps({"writes": [PUT_K, {**PUT_K, "key": "other"}]}).encode()
    refused(await ask(thin, "POST", path, TOKEN, two), 422, "INVALID_WRITES", "writes")
    one = json.dumps({"writes": [PUT_K]}).encode()
    refused(await ask(thin, "POST", path, [*TOKEN, (b"if-match", b'"x"')], one), 422, "INVALID_IF_MATCH", "If-Match")
    refused(await ask(thin, "POST", path, TOKEN, b'{"writes": [], "extra": 1}'), 422, "INVALID_EXTRA", "extra")
    await nothing_written(thin)


# --- headers of conditions, ranges and objects -----------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"abc", b'"a" "b"', b'"', b'*, "a"', b'"*"', b"W/abc", b'"a\xff"', b'"a\x01"'])
async def test_a_broken_condition_is_refused(thin: ThinApp, text: bytes) -> None:
    for resource in (b"rows", b"objects"):
        for name, error in ((b"if-match", "INVALID_IF_MATCH"), (b"if-none-match", "INVALID_IF_NONE_MATCH")):
            for method in ("PUT", "DELETE"):
                answer = await ask(thin, method, b"/v1/resources/" + resource + b"/k", [*TOKEN, (name, text)], b"{}")
                refused(answer, 422, error)
    await nothing_written(thin)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        (b"content-type", b"text/\xff", "INVALID_CONTENT_TYPE"),
        (b"content-type", b"a\x01", "INVALID_CONTENT_TYPE"),
        (b"content-type", b"x" * 300, "INVALID_CONTENT_TYPE"),
        (b"content-range", b"bytes 0-1/2", "INVALID_CONTENT_RANGE"),
        (b"content-encoding", b"gzip", "INVALID_CONTENT_ENCODING"),
        (b"content-encoding", b"identity, br", "INVALID_CONTENT_ENCODING"),
        (b"x-meta-", b"x", "INVALID_X_META"),
        (b"x-meta-" + b"a" * 65, b"x", "INVALID_X_META"),
        (b"x-meta-a", b"\xc3\xa9", "INVALID_X_META_A"),
        (b"x-meta-a", b"x\r\nevil: 1", "INVALID_X_META_A"),
        (b"x-meta-a", b"x" * 9000, "INVALID_X_META"),
    ],
)
async def test_a_header_that_cannot_be_kept_is_refused(thin: ThinApp, name: bytes, value: bytes, error: str) -> None:
    answer = await ask(thin, "PUT", b"/v1/resources/objects/k", [*TOKEN, (name, value)], b"x")
    refused(answer, 422, error)
    await nothing_written(thin, "objects")


async def test_an_encoding_that_is_none_is_taken(thin: ThinApp) -> None:
    for text in (b"", b"identity", b"Identity"):
        headers = [*TOKEN, (b"content-encoding", text)]
        assert (await ask(thin, "PUT", b"/v1/resources/objects/k", headers, b"x")).status in (201, 204)


async def test_too_many_or_repeated_metadata_is_refused(thin: ThinApp) -> None:
    many = [(b"x-meta-%d" % number, b"x") for number in range(33)]
    for headers in (many, [(b"x-meta-a", b"1"), (b"x-meta-a", b"1")], [(b"content-type", b"a/b")] * 2):
        assert (await ask(thin, "PUT", b"/v1/resources/objects/k", [*TOKEN, *headers], b"x")).status == 422
    await nothing_written(thin, "objects")


@pytest.mark.parametrize(
    "text", [b"bytes=", b"bytes=-", b"bytes=x-", b"bytes=5-2", b"bytes=1e3-", b"bytes=-" + b"9" * 5000]
)
async def test_a_broken_range_is_refused(thin: ThinApp, text: bytes) -> None:
    assert (await ask(thin, "PUT", b"/v1/resources/objects/k", TOKEN, b"0123456789")).status == 201
    answer = await ask(thin, "GET", b"/v1/resources/objects/k", [(b"range", text)])
    refused(answer, 422, "INVALID_RANGE", "Range")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (b"limit=0", "limit"),
        (b"limit=-1", "limit"),
        (b"limit=1001", "limit"),
        (b"limit=x", "limit"),
        (b"limit=", "limit"),
        (b"limit=%d" % 10**30, "limit"),
        (b"limit=1&limit=2", "limit"),
        (b"prefix=%00", "prefix"),
        (b"prefix=%ff", "prefix"),
        (b"prefix=" + b"p" * 2000, "prefix"),
        (b"cursor=a%0ab", "cursor"),
        (b"cursor=" + b"c" * 2000, "cursor"),
        (b"nope=1", "nope"),
    ],
)
async def test_a_bad_parameter_of_a_listing_is_named(thin: ThinApp, query: bytes, field: str) -> None:
    refused(await ask(thin, "GET", b"/v1/resources/objects?" + query), 422, f"INVALID_{field.upper()}", field)


@pytest.mark.parametrize("prefix", [b"..", b"../", b"/", b"//etc", b"a/../", b"%2e%2e%2f", b"*", b"%25", b"a//"])
async def test_a_prefix_never_climbs_out_of_the_folder(thin: ThinApp, prefix: bytes) -> None:
    assert (await ask(thin, "PUT", b"/v1/resources/objects/a/b", TOKEN, b"x")).status == 201
    answer = await ask(thin, "GET", b"/v1/resources/objects?prefix=" + prefix)
    assert (answer.status, answer.json["objects"]) == (200, [])


# --- settings --------------------------------------------------------------------------------------------------------

UNSAFE: list[dict[str, Any]] = [
    {}, {"url": "s3:///prefix"}, {"url": ""}, {"url": "/tmp/x"}, {"url": "sqlite://"},
    {"url": "sqlite:///:memory:"}, {"url": "file://host/x"}, {"url": "file:x"}, {"url": "file:///x", "table": "t"},
    {"url": "file:///x", "key": ["id"]}, {"url": "file:///x", "layout": "pointer"}, {"url": "file:///x", "layout": "?"},
    {"url": "file:///x", "guard": "job:{tenant}"}, {"url": "file:///x", "guard": "job:{key"},
    {"url": "file:///x", "mode": "off"}, {"url": "file:///x", "max_bytes": 0}, {"url": "file:///x", "max_bytes": "1"},
    {"url": "file:///x", "issuer": "yes"}, {"url": "file:///x", "nope": 1}, {"url": "sqlite:///x.db", "table": "t"},
    {"url": "sqlite:///x.db", "key": "id"}, {"url": "sqlite:///x.db", "layout": "framed"},
    {"url": "postgres://user:hunter2@db/x"},
]  # fmt: skip


@pytest.mark.parametrize("table", UNSAFE, ids=str)
def test_unsafe_settings_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(UnsafeConfiguration, match=r"^resource 'r': ") as refusal:
        Gateway({"r": ResourceSettings.of("r", table)}, SYSTEM)
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "é", "x" * 65])
def test_a_resource_must_have_a_plain_name(name: str) -> None:
    with pytest.raises(UnsafeConfiguration):
        ResourceSettings.of(name, {"url": "file:///x"})
