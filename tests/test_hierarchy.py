"""Hierarchical locks over HTTP: `a/b` with everything below it, and with nobody above it."""

import threading
import time
from typing import Any

import httpx
import pytest

from tests.servers import Server

_names = iter(range(10**9))


@pytest.fixture
def root() -> str:
    return f"tree:{next(_names)}"


def acquire(http: httpx.Client, key: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = http.post("/v1/acquire", json={"lockKey": key, **body}).json()
    return answer


def release(http: httpx.Client, grant: dict[str, Any]) -> None:
    body = {"lockKey": grant["lockKey"], "lockToken": grant["lockToken"]}
    assert http.post("/v1/release", json=body).status_code == 200


def test_it_excludes_what_is_below_and_above_but_not_beside(http: httpx.Client, root: str) -> None:
    held = acquire(http, f"{root}/b", hierarchical=True, ownerId="me")
    for key, body in (
        (f"{root}/b/c", {}), (f"{root}/b/c/d", {"mode": "shared"}), (f"{root}/b/c", {"hierarchical": True}),
        (root, {"hierarchical": True}), (f"{root}/b", {}),
    ):  # fmt: skip
        assert acquire(http, key, **body)["error"] == "LOCK_ALREADY_HELD", key
    beside = [acquire(http, f"{root}/bc"), acquire(http, f"{root}/x", hierarchical=True)]
    assert all("fencingToken" in grant for grant in beside)
    release(http, held)
    below = acquire(http, f"{root}/b/c")
    assert int(below["fencingToken"]) > int(held["fencingToken"])
    refused = acquire(http, f"{root}/b", hierarchical=True)
    assert refused["error"] == "LOCK_ALREADY_HELD"
    release(http, below)
    again = acquire(http, f"{root}/b", hierarchical=True)
    assert int(again["fencingToken"]) > int(below["fencingToken"])
    status = http.get(f"/v1/locks/{root}/b").json()
    assert (status["hierarchical"], status["fencingToken"]) == (True, again["fencingToken"])


def test_a_plain_lock_above_keeps_a_hierarchical_one_below_out_and_not_a_plain_one(
    http: httpx.Client, root: str
) -> None:
    above = acquire(http, root)
    assert acquire(http, f"{root}/b", hierarchical=True)["error"] == "LOCK_ALREADY_HELD"
    assert "fencingToken" in acquire(http, f"{root}/c")
    release(http, above)
    assert "fencingToken" in acquire(http, f"{root}/b", hierarchical=True)


def test_who_waits_above_gets_it_when_the_last_below_is_gone_and_nobody_new_gets_in(
    server: Server, http: httpx.Client, root: str
) -> None:
    below = [acquire(http, f"{root}/{name}") for name in ("x", "y/z")]
    got: list[dict[str, Any]] = []

    def wait() -> None:
        with httpx.Client(base_url=server.url, timeout=70) as client:
            got.append(acquire(client, root, hierarchical=True, waitMillis=60_000))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until_s = time.monotonic() + 30
    while "error" not in (new := acquire(http, f"{root}/new")):  # until the one above stands there
        release(http, new)
        assert time.monotonic() < until_s
    release(http, below[0])
    assert acquire(http, f"{root}/new")["error"] == "LOCK_ALREADY_HELD"
    assert not got
    release(http, below[1])
    waiting.join(60)
    assert int(got[0]["fencingToken"]) > max(int(grant["fencingToken"]) for grant in below)


def test_a_lease_that_runs_out_below_lets_the_one_above_in_and_the_other_way_round(
    http: httpx.Client, root: str
) -> None:
    below = acquire(http, f"{root}/b", ttlMillis=1000)
    above = acquire(http, root, hierarchical=True, waitMillis=60_000, ttlMillis=1000)
    assert int(above["fencingToken"]) > int(below["fencingToken"])
    again = acquire(http, f"{root}/b", waitMillis=60_000)
    assert int(again["fencingToken"]) > int(above["fencingToken"])


def test_a_client_that_hangs_up_while_it_waits_above_leaves_nothing_behind(http: httpx.Client, root: str) -> None:
    below = acquire(http, f"{root}/b")
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/acquire", json={"lockKey": root, "hierarchical": True, "waitMillis": 60_000}, timeout=0.5)
    assert "fencingToken" in acquire(http, f"{root}/c", waitMillis=30_000)
    release(http, below)


def test_a_repeat_with_the_same_request_id_gets_the_same_lock(http: httpx.Client, root: str) -> None:
    first = acquire(http, root, hierarchical=True, requestId=root)
    again = acquire(http, root, hierarchical=True, requestId=root)
    assert (again["lockToken"], again["fencingToken"]) == (first["lockToken"], first["fencingToken"])


@pytest.mark.parametrize("body", [{}, {"hierarchical": True}, {"waitMillis": 100}])
def test_whoever_is_kept_out_from_above_is_told_by_whom_and_for_how_long(
    http: httpx.Client, root: str, body: dict[str, Any]
) -> None:
    acquire(http, root, hierarchical=True, ownerId="above", ttlMillis=60_000)
    refused = acquire(http, f"{root}/b", **body)
    assert (refused["error"], refused["currentOwner"]) == ("LOCK_ALREADY_HELD", "above")
    assert 30_000 < refused["retryAfterMillis"] <= 60_000
    assert "'above'" in refused["detail"]
