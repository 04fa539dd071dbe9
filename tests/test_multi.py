"""Several locks at once, over HTTP: all or none, in one commit, without deadlock."""

import threading
from typing import Any

import httpx
import pytest

from tests.servers import Server

_names = iter(range(10**9))


@pytest.fixture
def keys() -> list[str]:
    number = next(_names)
    return [f"multi:{number}:{part}" for part in "cab"]


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = http.post(f"/v1/{path}", json=body).json()
    return answer


def wanted(keys: list[str]) -> list[dict[str, str]]:
    return [{"lockKey": key} for key in keys]


def test_all_are_granted_with_one_token_in_the_order_asked(http: httpx.Client, keys: list[str]) -> None:
    grants = post(http, "multi/acquire", locks=wanted(keys), ownerId="me", ttlMillis=20_000)["locks"]
    assert [grant["lockKey"] for grant in grants] == keys
    assert {grant["ownerId"] for grant in grants} == {"me"}
    assert len({grant["fencingToken"] for grant in grants}) == len({grant["lockToken"] for grant in grants}) == 1
    held = [{"lockKey": grant["lockKey"], "lockToken": grant["lockToken"]} for grant in grants]
    renewals = post(http, "multi/renew", locks=held, ttlMillis=60_000)["locks"]
    assert [renewal["lockKey"] for renewal in renewals] == keys
    assert all(new["expiresAt"] > old["expiresAt"] for new, old in zip(renewals, grants, strict=True))
    released = post(http, "multi/release", locks=wanted(keys), lockToken=grants[0]["lockToken"], ownerId="me")
    assert released["status"] == "RELEASED"
    assert [lock["lockKey"] for lock in released["locks"]] == keys
    again = post(http, "multi/release", locks=held)
    assert again == released  # a repeat gets the first answer
    for key in keys:
        assert http.get(f"/v1/locks/{key}").status_code == 404


def test_none_is_granted_when_one_is_held_and_the_refusal_names_it(http: httpx.Client, keys: list[str]) -> None:
    held = post(http, f"locks/{keys[1]}/acquire", ownerId="other")
    answer = http.post("/v1/multi/acquire", json={"locks": wanted(keys)})
    assert (answer.status_code, answer.json()["error"]) == (409, "LOCK_ALREADY_HELD")
    assert (answer.json()["lockKey"], answer.json()["currentOwner"]) == (keys[1], "other")
    for key in (keys[0], keys[2]):
        assert http.get(f"/v1/locks/{key}").status_code == 404
    post(http, f"locks/{keys[1]}/release", lockToken=held["lockToken"])
    assert "locks" in post(http, "multi/acquire", locks=wanted(keys))


def test_modes_are_given_for_each(http: httpx.Client, keys: list[str]) -> None:
    reader = post(http, f"locks/{keys[0]}/acquire", mode="shared")
    locks = [{"lockKey": keys[0], "mode": "shared"}, {"lockKey": keys[1]}]
    grants = post(http, "multi/acquire", locks=locks)["locks"]
    assert [grant["mode"] for grant in grants] == ["shared", "exclusive"]
    assert grants[0]["fencingToken"] == reader["fencingToken"]
    assert int(grants[1]["fencingToken"]) > int(reader["fencingToken"])


def test_a_repeat_with_the_same_request_id_gets_the_same_grants(http: httpx.Client, keys: list[str]) -> None:
    body = {"locks": wanted(keys), "requestId": keys[0]}
    first = post(http, "multi/acquire", **body)
    again = post(http, "multi/acquire", **body)
    assert [(g["lockToken"], g["fencingToken"]) for g in again["locks"]] == [
        (g["lockToken"], g["fencingToken"]) for g in first["locks"]
    ]
    assert post(http, "multi/acquire", **{**body, "ttlMillis": 5000})["error"] == "REQUEST_ID_REUSED"
    post(http, "multi/release", locks=wanted(keys), lockToken=first["locks"][0]["lockToken"])
    assert post(http, "multi/acquire", **body)["error"] == "LOCK_EXPIRED"


def test_a_renewal_of_all_lengthens_none_when_one_is_gone_and_a_release_frees_the_rest(
    http: httpx.Client, keys: list[str]
) -> None:
    grants = post(http, "multi/acquire", locks=wanted(keys))["locks"]
    token = grants[0]["lockToken"]
    post(http, f"locks/{keys[2]}/force-release", reason="test")
    refused = post(http, "multi/renew", locks=wanted(keys), lockToken=token, ttlMillis=600_000)
    assert (refused["error"], refused["lockKey"]) == ("LOCK_EXPIRED", keys[2])
    assert http.get(f"/v1/locks/{keys[0]}").json()["expiresAt"] == grants[0]["expiresAt"]
    refused = post(http, "multi/release", locks=wanted(keys), lockToken=token)
    assert refused["error"] == "LOCK_EXPIRED"
    for key in keys:
        assert http.get(f"/v1/locks/{key}").status_code == 404


def test_callers_who_name_the_locks_in_opposite_orders_all_get_through(
    server: Server, http: httpx.Client, keys: list[str]
) -> None:
    tokens: list[int] = []

    def work(order: list[str]) -> None:
        with httpx.Client(base_url=server.url, timeout=70) as client:
            for _ in range(5):
                grants = post(client, "multi/acquire", locks=wanted(order), waitMillis=60_000)["locks"]
                tokens.append(int(grants[0]["fencingToken"]))
                post(client, "multi/release", locks=wanted(order), lockToken=grants[0]["lockToken"])

    orders = [keys, keys[::-1], keys[:2], keys[1::-1], keys[1:], keys[:0:-1]]
    threads = [threading.Thread(target=work, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(tokens) == 30
    for key in keys:
        assert http.get(f"/v1/locks/{key}").status_code == 404
