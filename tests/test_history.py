"""The history of locks over HTTP: who held what, from when to when, and how it ended; also after kill -9."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.servers import MakeServer

Json = dict[str, Any]


def history(http: httpx.Client, lock_key: str, **query: Any) -> Json:
    answer = http.get("/v1/history", params={"lockKey": lock_key, **query})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def acquire(http: httpx.Client, lock_key: str, **body: Any) -> Json:
    answer = http.post(f"/v1/locks/{lock_key}/acquire", json=body)
    assert answer.status_code == 200, answer.text
    grant: Json = answer.json()
    return grant


def release(http: httpx.Client, lock_key: str, grant: Json) -> None:
    answer = http.post(f"/v1/locks/{lock_key}/release", json={"lockToken": grant["lockToken"]})
    assert answer.status_code == 200, answer.text


def until(holds: Callable[[], bool], limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.02)


def test_a_hold_is_told_from_its_acquire_to_its_end_newest_first(http: httpx.Client) -> None:
    before_ms = time.time() * 1000 - 5000
    first = acquire(http, "history:a", ownerId="one")
    held = history(http, "history:a")
    assert held["lockKey"] == "history:a"
    assert [(hold["ownerId"], hold["endedAt"], hold["ending"]) for hold in held["history"]] == [("one", None, None)]
    release(http, "history:a", first)
    second = acquire(http, "history:a", ownerId="two")
    found = history(http, "history:a")
    assert (found["complete"], found["nextCursor"]) == (True, None)
    now, past = found["history"]
    assert (now["ownerId"], now["fencingToken"], now["ending"]) == ("two", second["fencingToken"], None)
    assert (past["ownerId"], past["fencingToken"], past["ending"]) == ("one", first["fencingToken"], "released")
    assert past["mode"] == "exclusive"
    assert "slot" not in past
    assert "reason" not in past
    assert before_ms < past["acquiredAt"] <= past["endedAt"] <= now["acquiredAt"] < time.time() * 1000 + 5000
    release(http, "history:a", second)


def test_what_was_just_done_is_in_the_very_next_answer(http: httpx.Client) -> None:
    for number in range(30):
        release(http, "history:at-once", acquire(http, "history:at-once", ownerId=f"o{number}"))
        newest = history(http, "history:at-once", limit=1)["history"][0]
        assert (newest["ownerId"], newest["ending"]) == (f"o{number}", "released")


def test_a_forced_release_is_told_with_its_reason(http: httpx.Client) -> None:
    acquire(http, "history:forced", ownerId="stuck")
    http.post("/v1/locks/history:forced/force-release", json={"reason": "it hung (ticket 7)"}).raise_for_status()
    (forced,) = history(http, "history:forced")["history"]
    assert (forced["ownerId"], forced["ending"], forced["reason"]) == ("stuck", "forced", "it hung (ticket 7)")


def test_a_lease_that_ran_out_is_told_as_expired(http: httpx.Client) -> None:
    grant = acquire(http, "history:expired", ownerId="late", ttlMillis=1000)
    until(lambda: http.get("/v1/locks/history:expired").status_code == 404)
    until(lambda: bool(history(http, "history:expired")["history"]))
    (expired,) = history(http, "history:expired")["history"]
    assert (expired["fencingToken"], expired["ending"]) == (grant["fencingToken"], "expired")
    assert expired["endedAt"] >= expired["acquiredAt"] + 1000


def test_locks_held_together_are_told_one_by_one(http: httpx.Client) -> None:
    both = [{"lockKey": "history:multi:a"}, {"lockKey": "history:multi:b", "mode": "shared"}]
    grants = http.post("/v1/multi/acquire", json={"locks": both, "ownerId": "m"}).json()["locks"]
    body = {"locks": [{"lockKey": lock["lockKey"]} for lock in both], "lockToken": grants[0]["lockToken"]}
    http.post("/v1/multi/release", json=body).raise_for_status()
    for grant in grants:
        (ended,) = history(http, grant["lockKey"])["history"]
        assert (ended["ownerId"], ended["fencingToken"]) == ("m", grant["fencingToken"])
        assert (ended["mode"], ended["ending"]) == (grant["mode"], "released")


def test_shared_holds_and_permits_are_told_apart(http: httpx.Client) -> None:
    readers = [acquire(http, "history:shared", ownerId="r", mode="shared") for _ in range(2)]
    release(http, "history:shared", readers[0])
    found = history(http, "history:shared")["history"]
    assert Counter((hold["mode"], hold["ending"]) for hold in found) == {
        ("shared", None): 1,
        ("shared", "released"): 1,
    }
    assert {hold["fencingToken"] for hold in found} == {readers[0]["fencingToken"]}
    permits = [acquire(http, "history:permits", limit=3) for _ in range(3)]
    for permit in permits:
        release(http, "history:permits", permit)
    found = history(http, "history:permits")["history"]
    assert [(hold["slot"], hold["fencingToken"]) for hold in found] == [
        (permit["slot"], permit["fencingToken"]) for permit in reversed(permits)
    ]


def test_pages_go_on_where_the_last_ended_each_hold_once(http: httpx.Client) -> None:
    tokens = []
    for number in range(11):
        grant = acquire(http, "history:pages", ownerId=f"o{number}")
        tokens.append(grant["fencingToken"])
        if number < 10:
            release(http, "history:pages", grant)
    found: list[Json] = []
    cursor = ""
    while True:
        page = history(http, "history:pages", limit=3, **({"cursor": cursor} if cursor else {}))
        assert len(page["history"]) <= 3
        found += page["history"]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert [hold["fencingToken"] for hold in found] == tokens[::-1]
    assert [hold["ending"] for hold in found] == [None] + ["released"] * 10


def test_one_lock_is_not_told_of_another_whose_key_it_begins_with(http: httpx.Client) -> None:
    for lock_key in ("history:pre", "history:prefix", "history:pre%2Fx"):
        release(http, lock_key, acquire(http, lock_key, ownerId=lock_key))
    assert [hold["ownerId"] for hold in history(http, "history:pre")["history"]] == ["history:pre"]
    assert [hold["ownerId"] for hold in history(http, "history:pre/x")["history"]] == ["history:pre%2Fx"]


def test_a_lock_that_nobody_ever_held_has_an_empty_history(http: httpx.Client) -> None:
    empty: Json = {"lockKey": "history:never", "history": [], "nextCursor": None, "complete": True}
    assert history(http, "history:never") == empty


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("", "INVALID_LOCK_KEY"),
        ("lockKey=", "INVALID_LOCK_KEY"),
        ("lockKey=%00", "INVALID_LOCK_KEY"),
        ("lockKey=a%2F..%2Fb", "INVALID_LOCK_KEY"),
        ("lockKey=%ff", "INVALID_LOCK_KEY"),
        (f"lockKey={'x' * 1025}", "INVALID_LOCK_KEY"),
        ("lockKey=a&lockKey=b", "INVALID_LOCK_KEY"),
        ("lockKey=a&limit=0", "INVALID_LIMIT"),
        ("lockKey=a&limit=1001", "INVALID_LIMIT"),
        ("lockKey=a&limit=-1", "INVALID_LIMIT"),
        ("lockKey=a&limit=1_0", "INVALID_LIMIT"),
        ("lockKey=a&limit=%D9%A3", "INVALID_LIMIT"),
        (f"lockKey=a&limit={'9' * 5000}", "INVALID_LIMIT"),
        ("lockKey=a&cursor=nonsense", "INVALID_CURSOR"),
        (f"lockKey=a&cursor={'f' * 48}", "INVALID_CURSOR"),
        (f"lockKey=a&cursor={'f' * 48}-x", "INVALID_CURSOR"),
        (f"lockKey=a&cursor={'g' * 48}-1", "INVALID_CURSOR"),
        ("lockKey=a&since=1", "INVALID_SINCE"),
    ],
)
def test_bad_input_is_refused_by_name(http: httpx.Client, query: str, error: str) -> None:
    answer = http.get(f"/v1/history?{query}")
    assert (answer.status_code, answer.json()["error"]) == (422, error)


def test_a_cursor_from_beyond_is_answered_with_nothing(http: httpx.Client) -> None:
    release(http, "history:beyond", acquire(http, "history:beyond"))
    assert history(http, "history:beyond", cursor=f"{'f' * 48}-1")["history"] == []
    assert history(http, "history:beyond", cursor=f"{'0' * 48}-999999")["history"] == []


def test_only_reading_is_allowed_and_the_documentation_has_it(http: httpx.Client) -> None:
    answer = http.post("/v1/history?lockKey=a", json={})
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert http.head("/v1/history", params={"lockKey": "a"}).status_code == 200
    document = http.get("/openapi.json").json()
    assert "get" in document["paths"]["/v1/history"]
    assert "PastHold" in document["components"]["schemas"]


def test_switched_off_it_tells_who_holds_and_that_this_is_not_all(make_server: MakeServer) -> None:
    with httpx.Client(base_url=make_server(FENCEGATE_HISTORY="off").url, timeout=30) as http:
        release(http, "a", acquire(http, "a", ownerId="past"))
        acquire(http, "a", ownerId="present")
        found = history(http, "a")
    assert [hold["ownerId"] for hold in found["history"]] == ["present"]
    assert found["complete"] is False


class Told:
    """What clients were told, by every life of the server. They never stop while it is killed and started again."""

    def __init__(self) -> None:
        self.address = ""
        self.granted: dict[str, str] = {}
        self.released: set[str] = set()
        self.stop = threading.Event()

    def work(self, lock_key: str) -> None:
        while not self.stop.is_set():
            with httpx.Client(base_url=self.address, timeout=30) as http, contextlib.suppress(httpx.HTTPError):
                while not self.stop.is_set():
                    self.cycle(http, lock_key)
            time.sleep(0.01)

    def cycle(self, http: httpx.Client, lock_key: str) -> None:
        answer = http.post(f"/v1/locks/{lock_key}/acquire", json={"ownerId": lock_key, "ttlMillis": 1000})
        if answer.status_code != 200:
            time.sleep(0.02)
            return
        grant = answer.json()
        self.granted[grant["fencingToken"]] = lock_key
        body = {"lockToken": grant["lockToken"]}
        if http.post(f"/v1/locks/{lock_key}/release", json=body).status_code == 200:
            self.released.add(grant["fencingToken"])


def test_it_is_complete_across_kill_9_and_each_hold_is_told_once(make_server: MakeServer) -> None:
    told = Told()
    server = make_server()
    told.address = server.url
    lock_keys = ("k0", "k1")
    workers = [threading.Thread(target=told.work, args=(lock_key,)) for lock_key in lock_keys]
    for worker in workers:
        worker.start()
    try:
        for life in range(3):
            wanted = len(told.released) + 5 + 8 * life
            until(lambda wanted=wanted: len(told.released) >= wanted)  # type: ignore[misc]
            server.kill()
            server = make_server()
            told.address = server.url
    finally:
        told.stop.set()
        for worker in workers:
            worker.join()
    with httpx.Client(base_url=server.url, timeout=30) as http:
        for lock_key in lock_keys:
            until(lambda lock_key=lock_key: http.get(f"/v1/locks/{lock_key}").status_code == 404)  # type: ignore[misc]
            until(lambda lock_key=lock_key: all(h["ending"] for h in history(http, lock_key)["history"]))  # type: ignore[misc]
            page = history(http, lock_key, limit=1000)
            assert (page["complete"], page["nextCursor"]) == (True, None)
            found = page["history"]
            tokens = [hold["fencingToken"] for hold in found]
            assert len(set(tokens)) == len(tokens)
            assert {token for token, owner in told.granted.items() if owner == lock_key} <= set(tokens)
            endings = {hold["fencingToken"]: hold["ending"] for hold in found}
            assert {endings[token] for token in told.released & set(tokens)} == {"released"}
            assert set(endings.values()) <= {"released", "expired"}
            for newer, older in pairwise(found):
                assert older["endedAt"] <= newer["acquiredAt"]
