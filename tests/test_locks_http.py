"""The lock calls of CONTRACT against a real server process."""

import asyncio
import json
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.servers import Server

_names = iter(range(10**9))


@pytest.fixture
def key() -> str:
    return f"test:{next(_names)}"


def acquire(http: httpx.Client, key: str, **body: Any) -> httpx.Response:
    return http.post(f"/v1/locks/{key}/acquire", json=body)


def granted(http: httpx.Client, key: str, **body: Any) -> dict[str, Any]:
    answer = acquire(http, key, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(answer: httpx.Response, status: int, error: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["error"] == error
    assert problem["status"] == status
    assert {"type", "title", "detail"} <= problem.keys()
    return problem


def test_a_grant_has_every_field_of_the_contract(http: httpx.Client, key: str) -> None:
    before_ms = time.time() * 1000
    grant = granted(http, key, ownerId="me", ttlMillis=5000)
    after_ms = time.time() * 1000
    assert grant["lockKey"] == key
    assert grant["ownerId"] == "me"
    assert grant["mode"] == "exclusive"
    assert grant["sequencer"] is None
    assert grant["ttlMillis"] == 5000
    assert 0 < grant["remainingMillis"] <= 5000
    assert before_ms - 2000 < grant["expiresAt"] - 5000 < after_ms + 2000
    assert isinstance(grant["fencingToken"], str)
    assert int(grant["fencingToken"]) > 0


def test_the_body_is_json_whatever_its_content_type_says(http: httpx.Client, key: str) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = http.post(f"/v1/locks/{key}/acquire", content='{"ownerId": "curl"}', headers=form)
    assert answer.json()["ownerId"] == "curl"
    assert http.post(f"/v1/locks/{key}-2/acquire").status_code == 200


def test_a_second_owner_is_refused_and_told_who_holds_it(http: httpx.Client, key: str) -> None:
    granted(http, key, ownerId="first")
    answer = acquire(http, key, ownerId="second")
    problem = refused(answer, 409, "LOCK_ALREADY_HELD")
    assert problem["currentOwner"] == "first"
    assert problem["retryAfterMillis"] > 0
    assert int(answer.headers["retry-after"]) >= 1


def test_the_refusal_names_the_lock_and_its_holder_in_words_too(http: httpx.Client, key: str) -> None:
    acquire(http, key, ownerId="first")
    detail = acquire(http, key, ownerId="second").json()["detail"]
    assert repr(key) in detail
    assert "'first'" in detail


def test_where_a_pause_keeps_the_lock_closed_there_is_no_owner_and_that_is_said(http: httpx.Client, key: str) -> None:
    acquire(http, key, ownerId="first", ttlMillis=60_000, lockDelayMillis=60_000)
    assert http.post(f"/v1/locks/{key}/force-release", json={"reason": "gone"}).status_code == 200
    problem = acquire(http, key, ownerId="second").json()
    assert (problem["error"], problem["currentOwner"]) == ("LOCK_ALREADY_HELD", None)
    assert problem["retryAfterMillis"] > 30_000


def test_tokens_rise_over_release_and_acquire(http: httpx.Client, key: str) -> None:
    tokens = []
    for _ in range(20):
        grant = granted(http, key)
        tokens.append(int(grant["fencingToken"]))
        http.post(f"/v1/locks/{key}/release", json={"lockToken": grant["lockToken"]})
    assert tokens == sorted(set(tokens))


def test_renewal_keeps_the_token_and_lengthens_the_lease(http: httpx.Client, key: str) -> None:
    grant = granted(http, key, ttlMillis=60000)
    body = {"lockToken": grant["lockToken"], "ttlMillis": 120000}
    renewed = http.post(f"/v1/locks/{key}/renew", json=body).json()
    assert renewed["fencingToken"] == grant["fencingToken"]
    assert renewed["expiresAt"] > grant["expiresAt"] + 10_000
    assert renewed.keys() == {"lockKey", "fencingToken", "sequencer", "expiresAt", "remainingMillis"}
    shorter = http.post(f"/v1/locks/{key}/renew", json={"lockToken": grant["lockToken"], "ttlMillis": 1000}).json()
    assert shorter["expiresAt"] >= renewed["expiresAt"]


def test_only_the_owner_may_renew_or_release(http: httpx.Client, key: str) -> None:
    grant = granted(http, key, ownerId="me")
    for verb in ("renew", "release"):
        answer = http.post(f"/v1/locks/{key}/{verb}", json={"lockToken": "x.y"})
        refused(answer, 403, "NOT_LOCK_OWNER")
        answer = http.post(f"/v1/locks/{key}/{verb}", json={"lockToken": grant["lockToken"], "ownerId": "you"})
        refused(answer, 403, "NOT_LOCK_OWNER")
    assert http.get(f"/v1/locks/{key}").json()["ownerId"] == "me"


def test_a_repeated_release_returns_the_first_answer_and_frees_nobody_else(http: httpx.Client, key: str) -> None:
    first = granted(http, key)
    body = {"lockToken": first["lockToken"]}
    answer = http.post(f"/v1/locks/{key}/release", json=body)
    assert answer.json() == {"status": "RELEASED", "lockKey": key, "reentrancyCount": 0}
    granted(http, key, ownerId="next")
    assert http.post(f"/v1/locks/{key}/release", json=body).json() == answer.json()
    assert http.get(f"/v1/locks/{key}").json()["ownerId"] == "next"


def test_a_lease_that_ran_out_is_neither_renewed_nor_released(http: httpx.Client, key: str) -> None:
    grant = granted(http, key, ttlMillis=1000)
    time.sleep(1.1)
    for verb in ("renew", "release"):
        answer = http.post(f"/v1/locks/{key}/{verb}", json={"lockToken": grant["lockToken"]})
        refused(answer, 409, "LOCK_EXPIRED")
    refused(http.get(f"/v1/locks/{key}"), 404, "LOCK_FREE")
    assert int(granted(http, key)["fencingToken"]) > int(grant["fencingToken"])


def test_reentrant_acquires_share_the_token_and_not_the_lock_token(http: httpx.Client, key: str) -> None:
    one = granted(http, key, ownerId="me", reentrant=True)
    two = granted(http, key, ownerId="me", reentrant=True)
    refused(acquire(http, key, ownerId="me"), 409, "LOCK_ALREADY_HELD")
    refused(acquire(http, key, ownerId="you", reentrant=True), 409, "LOCK_ALREADY_HELD")
    assert one["fencingToken"] == two["fencingToken"]
    assert one["lockToken"] != two["lockToken"]
    assert http.get(f"/v1/locks/{key}").json()["reentrancyCount"] == 2
    counts = [
        http.post(f"/v1/locks/{key}/release", json={"lockToken": token}).json()["reentrancyCount"]
        for token in (two["lockToken"], two["lockToken"], one["lockToken"])
    ]
    assert counts == [1, 1, 0]
    refused(http.get(f"/v1/locks/{key}"), 404, "LOCK_FREE")


def test_a_request_id_makes_acquire_idempotent(http: httpx.Client, key: str) -> None:
    body = {"ownerId": "me", "requestId": "r-1"}
    first = granted(http, key, **body)
    again = granted(http, key, **body, wait=True, waitMillis=10)
    assert (again["lockToken"], again["fencingToken"]) == (first["lockToken"], first["fencingToken"])
    refused(acquire(http, key, **{**body, "ttlMillis": 9000}), 409, "REQUEST_ID_REUSED")
    http.post(f"/v1/locks/{key}/release", json={"lockToken": first["lockToken"]})
    refused(acquire(http, key, **body), 409, "LOCK_EXPIRED")
    refused(acquire(http, key, **{**body, "ttlMillis": 9000}), 409, "REQUEST_ID_REUSED")
    refused(http.get(f"/v1/locks/{key}"), 404, "LOCK_FREE")


def test_force_release_takes_the_lock_and_says_why_to_the_old_holder(http: httpx.Client, key: str) -> None:
    grant = granted(http, key)
    answer = http.post(f"/v1/locks/{key}/force-release", json={"reason": "operator"})
    assert answer.json() == {"status": "FORCE_RELEASED", "lockKey": key}
    answer = http.post(f"/v1/locks/{key}/renew", json={"lockToken": grant["lockToken"]})
    assert "operator" in refused(answer, 409, "LOCK_EXPIRED")["detail"]
    refused(http.post(f"/v1/locks/{key}/force-release", json={"reason": "again"}), 404, "LOCK_FREE")


def test_status_of_a_free_lock_tells_its_highest_token(http: httpx.Client, key: str) -> None:
    problem = refused(http.get(f"/v1/locks/{key}"), 404, "LOCK_FREE")
    assert problem["locked"] is False
    assert problem["lockKey"] == key
    grant = granted(http, key)
    http.post(f"/v1/locks/{key}/release", json={"lockToken": grant["lockToken"]})
    assert refused(http.get(f"/v1/locks/{key}"), 404, "LOCK_FREE")["highestToken"] == grant["fencingToken"]


def test_status_of_a_held_lock(http: httpx.Client, key: str) -> None:
    grant = granted(http, key, ownerId="me", metadata={"job": 7})
    status = http.get(f"/v1/locks/{key}").json()
    assert status["locked"] is True
    assert status["fencingToken"] == grant["fencingToken"]
    assert status["expiresAt"] == grant["expiresAt"]
    assert status["waiters"] == 0
    assert status["holders"][0]["metadata"] == {"job": 7}
    assert grant["lockToken"] not in str(status)  # the secret is the holder's alone


def test_keys_with_slashes_and_escapes(http: httpx.Client) -> None:
    base = f"path:{next(_names)}"
    assert granted(http, f"{base}/a/b")["lockKey"] == f"{base}/a/b"
    assert granted(http, f"{base}%2Facquire")["lockKey"] == f"{base}/acquire"
    assert granted(http, f"{base}%20%C3%A9")["lockKey"] == f"{base} é"
    assert http.get(f"/v1/locks/{base}/acquire").json()["lockKey"] == f"{base}/acquire"
    body = {"lockKey": f"{base}/body", "ownerId": "me"}
    grant = http.post("/v1/acquire", json=body).json()
    assert grant["lockKey"] == f"{base}/body"
    done = http.post("/v1/release", json={"lockKey": f"{base}/body", "lockToken": grant["lockToken"]})
    assert done.json()["status"] == "RELEASED"


def test_a_key_in_path_and_body_is_one_key_or_refused(http: httpx.Client, key: str) -> None:
    other = http.post(f"/v1/locks/{key}/acquire", json={"lockKey": "another"})
    assert (other.status_code, other.json()["error"]) == (422, "INVALID_LOCK_KEY")
    assert http.get(f"/v1/locks/{key}").status_code == 404
    grant = http.post(f"/v1/locks/{key}/acquire", json={"lockKey": key})
    assert (grant.status_code, grant.json()["lockKey"]) == (200, key)
    released = http.post(f"/v1/locks/{key}/release", json={"lockKey": key, "lockToken": grant.json()["lockToken"]})
    assert released.json()["status"] == "RELEASED"


def test_listing_pages_over_held_locks_only(http: httpx.Client) -> None:
    base = f"list{next(_names)}"
    for number in range(5):
        granted(http, f"{base}:{number}")
    freed = granted(http, f"{base}:9")
    http.post(f"/v1/locks/{base}:9/release", json={"lockToken": freed["lockToken"]})
    granted(http, f"{base}x:1")
    seen: list[str] = []
    cursor = None
    for _ in range(10):
        query = {"namespace": base, "limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = http.get("/v1/locks", params=query).json()
        seen += [lock["lockKey"] for lock in page["locks"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert seen == [f"{base}:{number}" for number in range(5)]
    by_prefix = http.get("/v1/locks", params={"prefix": base}).json()["locks"]
    assert len(by_prefix) == 6


# --- waiting ---


async def test_waiters_are_served_in_order_and_each_gets_a_higher_token(server: Server, key: str) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        first = (await http.post(f"/v1/locks/{key}/acquire", json={})).json()
        order: list[tuple[int, int]] = []

        async def wait(number: int) -> None:
            grant = (await http.post(f"/v1/locks/{key}/acquire", json={"waitMillis": 20000})).json()
            order.append((number, int(grant["fencingToken"])))
            await http.post(f"/v1/locks/{key}/release", json={"lockToken": grant["lockToken"]})

        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(wait(number)))
            while (await http.get(f"/v1/locks/{key}")).json()["waiters"] <= number:
                await asyncio.sleep(0.01)
        await http.post(f"/v1/locks/{key}/release", json={"lockToken": first["lockToken"]})
        await asyncio.gather(*tasks)
    assert [number for number, _ in order] == list(range(6))
    tokens = [int(first["fencingToken"]), *(token for _, token in order)]
    assert tokens == sorted(set(tokens))


def test_a_wait_that_is_too_short_is_refused_like_any_other(http: httpx.Client, key: str) -> None:
    granted(http, key)
    before = time.monotonic()
    refused(acquire(http, key, waitMillis=300), 409, "LOCK_ALREADY_HELD")
    assert 0.25 < time.monotonic() - before < 20
    assert http.get(f"/v1/locks/{key}").json()["waiters"] == 0


def test_a_waiter_gets_the_lock_when_the_lease_runs_out(http: httpx.Client, key: str) -> None:
    first = granted(http, key, ttlMillis=1000)
    second = granted(http, key, waitMillis=20000)
    assert int(second["fencingToken"]) > int(first["fencingToken"])


def test_waiting_keeps_the_place_between_polls_of_one_request(server: Server, http: httpx.Client, key: str) -> None:
    grant = granted(http, key, ownerId="holder")
    refused(acquire(http, key, ownerId="early", requestId="early", waitMillis=50), 409, "LOCK_ALREADY_HELD")
    assert http.get(f"/v1/locks/{key}").json()["waiters"] == 1
    served: list[str] = []

    def wait() -> None:
        served.append(granted(http, key, ownerId="late", waitMillis=60000)["ownerId"])

    late = threading.Thread(target=wait)
    late.start()
    _until_waiting(http, key, 2)
    with _raw_wait(server, key, '{"ownerId":"early","requestId":"early","waitMillis":60000}') as early:
        for _ in range(50):  # that it stands there again can't be seen; but these come after it
            assert http.get(f"/v1/locks/{key}").json()["waiters"] == 2
            time.sleep(0.01)
        http.post(f"/v1/locks/{key}/release", json={"lockToken": grant["lockToken"]})
        answer = json.loads(early.recv(65536).partition(b"\r\n\r\n")[2])
    assert (answer["ownerId"], served) == ("early", [])
    http.post(f"/v1/locks/{key}/release", json={"lockToken": answer["lockToken"]})
    late.join()
    assert served == ["late"]


def _raw_wait(server: Server, key: str, body: str) -> socket.socket:
    """Send an acquire that waits, and leave the answer unread."""
    address = urlsplit(server.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=60)
    head = f"POST /v1/locks/{key}/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall((head + body).encode())
    return connection


@pytest.mark.parametrize(("more", "kept"), [("", 0), (',"requestId":"q"', 1)], ids=["unnamed", "named"])
def test_a_dropped_connection_cancels_or_with_a_request_id_keeps_its_place(
    server: Server, http: httpx.Client, key: str, more: str, kept: int
) -> None:
    grant = granted(http, key, ttlMillis=600_000)
    connection = _raw_wait(server, key, '{"waitMillis":60000,"ttlMillis":600000' + more + "}")
    _until_waiting(http, key, 1)
    connection.close()
    _until_waiting(http, key, kept)
    time.sleep(0.3)
    assert http.get(f"/v1/locks/{key}").json()["waiters"] == kept
    http.post(f"/v1/locks/{key}/release", json={"lockToken": grant["lockToken"]})
    assert acquire(http, key, waitMillis=20000).status_code == 200  # whoever hung up is not granted


def _until_waiting(http: httpx.Client, key: str, count: int) -> None:
    end = time.monotonic() + 30
    while http.get(f"/v1/locks/{key}").json()["waiters"] != count:
        assert time.monotonic() < end, f"there are never {count} waiters"
        time.sleep(0.01)


# --- the service itself ---


def test_health_documentation_and_the_page_for_people(http: httpx.Client) -> None:
    assert http.get("/livez").status_code == 200
    assert http.get("/readyz").json() == {"status": "ready"}
    assert "swagger" in http.get("/docs").text.lower()
    document = http.get("/openapi.json").json()
    for path in ("/v1/locks/{lockKey}/acquire", "/v1/locks", "/v1/resources/{resource}/{key}", "/readyz"):
        assert path in document["paths"]
    assert "ttlMillis" in document["components"]["schemas"]["AcquireBody"]["properties"]
    assert "Fencegate" in http.get("/").text
    assert http.get("/nothing/here").json()["error"] == "NOT_FOUND"
    assert http.post("/readyz").json()["error"] == "METHOD_NOT_ALLOWED"
