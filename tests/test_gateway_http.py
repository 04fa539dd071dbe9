"""The gateway over HTTP: what CONTRACT promises of protected resources, in one process."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import UnsafeConfiguration
from fencegate.gateway import Gateway
from tests.gateway_server import app, make_tables, settings


class Client:
    """Calls about one resource, by token."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def __call__(
        self, method: str, path: str, token: int | str | None = None, body: Any = None, **headers: str
    ) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Fencing-Token"] = str(token)
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        url = f"http://gateway{path}" if path.startswith("/") else path
        return await self.http.request(method, url, headers=sent, content=content)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    make_tables(tmp_path)
    gateway = Gateway(settings(tmp_path), SYSTEM)
    await gateway.open()
    yield gateway
    await gateway.close()


@pytest.fixture
async def ask(gateway: Gateway) -> AsyncIterator[Client]:
    transport = httpx.ASGITransport(app(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway/v1/resources/") as http:
        yield Client(http)


def stale(answer: httpx.Response, token: int, highest: int, **members: str) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["error"]) == (412, "STALE_TOKEN"), answer.text
    assert (problem["token"], problem["highestToken"]) == (str(token), str(highest))
    assert answer.headers["Fencing-Token-Highest"] == str(highest)
    for name, value in members.items():
        assert problem[name] == value


def refused(answer: httpx.Response, status: int, error: str) -> None:
    assert (answer.status_code, answer.json()["error"]) == (status, error), answer.text


# --- the fence -------------------------------------------------------------------------------------------------------

RESOURCES = ["rows", "objects", "job", "jobs"]


@pytest.mark.parametrize("resource", RESOURCES)
async def test_a_lower_token_is_refused_and_writes_nothing(ask: Client, resource: str) -> None:
    lock_key = "job:rebuild" if resource.startswith("job") else f"{resource}:k"
    assert (await ask("PUT", f"{resource}/k", 34, {"by": "B"})).status_code == 201
    for method in ("PUT", "DELETE", "GET", "HEAD"):
        answer = await ask(method, f"{resource}/k", 33, {"by": "A"} if method == "PUT" else None)
        assert answer.status_code == 412
        assert answer.headers["Fencing-Token-Highest"] == "34"
        if method != "HEAD":
            stale(answer, 33, 34, resource=resource, key="k", lockKey=lock_key)
    stale(await ask("POST", f"{resource}/k/claim", 33), 33, 34)
    assert (await ask("GET", f"{resource}/k")).json() == {"by": "B"}
    assert (await ask("PUT", f"{resource}/k", 34, {"by": "B2"})).status_code == 204
    assert (await ask("GET", f"{resource}/k")).json() == {"by": "B2"}


@pytest.mark.parametrize("resource", RESOURCES)
async def test_a_claim_or_a_fenced_read_closes_the_first_write_hole(ask: Client, resource: str) -> None:
    assert (await ask("PUT", f"{resource}/k", 34, {})).status_code == 201
    assert (await ask("GET", f"{resource}/k")).headers["Fencing-Token-Highest"] == "34"
    claimed = await ask("POST", f"{resource}/k/claim", 35)
    assert (claimed.status_code, claimed.json()["highestToken"]) == (200, "35")
    stale(await ask("PUT", f"{resource}/k", 34, {}), 34, 35)
    assert (await ask("GET", f"{resource}/k", 36)).headers["Fencing-Token-Highest"] == "36"
    stale(await ask("PUT", f"{resource}/k", 35, {}), 35, 36)
    assert (await ask("HEAD", f"{resource}/k", 37)).headers["Fencing-Token-Highest"] == "37"
    stale(await ask("DELETE", f"{resource}/k", 36), 36, 37)


@pytest.mark.parametrize("resource", RESOURCES)
async def test_a_delete_keeps_the_mark(ask: Client, resource: str) -> None:
    await ask("PUT", f"{resource}/k", 34, {})
    assert (await ask("DELETE", f"{resource}/k", 35)).status_code == 204
    refused(await ask("GET", f"{resource}/k"), 404, "NOT_FOUND")
    stale(await ask("PUT", f"{resource}/k", 34, {}, If_None_Match="*"), 34, 35)
    refused(await ask("DELETE", f"{resource}/k", 35), 404, "NOT_FOUND")
    assert (await ask("PUT", f"{resource}/k", 35, {})).status_code == 201


@pytest.mark.parametrize("resource", RESOURCES)
async def test_tokens_beyond_what_a_double_holds_are_told_apart(ask: Client, resource: str) -> None:
    assert (await ask("PUT", f"{resource}/k", 2**63 - 1, {})).status_code == 201
    stale(await ask("PUT", f"{resource}/k", 2**63 - 2, {}), 2**63 - 2, 2**63 - 1)


@pytest.mark.parametrize("resource", ["job", "jobs"])
async def test_one_job_lock_over_many_keys_is_one_fence(ask: Client, resource: str) -> None:
    for number in range(4):
        assert (await ask("PUT", f"{resource}/{number}", 35, {"by": "B"})).status_code == 201
    for number in range(6):
        stale(await ask("PUT", f"{resource}/{number}", 34, {"by": "A"}), 34, 35, lockKey="job:rebuild")
    assert (await ask("POST", f"{resource}/claim", 36)).json()["lockKey"] == "job:rebuild"
    stale(await ask("PUT", f"{resource}/9", 35, {}), 35, 36)
    stale(await ask("POST", f"{resource}/claim", 35), 35, 36)
    assert (await ask("PUT", f"{resource}/9", 36, {}, Fencing_Lock="job:rebuild")).status_code == 201


@pytest.mark.parametrize("resource", ["rows", "objects"])
async def test_stale_is_told_before_anything_else_that_is_wrong(ask: Client, resource: str) -> None:
    await ask("PUT", f"{resource}/k", 35, {})
    stale(await ask("PUT", f"{resource}/k", 34, {}, If_Match='"other"'), 34, 35)
    stale(await ask("PUT", f"{resource}/k", 34, {}, If_None_Match="*"), 34, 35)
    stale(await ask("PUT", f"{resource}/k", 34, {}, If_Match="broken"), 34, 35)
    stale(await ask("PUT", f"{resource}/k", 34, b"x" * 2_000_000), 34, 35)
    stale(await ask("POST", f"{resource}/k/claim", 34), 34, 35)
    if resource == "rows":
        stale(await ask("PUT", "rows/k", 34, b"no json"), 34, 35)


@pytest.mark.parametrize("resource", ["rows", "objects"])
async def test_every_answer_about_a_key_carries_the_mark(ask: Client, resource: str) -> None:
    assert (await ask("GET", f"{resource}/k")).headers["Fencing-Token-Highest"] == "0"
    await ask("POST", f"{resource}/k/claim", 35)
    await ask("PUT", f"{resource}/k", 35, {})
    for answer in [
        await ask("GET", f"{resource}/k"),
        await ask("HEAD", f"{resource}/k"),
        await ask("PUT", f"{resource}/k", 35, {}),
        await ask("PUT", f"{resource}/k", None, {}),
        await ask("PUT", f"{resource}/k", 0, {}),
        await ask("PUT", f"{resource}/k", 35, {}, If_None_Match="*"),
        await ask("PUT", f"{resource}/k", 35, {}, Fencing_Lock="other"),
        await ask("PUT", f"{resource}/k", 35, b"x" * 2_000_000),
        await ask("GET", f"{resource}/k", If_None_Match="*"),
        await ask("POST", f"{resource}/k"),
        await ask("GET", f"/v1/fences/{resource}/k"),
        await ask("DELETE", f"{resource}/k", 35),
        await ask("DELETE", f"{resource}/k", 35),
        await ask("GET", f"{resource}/k"),
    ]:
        assert answer.headers["Fencing-Token-Highest"] == "35", (answer.request, answer)


async def test_a_fence_tells_what_it_promises(ask: Client) -> None:
    answer = await ask("GET", "/v1/fences/rows/a/b")
    found = answer.json()
    durability = found.pop("durability")
    assert len(durability) > 20
    assert found == {
        "resource": "rows", "key": "a/b", "lockKey": "rows:a/b", "highestToken": None, "guarantee": "atomic",
        "mode": "enforce", "shadowRefusals": 0,
    }  # fmt: skip
    await ask("POST", "rows/a/b/claim", 2**63 - 1)
    assert (await ask("GET", "/v1/fences/rows/a/b")).json()["highestToken"] == str(2**63 - 1)
    assert (await ask("GET", "/v1/fences/job")).json()["lockKey"] == "job:rebuild"


async def test_shadow_mode_counts_and_refuses_nothing(ask: Client) -> None:
    await ask("PUT", "shadow/k", 35, {"by": "B"})
    answer = await ask("PUT", "shadow/k", 34, {"by": "A"})
    assert (answer.status_code, answer.headers["Fencing-Shadow"]) == (204, "would-refuse")
    assert answer.headers["Fencing-Token-Highest"] == "35"
    assert (await ask("GET", "shadow/k")).json() == {"by": "A"}
    assert "Fencing-Shadow" not in (await ask("PUT", "shadow/k", 35, {})).headers
    refused(await ask("PUT", "shadow/k", 34, b"no json"), 422, "INVALID_BODY")
    tokenless = await ask("PUT", "shadow/k", None, {"by": "nobody"})
    assert (tokenless.status_code, tokenless.headers["Fencing-Shadow"]) == (204, "would-refuse")
    assert (await ask("GET", "shadow/k")).json() == {"by": "nobody"}
    refused(await ask("POST", "shadow/k/claim"), 428, "TOKEN_REQUIRED")
    fence = (await ask("GET", "/v1/fences/shadow/k")).json()
    assert (fence["guarantee"], fence["mode"]) == ("best-effort", "shadow")
    assert fence["durability"].startswith("shadow mode refuses nothing")
    found = (await ask("GET", "/v1/fences/shadow/k")).json()
    assert (found["mode"], found["shadowRefusals"]) == ("shadow", 2)


@pytest.mark.parametrize(
    ("token", "lock"),
    [
        ("nonsense", {}),
        ("0", {}),
        ("1.5", {}),
        ("a.b.c", {}),
        ("36", {"Fencing_Lock": "another:lock"}),
    ],
)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("PUT", "shadow/k", {}), ("PATCH", "shadow/k", {}), ("POST", "shadow/k/claim", None), ("GET", "shadow/k", None)],
)
async def test_in_shadow_mode_a_token_that_is_worth_nothing_is_counted_and_refused_nowhere(
    ask: Client, token: str, lock: dict[str, str], method: str, path: str, body: dict[str, Any] | None
) -> None:
    """A guard that is not the one which its callers lock by is what shadow mode is there to find."""
    await ask("PUT", "shadow/k", 35, {"by": "B"})
    answer = await ask(method, path, token, body, **lock)
    assert answer.is_success
    assert answer.headers["Fencing-Shadow"] == "would-refuse"
    found = (await ask("GET", "/v1/fences/shadow/k")).json()
    assert (found["highestToken"], found["shadowRefusals"]) == ("35", 1)


# --- rows ------------------------------------------------------------------------------------------------------------


async def test_a_row_is_created_replaced_merged_and_removed(ask: Client) -> None:
    created = await ask(
        "PUT", "rows/k", 34, {"a": 1, "b": {"c": 2, "d": 3}}, Content_Type="application/x-www-form-urlencoded"
    )
    assert (created.status_code, created.content) == (201, b"")
    read = await ask("GET", "rows/k")
    assert (read.json(), read.headers["Content-Type"]) == ({"a": 1, "b": {"c": 2, "d": 3}}, "application/json")
    assert read.headers["ETag"] == created.headers["ETag"]
    merged = await ask("PATCH", "rows/k", 34, {"b": {"c": None}, "e": [1]}, Prefer="return=representation")
    assert (merged.status_code, merged.json()) == (200, {"a": 1, "b": {"d": 3}, "e": [1]})
    assert merged.headers["ETag"] != created.headers["ETag"]
    replaced = await ask("PUT", "rows/k", 34, {"z": 1})
    assert (replaced.status_code, replaced.content) == (204, b"")
    assert "Content-Length" not in replaced.headers
    assert (await ask("GET", "rows/k")).json() == {"z": 1}
    assert (await ask("DELETE", "rows/k", 34)).status_code == 204
    refused(await ask("PATCH", "rows/k", 34, {}), 404, "NOT_FOUND")


@pytest.mark.parametrize("resource", ["rows", "objects"])
async def test_conditions_are_judged_on_what_is_there(ask: Client, resource: str) -> None:
    refused(await ask("PUT", f"{resource}/k", 34, {}, If_Match="*"), 412, "PRECONDITION_FAILED")
    first = (await ask("PUT", f"{resource}/k", 34, {"n": 1}, If_None_Match="*")).headers["ETag"]
    refused(await ask("PUT", f"{resource}/k", 34, {}, If_None_Match="*"), 412, "PRECONDITION_FAILED")
    second = (await ask("PUT", f"{resource}/k", 34, {"n": 2}, If_Match=f'"x", {first}')).headers["ETag"]
    for method in ("PUT", "DELETE"):
        refused(await ask(method, f"{resource}/k", 34, {}, If_Match=first), 412, "PRECONDITION_FAILED")
        refused(await ask(method, f"{resource}/k", 34, {}, If_Match=f"W/{second}"), 412, "PRECONDITION_FAILED")
    for method in ("GET", "HEAD"):
        assert (await ask(method, f"{resource}/k", If_None_Match=f"W/{second}")).status_code == 304
        assert (await ask(method, f"{resource}/k", If_None_Match=first)).status_code == 200
        assert (await ask(method, f"{resource}/k", If_Match=second)).status_code == 200
        assert (await ask(method, f"{resource}/k", If_Match=first)).status_code == 412
    assert (await ask("GET", f"{resource}/k")).json() == {"n": 2}
    assert (await ask("DELETE", f"{resource}/k", 34, If_Match=second)).status_code == 204


async def test_a_batch_is_written_as_a_whole_or_not_at_all(ask: Client) -> None:
    writes: list[dict[str, Any]] = [{"op": "put", "key": str(number), "value": {"n": number}} for number in range(5)]
    done = await ask("POST", "job/batch", 34, {"writes": writes}, Prefer="return=representation")
    assert (done.status_code, done.json()["written"], done.json()["rows"][4]) == (200, 5, {"n": 4})
    mixed = [{"op": "patch", "key": ["1"], "value": {"m": 1}}, {"op": "delete", "key": "2"}]
    assert (await ask("POST", "job/batch", 34, {"writes": mixed})).json() == {"written": 2}
    assert (await ask("GET", "job/1")).json() == {"n": 1, "m": 1}
    failing = [{"op": "put", "key": "new", "value": {}}, {"op": "patch", "key": "2", "value": {}}]
    missing = await ask("POST", "job/batch", 35, {"writes": failing})
    refused(missing, 404, "NOT_FOUND")
    assert missing.json()["key"] == "2"
    refused(await ask("GET", "job/new"), 404, "NOT_FOUND")
    stale(await ask("POST", "job/batch", 34, {"writes": writes}), 34, 35, key="0", lockKey="job:rebuild")


async def test_composite_keys_are_segments_and_the_guard_takes_its_own(ask: Client) -> None:
    assert (await ask("PUT", "accounts/acme/7", 34, {"balance": 5, "note": "x"})).status_code == 201
    assert (await ask("PUT", "accounts/evil/7", 12, {"balance": 1})).status_code == 201
    row = (await ask("GET", "accounts/acme/7")).json()
    assert (row["tenant"], row["note"]) == ("acme", "x")
    stale(await ask("PUT", "accounts/acme/8", 33, {"balance": 5}), 33, 34, key="acme/8", lockKey="acct:acme")
    writes = [{"op": "put", "key": ["acme", str(number)], "value": {"balance": number}} for number in range(3)]
    assert (await ask("POST", "accounts/batch", 35, {"writes": writes})).json() == {"written": 3}
    other = [*writes, {"op": "put", "key": ["evil", "1"], "value": {}}]
    refused(await ask("POST", "accounts/batch", 36, {"writes": other}), 422, "INVALID_WRITES")
    refused(
        await ask("POST", "accounts/batch", 36, {"writes": [{**writes[0], "key": "acme/1"}]}), 422, "INVALID_WRITES"
    )


# --- objects ---------------------------------------------------------------------------------------------------------


async def test_an_object_keeps_its_bytes_type_and_metadata(ask: Client) -> None:
    data = bytes(range(256)) * 3000
    headers = {"Content_Type": "text/x-odd; v=1", "X_Meta_Author": "Ada", "X_Meta_Run": "7 of 9"}
    created = await ask("PUT", "objects/a/b.bin", 34, data, **headers)
    assert (created.status_code, created.content) == (201, b"")
    for method in ("GET", "HEAD"):
        read = await ask(method, "objects/a/b.bin")
        assert read.content == (data if method == "GET" else b"")
        assert read.headers["Content-Length"] == str(len(data))
        assert read.headers["Content-Type"] == "text/x-odd; v=1"
        assert (read.headers["X-Meta-Author"], read.headers["X-Meta-Run"]) == ("Ada", "7 of 9")
        assert read.headers["ETag"] == created.headers["ETag"]
        assert read.headers["Last-Modified"].endswith("GMT")
    again = await ask("PUT", "objects/a/b.bin", 34, data)
    assert again.headers["ETag"] != created.headers["ETag"]
    read = await ask("GET", "objects/a/b.bin")
    assert (read.headers["Content-Type"], "X-Meta-Author" in read.headers) == ("application/octet-stream", False)


@pytest.mark.parametrize(
    ("text", "status", "content", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=0-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=5-9223372036854775807", 206, b"56789", "bytes 5-9/10"),
        ("bytes=0-18446744073709551615", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=-18446744073709551615", 206, b"0123456789", "bytes 0-9/10"),
        ("Bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=18446744073709551615-", 416, None, "bytes */10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("lines=0-1", 200, b"0123456789", None),
    ],
)
async def test_a_range_gives_these_bytes(
    ask: Client, text: str, status: int, content: bytes | None, content_range: str | None
) -> None:
    etag = (await ask("PUT", "objects/k", 34, b"0123456789")).headers["ETag"]
    answer = await ask("GET", "objects/k", Range=text)
    assert (answer.status_code, answer.headers.get("Content-Range")) == (status, content_range)
    assert content is None or answer.content == content
    assert (await ask("GET", "objects/k", Range=text, If_Range=etag)).status_code == status
    assert (await ask("GET", "objects/k", Range=text, If_Range='"other"')).content == b"0123456789"
    await ask("PUT", "objects/empty", 34, b"")
    assert (await ask("GET", "objects/empty")).content == b""


PAST, FUTURE = "Tue, 17 Nov 2009 08:00:00 GMT", "Tue, 17 Nov 2099 08:00:00 GMT"


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_nothing_is_written_by_the_date_of_a_last_change(ask: Client, method: str) -> None:
    """It is not looked at inside the step that writes, and two changes within a second have the same."""
    etag = (await ask("PUT", "objects/k", 34, b"kept")).headers["ETag"]
    for date in (PAST, FUTURE):
        refused = await ask(method, "objects/k", 34, b"other", If_Unmodified_Since=date)
        assert (refused.status_code, refused.json()["error"]) == (422, "INVALID_IF_UNMODIFIED_SINCE")
        assert (await ask("GET", "objects/k")).content == b"kept"
        stale(await ask(method, "objects/k", 33, b"other", If_Unmodified_Since=date), 33, 34)
    answer = await ask(method, "objects/k", 34, b"other", If_Match=etag, If_Unmodified_Since=PAST)
    assert answer.status_code == 204  # who names the value means the value (RFC 9110)


async def test_a_read_is_refused_once_the_object_was_changed_since(ask: Client) -> None:
    etag = (await ask("PUT", "objects/k", 34, b"0123456789")).headers["ETag"]
    for method in ("GET", "HEAD"):
        assert (await ask(method, "objects/k", If_Unmodified_Since=PAST)).status_code == 412
        assert (await ask(method, "objects/k", If_Unmodified_Since=PAST, If_Match=etag)).status_code == 200
        for date in (FUTURE, "yesterday", "Tue, 99 Nov 2009 08:00:00 GMT", ""):
            assert (await ask(method, "objects/k", If_Unmodified_Since=date)).status_code == 200
    assert (await ask("GET", "objects/k", If_Unmodified_Since=PAST, Range="bytes=0-1")).status_code == 412
    last = (await ask("GET", "objects/k")).headers["Last-Modified"]
    assert (await ask("GET", "objects/k", If_Unmodified_Since=last, Range="bytes=0-1")).content == b"01"


async def test_a_fenced_range_claims_first(ask: Client) -> None:
    await ask("PUT", "objects/k", 34, b"0123456789")
    assert (await ask("GET", "objects/k", 36, Range="bytes=0-1")).headers["Fencing-Token-Highest"] == "36"
    stale(await ask("GET", "objects/k", 35, Range="bytes=0-1"), 35, 36)


async def test_objects_are_listed_page_by_page(ask: Client) -> None:
    names = sorted(f"{folder}/{number}" for folder in ("a", "b", "ä") for number in range(5))
    for name in names:
        await ask("PUT", f"objects/{name}", 34, b"xyz", Content_Type="text/plain")
    await ask("DELETE", "objects/a/3", 34)
    names.remove("a/3")
    found, cursor = [], ""
    for _ in range(20):
        page = (await ask.http.get("objects", params={"limit": 4, "cursor": cursor})).json()
        assert len(page["objects"]) <= 4
        found += page["objects"]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert [each["key"] for each in found] == names
    assert (found[0]["size"], found[0]["contentType"], found[0]["fencingToken"]) == (3, "text/plain", "34")
    page = (await ask.http.get("objects", params={"prefix": "ä/", "limit": 5})).json()
    assert ([each["key"] for each in page["objects"]], page["nextCursor"]) == (names[-5:], None)
    listed, head = await ask.http.get("objects?prefix=a/"), await ask.http.head("objects?prefix=a/")
    assert (head.status_code, head.headers["content-length"]) == (200, listed.headers["content-length"])


# --- waiting and stopping --------------------------------------------------------------------------------------------


async def test_a_write_that_the_resource_never_answers_is_reported_as_unknown(tmp_path: Path) -> None:
    make_tables(tmp_path)
    gateway = Gateway(settings(tmp_path), SYSTEM, within_s=0.3)
    await gateway.open()
    ask = Client(httpx.AsyncClient(transport=httpx.ASGITransport(app(gateway)), base_url="http://g/v1/resources/"))
    with closing(sqlite3.connect(tmp_path / "rows.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for method, path in (("PUT", "rows/k"), ("DELETE", "rows/k"), ("POST", "rows/k/claim"), ("GET", "rows/k")):
            answer = await ask(method, path, 34, {})
            refused(answer, 503, "RESOURCE_UNAVAILABLE")
            assert (answer.json()["outcome"], "Retry-After" in answer.headers) == ("unknown", True)
        refused(await ask("GET", "rows/k"), 404, "NOT_FOUND")
        other.execute("ROLLBACK")
    await gateway.close()


async def test_a_body_that_stops_arriving_is_refused_and_nothing_written(tmp_path: Path) -> None:
    make_tables(tmp_path)
    gateway = Gateway(settings(tmp_path), SYSTEM, within_s=0.3)
    await gateway.open()
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app(gateway)), base_url="http://g/v1/resources/")

    async def slowly(parts: int) -> AsyncIterator[bytes]:
        for _ in range(parts):
            yield b" "
            await asyncio.sleep(0.1)
        yield b"{}"

    async def stuck() -> AsyncIterator[bytes]:
        yield b"{}"
        await asyncio.sleep(5)

    for resource in ("rows", "objects"):
        refused(await http.put(f"{resource}/k", content=stuck(), headers={"Fencing-Token": "34"}), 422, "INVALID_BODY")
        refused(await http.get(f"{resource}/k"), 404, "NOT_FOUND")
    written = await http.put("objects/k", content=slowly(6), headers={"Fencing-Token": "34"})
    assert written.status_code == 201
    await gateway.close()


async def test_closing_finishes_what_is_under_way_and_refuses_what_comes(tmp_path: Path) -> None:
    make_tables(tmp_path)
    gateway = Gateway(settings(tmp_path), SYSTEM)
    await gateway.open()
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app(gateway)), base_url="http://g/v1/resources/")
    under_way, go_on = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"first "
        under_way.set()
        await go_on.wait()
        yield b"last"

    write = asyncio.create_task(http.put("objects/k", content=body(), headers={"Fencing-Token": "34"}))
    await under_way.wait()
    close = asyncio.create_task(gateway.close())
    await asyncio.sleep(0.05)
    refused(await http.get("objects/k"), 503, "SHUTTING_DOWN")
    assert not close.done()
    go_on.set()
    assert (await write).status_code == 201
    await close

    again = Gateway(settings(tmp_path), SYSTEM)
    await again.open()
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app(again)), base_url="http://g/v1/resources/")
    assert (await http.get("objects/k")).content == b"first last"
    await again.close()


async def test_a_write_that_is_cut_off_when_the_server_stops_is_reported_as_unknown(tmp_path: Path) -> None:
    """A server whose time to stop is up cancels what is under way: what was sent to the resource may come to be."""
    make_tables(tmp_path)
    gateway = Gateway(settings(tmp_path), SYSTEM)
    await gateway.open()
    ask = Client(httpx.AsyncClient(transport=httpx.ASGITransport(app(gateway)), base_url="http://g/v1/resources/"))
    with closing(sqlite3.connect(tmp_path / "rows.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        write = asyncio.create_task(ask("PUT", "rows/k", 34, {}))
        await asyncio.sleep(0.1)
        write.cancel()
        answer = await write
        refused(answer, 503, "RESOURCE_UNAVAILABLE")
        assert answer.json()["outcome"] == "unknown"
        other.execute("ROLLBACK")
    await gateway.close()


async def test_a_changed_mode_is_refused_at_open_and_all_is_let_go(tmp_path: Path) -> None:
    make_tables(tmp_path)
    first = Gateway(settings(tmp_path), SYSTEM)
    await first.open()
    await first.close()
    for name in ("rows", "objects"):
        found = settings(tmp_path)
        found[name] = msgspec.structs.replace(found[name], mode="shadow")
        changed = Gateway(found, SYSTEM)
        with pytest.raises(UnsafeConfiguration, match=name):
            await changed.open()
        await changed.close()
    again = Gateway(settings(tmp_path), SYSTEM)
    await again.open()
    await again.close()


def test_the_documentation_names_every_path_and_its_parameters(tmp_path: Path) -> None:
    make_tables(tmp_path)
    paths = json.loads(json.dumps(Gateway(settings(tmp_path), SYSTEM).openapi_paths()))
    assert len(paths) == 6
    for path, item in paths.items():
        named = {parameter["name"] for parameter in item["parameters"]}
        assert named == {piece[1:-1] for piece in path.split("/") if piece.startswith("{")}
        for method in item.keys() - {"parameters"}:
            assert item[method]["summary"]
            assert all(answer["description"] for answer in item[method]["responses"].values())
