"""Bad input of every field of every lock call: a clear 4xx that names the field, and nothing written."""

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.servers import Server

_BAD_TEXTS: list[Any] = ["", 7, True, "x" * 300, "a\x00b", "a\r\nb", ["x"], {"x": 1}, "\ud800"]
_BAD_TTLS: list[Any] = [0, -1, 999, 3_600_001, 10**18, 10**40, 1.5, "1000", "٣", True, [], {}]
_BAD_BOOLS: list[Any] = ["true", 1, 0, [], {}]

_BAD: dict[tuple[str, str], list[Any]] = {
    ("acquire", "ownerId"): _BAD_TEXTS,
    ("acquire", "requestId"): _BAD_TEXTS,
    ("acquire", "ttlMillis"): _BAD_TTLS,
    ("acquire", "waitMillis"): [-1, 60_001, "5", 1.5, True, []],
    ("acquire", "wait"): _BAD_BOOLS,
    ("acquire", "reentrant"): _BAD_BOOLS,
    ("acquire", "hierarchical"): _BAD_BOOLS,
    ("acquire", "mode"): ["Shared", "", 1, True, None, []],
    ("acquire", "priority"): ["1", 1.5, 10**9, None],
    ("acquire", "limit"): [0, -1, "1", 1.5],
    ("acquire", "sessionId"): ["", 1],
    ("acquire", "lockDelayMillis"): [-1, "1", 10**9],
    ("acquire", "maxHoldMillis"): [-1, "1", 10**12],
    ("acquire", "metadata"): ["x", 1, [], {"x": "y" * 5000}],
    ("acquire", "ttlMilis"): [5000],
    ("renew", "lockToken"): ["", 1, True, None, "x" * 300, []],
    ("renew", "ownerId"): ["", 1, "x" * 300],
    ("renew", "ttlMillis"): _BAD_TTLS,
    ("renew", "ttl"): [1],
    ("release", "lockToken"): ["", 1, True, None, "x" * 300, []],
    ("release", "ownerId"): ["", 1, "x" * 300],
    ("release", "force"): [True],
    ("force-release", "reason"): ["", 1, None, "x" * 501, "a\x00b"],
    ("force-release", "graceMillis"): [-1, "1", 1.5, 10**12],
    ("force-release", "x"): [1],
}
_CASES = [(verb, field, bad) for (verb, field), values in _BAD.items() for bad in values]


@pytest.fixture(scope="module")
def held(server: Server) -> Iterator[dict[str, Any]]:
    with httpx.Client(base_url=server.url, timeout=30) as http:
        found: dict[str, Any] = http.post("/v1/locks/input:held/acquire", json={"ttlMillis": 3_600_000}).json()
        yield found
        http.post("/v1/locks/input:held/release", json={"lockToken": found["lockToken"]})  # a worker may come back here


@pytest.mark.parametrize(("verb", "field", "bad"), _CASES)
def test_a_bad_field_is_named(http: httpx.Client, held: dict[str, Any], verb: str, field: str, bad: Any) -> None:
    body: dict[str, Any] = {"acquire": {}, "force-release": {"reason": "r"}}.get(verb, {"lockToken": held["lockToken"]})
    key = "input:never" if verb == "acquire" else "input:held"
    content = json.dumps({**body, field: bad})
    answer = http.post(f"/v1/locks/{key}/{verb}", content=content)
    assert answer.status_code in (400, 413, 422), (answer.status_code, answer.text)
    problem = answer.json()
    assert problem["error"].startswith("INVALID_"), problem
    assert field in problem["detail"] or field == problem.get("field"), problem
    assert http.get("/v1/locks/input:never").json()["error"] == "LOCK_FREE"
    now = http.get("/v1/locks/input:held").json()
    assert (now["fencingToken"], now["expiresAt"]) == (held["fencingToken"], held["expiresAt"])


@pytest.mark.parametrize("missing", ["renew", "release"])
def test_a_missing_lock_token_is_named(http: httpx.Client, missing: str) -> None:
    answer = http.post(f"/v1/locks/input:held/{missing}", json={})
    assert answer.json()["error"] == "INVALID_LOCK_TOKEN"


def test_a_missing_reason_is_named(http: httpx.Client) -> None:
    assert http.post("/v1/locks/input:held/force-release", json={}).json()["error"] == "INVALID_REASON"


@pytest.mark.parametrize(
    "content",
    [
        *(b"{", b"[]", b"7", b'"x"', b"null", b"\xff\xfe", b'{"ttlMillis": NaN}', b'{"ttlMillis": 1e999}'),
        *(b'{"wait": true, "wait": false}', b"[" * 50_000, b'{"a":' * 20_000, b'{"metadata": ' + b'{"a":' * 5000),
        b'{"ttlMillis": ' + b"9" * 6000 + b"}",
    ],
)
def test_a_bad_body_is_refused(http: httpx.Client, content: bytes) -> None:
    answer = http.post("/v1/locks/input:never/acquire", content=content)
    assert answer.status_code in (400, 413, 422), answer.text
    assert answer.json()["error"].startswith(("INVALID_", "TOO_LARGE"))


def test_a_body_over_the_limit_is_413(http: httpx.Client) -> None:
    answer = http.post("/v1/locks/input:never/acquire", content=b" " * 70_000)
    assert (answer.status_code, answer.json()["error"]) == (413, "TOO_LARGE")


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "%00",
        "a%0d%0ab",
        "%ff%fe",
        "..%2f..",
        "%2e%2e",
        "a/",
        "%2fa",
        "a//b",
        "a%2f%2e%2fb",
        "x" * 1025,
        "%E2%80%A8",
    ],
)
def test_a_bad_lock_key_is_named(http: httpx.Client, raw: str) -> None:
    answer = http.post(f"/v1/locks/{raw}/acquire", json={})
    assert answer.status_code in (400, 404, 422), answer.text
    assert answer.json()["error"] in ("INVALID_LOCK_KEY", "NOT_FOUND")


@pytest.mark.parametrize("key", [None, 7, "", "a\x00", "../x", "x" * 1025, ["a"]])
def test_a_bad_lock_key_in_the_body_is_named(http: httpx.Client, key: Any) -> None:
    answer = http.post("/v1/acquire", json={"lockKey": key})
    assert (answer.status_code, answer.json()["error"]) == (422, "INVALID_LOCK_KEY")
    assert http.post("/v1/acquire", json={}).json()["error"] == "INVALID_LOCK_KEY"


def test_keys_that_only_look_alike_are_different_locks(http: httpx.Client) -> None:
    names = ["in:%25", "in:_", "in:*", "in:%7Btag%7D", "in:%C3%A9", "in:e%CC%81", "in:A", "in:a", "in:a%20", "in:'"]
    tokens = [http.post(f"/v1/locks/{name}/acquire", json={}).status_code for name in names]
    assert tokens == [200] * len(names)


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=-1", "limit=x", "limit=1&limit=2", "limit=٣", "nope=1", "prefix=%ff", "limit="],
)
def test_a_bad_parameter_of_the_list_is_named(http: httpx.Client, query: str) -> None:
    answer = http.get(f"/v1/locks?{query}")
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] in query or answer.json()["field"] == "nope"


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("locks/input:never/acquire", {"hierarchical": True, "mode": "shared"}, "INVALID_HIERARCHICAL"),
        ("locks/input:never/acquire", {"hierarchical": True, "limit": 2}, "INVALID_HIERARCHICAL"),
        ("locks/" + "a/" * 16 + "b/acquire", {"hierarchical": True}, "INVALID_HIERARCHICAL"),
        ("locks/input:never/acquire", {"sessionId": "../x"}, "SESSION_NOT_FOUND"),
        ("locks/input:never/acquire", {"sessionId": "abc123"}, "SESSION_NOT_FOUND"),
        ("locks/input:never/force-release", {"reason": "r", "graceMillis": -1}, "INVALID_GRACE_MILLIS"),
        ("multi/acquire", {}, "INVALID_LOCKS"),
        ("multi/acquire", {"locks": []}, "INVALID_LOCKS"),
        ("multi/acquire", {"locks": [{"lockKey": f"k{n}"} for n in range(65)]}, "INVALID_LOCKS"),
        ("multi/acquire", {"locks": [{"lockKey": "k"}, {"lockKey": "k"}]}, "INVALID_LOCKS"),
        ("multi/acquire", {"locks": [{"lockKey": "k", "mode": "both"}]}, "INVALID_MODE"),
        ("multi/acquire", {"locks": [{"lockKey": "a\u0000"}]}, "INVALID_LOCK_KEY"),
        ("multi/acquire", {"locks": [{"lockKey": "k"}], "hierarchical": True}, "INVALID_HIERARCHICAL"),
        ("multi/renew", {"locks": [{"lockKey": "k"}]}, "INVALID_LOCK_TOKEN"),
        ("multi/release", {"locks": [{"lockKey": "k"}]}, "INVALID_LOCK_TOKEN"),
        ("sessions", {"ttlMillis": 1}, "INVALID_TTL_MILLIS"),
        ("sessions", {"ttl": 1000}, "INVALID_TTL"),
        ("sessions", {"ownerId": ""}, "INVALID_OWNER_ID"),
        ("sessions/%2e%2e/renew", {}, "SESSION_NOT_FOUND"),
        ("sessions/nobody/renew", {}, "SESSION_NOT_FOUND"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    http: httpx.Client, path: str, body: dict[str, Any], error: str
) -> None:
    answer = http.post(f"/v1/{path}", json=body)
    assert answer.json()["error"] == error
    assert answer.status_code == (404 if error == "SESSION_NOT_FOUND" else 422)


@pytest.mark.parametrize(("method", "path"), [("PUT", "/v1/locks/x"), ("DELETE", "/v1/locks"), ("GET", "/v1/acquire")])
def test_a_wrong_method_is_405_with_allow(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"]


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /v1/locks/x/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}}",
        b"POST /v1/locks/x/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/locks/x/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"NOT HTTP AT ALL\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(10_000)) + b"\r\n",
    ],
)
def test_malformed_http_is_refused_and_the_service_goes_on(server: Server, http: httpx.Client, raw: bytes) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        first = b""
        with contextlib.suppress(ConnectionError):  # it may hang up before it has read all
            connection.sendall(raw)
            first = connection.recv(4096)
    assert not first.startswith(b"HTTP/1.1 5"), first
    assert http.get("/v1/locks/x").json()["error"] == "LOCK_FREE"
    assert http.get("/readyz").status_code == 200
