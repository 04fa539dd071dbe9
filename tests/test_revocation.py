"""A forced release that asks politely first, over HTTP."""

from typing import Any

import httpx
import pytest

_names = iter(range(10**9))


@pytest.fixture
def key() -> str:
    return f"revoked:{next(_names)}"


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = http.post(f"/v1/locks/{path}", json=body).json()
    return answer


def test_the_holder_is_told_at_its_renewal_and_loses_the_lock_when_the_grace_is_over(
    http: httpx.Client, key: str
) -> None:
    grant = post(http, f"{key}/acquire", ttlMillis=60_000)
    asked = post(http, f"{key}/force-release", reason="deploy", graceMillis=3000)
    assert (asked["status"], asked["lockKey"]) == ("FORCE_RELEASED", key)
    renewed = post(http, f"{key}/renew", lockToken=grant["lockToken"], ttlMillis=600_000)
    assert renewed["revoked"]["reason"] == "deploy"
    assert renewed["revoked"]["takenAt"] == asked["takenAt"]
    assert 0 <= renewed["revoked"]["remainingMillis"] <= 3000
    assert http.get(f"/v1/locks/{key}").json()["revoked"]["reason"] == "deploy"
    after = post(http, f"{key}/acquire", waitMillis=60_000)
    assert int(after["fencingToken"]) > max(int(grant["fencingToken"]), asked["takenAt"] * 1000)
    lost = post(http, f"{key}/renew", lockToken=grant["lockToken"])
    assert lost["error"] == "LOCK_EXPIRED"
    assert "deploy" in lost["detail"]


def test_nobody_is_told_that_they_hold_it_for_longer_than_until_it_is_taken(http: httpx.Client, key: str) -> None:
    body = {"ttlMillis": 60_000, "requestId": "one"}
    grant = post(http, f"{key}/acquire", **body)
    taken_at = post(http, f"{key}/force-release", reason="deploy", graceMillis=20_000)["takenAt"]
    renewed = post(http, f"{key}/renew", lockToken=grant["lockToken"])
    again = post(http, f"{key}/acquire", **body)
    status = http.get(f"/v1/locks/{key}").json()
    for answer in (renewed, again, status, *status["holders"]):
        assert answer["expiresAt"] <= taken_at
        assert answer.get("remainingMillis", 0) <= 20_000
    assert again["lockToken"] == grant["lockToken"]


def test_a_holder_who_lets_go_in_time_ends_the_matter(http: httpx.Client, key: str) -> None:
    grant = post(http, f"{key}/acquire")
    post(http, f"{key}/force-release", reason="deploy", graceMillis=60_000)
    assert post(http, f"{key}/release", lockToken=grant["lockToken"])["status"] == "RELEASED"
    after = post(http, f"{key}/acquire")
    assert "revoked" not in post(http, f"{key}/renew", lockToken=after["lockToken"])


def test_nobody_joins_readers_who_were_asked_to_let_go(http: httpx.Client, key: str) -> None:
    post(http, f"{key}/acquire", mode="shared")
    post(http, f"{key}/force-release", reason="deploy", graceMillis=60_000)
    assert post(http, f"{key}/acquire", mode="shared")["error"] == "LOCK_ALREADY_HELD"


def test_an_earlier_revocation_is_not_put_off_by_a_later_one_and_force_wins_over_both(
    http: httpx.Client, key: str
) -> None:
    post(http, f"{key}/acquire", ttlMillis=600_000)
    first = post(http, f"{key}/force-release", reason="one", graceMillis=30_000)
    second = post(http, f"{key}/force-release", reason="two", graceMillis=600_000)
    assert second["takenAt"] == first["takenAt"]
    assert "takenAt" not in post(http, f"{key}/force-release", reason="three")
    assert "fencingToken" in post(http, f"{key}/acquire")
