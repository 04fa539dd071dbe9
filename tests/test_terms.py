"""Locks on special terms: shared, one of several permits, by priority, with a lock-delay, held for so long at most."""

import threading
import time
from typing import Any

import httpx
import pytest

from tests.servers import Server

_names = iter(range(10**9))


@pytest.fixture
def key() -> str:
    return f"terms:{next(_names)}"


def acquire(http: httpx.Client, key: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = http.post(f"/v1/locks/{key}/acquire", json=body).json()
    return answer


def release(http: httpx.Client, key: str, grant: dict[str, Any]) -> None:
    assert http.post(f"/v1/locks/{key}/release", json={"lockToken": grant["lockToken"]}).status_code == 200


class Waiters:
    """Callers who wait at once, each in a thread of its own; `served` tells in which order they got the lock."""

    def __init__(self, server: Server, key: str) -> None:
        self._url, self._key = server.url, key
        self._threads: list[threading.Thread] = []
        self.served: list[str] = []
        self.grants: dict[str, dict[str, Any]] = {}

    def add(self, name: str, *, hold: bool = False, **body: Any) -> None:
        """Queue up, and come back when that is done."""
        before = self._waiting()
        thread = threading.Thread(target=self._wait, args=(name, hold, body))
        thread.start()
        self._threads.append(thread)
        while self._waiting() == before and not self.grants.get(name):
            time.sleep(0.01)

    def _waiting(self) -> int:
        with httpx.Client(base_url=self._url, timeout=30) as http:
            return int(http.get(f"/v1/locks/{self._key}").json().get("waiters", 0))

    def _wait(self, name: str, hold: bool, body: dict[str, Any]) -> None:
        with httpx.Client(base_url=self._url, timeout=90) as http:
            grant = acquire(http, self._key, ownerId=name, waitMillis=60_000, **body)
            self.grants[name] = grant
            self.served.append(name)
            if not hold:
                release(http, self._key, grant)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


# --- shared ---


def test_readers_share_a_token_and_a_writers_is_above_it(http: httpx.Client, key: str) -> None:
    one = acquire(http, key, mode="shared", ownerId="one")
    two = acquire(http, key, mode="shared", ownerId="two")
    assert one["fencingToken"] == two["fencingToken"]
    assert (one["mode"], two["mode"]) == ("shared", "shared")
    assert acquire(http, key)["error"] == "LOCK_ALREADY_HELD"
    status = http.get(f"/v1/locks/{key}").json()
    assert status["mode"] == "shared"
    assert [holder["ownerId"] for holder in status["holders"]] == ["one", "two"]
    release(http, key, one)
    assert acquire(http, key)["error"] == "LOCK_ALREADY_HELD"
    release(http, key, two)
    writer = acquire(http, key)
    assert int(writer["fencingToken"]) > int(two["fencingToken"])
    assert acquire(http, key, mode="shared")["error"] == "LOCK_ALREADY_HELD"
    release(http, key, writer)
    assert int(acquire(http, key, mode="shared")["fencingToken"]) > int(writer["fencingToken"])


def test_readers_do_not_pass_a_waiting_writer_and_come_in_together_after_it(
    server: Server, http: httpx.Client, key: str
) -> None:
    first = acquire(http, key, mode="shared")
    waiters = Waiters(server, key)
    waiters.add("writer")
    waiters.add("reader 1", mode="shared", hold=True)
    waiters.add("reader 2", mode="shared", hold=True)
    assert acquire(http, key, mode="shared")["error"] == "LOCK_ALREADY_HELD"
    release(http, key, first)
    waiters.join()
    assert waiters.served[0] == "writer"
    tokens = {name: int(grant["fencingToken"]) for name, grant in waiters.grants.items()}
    assert int(first["fencingToken"]) < tokens["writer"] < tokens["reader 1"] == tokens["reader 2"]


def test_a_reader_does_not_become_a_writer_by_re_entrancy(http: httpx.Client, key: str) -> None:
    acquire(http, key, mode="shared", ownerId="me")
    assert acquire(http, key, ownerId="me", reentrant=True)["error"] == "LOCK_ALREADY_HELD"
    assert acquire(http, key, mode="shared", ownerId="me", reentrant=True)["mode"] == "shared"


# --- permits ---


def test_so_many_permits_and_no_more_each_with_a_slot_and_a_token(server: Server, http: httpx.Client, key: str) -> None:
    grants = [acquire(http, key, limit=3, ownerId=f"o{number}") for number in range(3)]
    assert [grant["slot"] for grant in grants] == [0, 1, 2]
    assert [grant["fence"] for grant in grants] == [f"{key}#{slot}" for slot in range(3)]
    tokens = [int(grant["fencingToken"]) for grant in grants]
    assert tokens == sorted(set(tokens))
    assert acquire(http, key, limit=3)["error"] == "LOCK_ALREADY_HELD"
    assert acquire(http, key)["error"] == "LOCK_ALREADY_HELD"
    assert acquire(http, key, limit=4)["error"] == "INVALID_LIMIT"
    waiters = Waiters(server, key)
    waiters.add("next", limit=3, hold=True)
    release(http, key, grants[1])
    waiters.join()
    assert waiters.grants["next"]["slot"] == 1
    assert int(waiters.grants["next"]["fencingToken"]) > max(tokens)


def test_a_hash_in_the_lock_key_is_not_the_hash_of_a_slot(http: httpx.Client, key: str) -> None:
    assert acquire(http, f"{key}%23x", limit=2)["fence"] == f"{key}%23x#0"
    assert acquire(http, f"{key}-2", limit=2, mode="shared")["error"] == "INVALID_LIMIT"


# --- priority ---


def test_higher_priority_is_served_first_and_equals_in_the_order_of_coming(
    server: Server, http: httpx.Client, key: str
) -> None:
    grant = acquire(http, key)
    waiters = Waiters(server, key)
    for name, priority in (("low", -1), ("first", 0), ("second", 0), ("urgent", 9)):
        waiters.add(name, priority=priority)
    release(http, key, grant)
    waiters.join()
    assert waiters.served == ["urgent", "first", "second", "low"]


# --- lock-delay and the longest hold ---


def test_after_a_loss_the_lock_stays_closed_for_the_lock_delay_and_not_after_a_release(
    http: httpx.Client, key: str
) -> None:
    clean = acquire(http, key, ttlMillis=60_000, lockDelayMillis=60_000)
    release(http, key, clean)
    asked_s = time.monotonic()
    lost = acquire(http, key, ttlMillis=1000, lockDelayMillis=4000)
    time.sleep(1.5)
    problem = acquire(http, key)
    assert problem["error"] == "LOCK_ALREADY_HELD"
    assert 0 < problem["retryAfterMillis"] <= 3500  # it counts from the end of the lease
    after = acquire(http, key, waitMillis=30_000)
    assert time.monotonic() - asked_s > 4.99
    assert int(after["fencingToken"]) > int(lost["fencingToken"])


def test_a_forced_release_closes_the_lock_too(http: httpx.Client, key: str) -> None:
    acquire(http, key, lockDelayMillis=60_000)
    http.post(f"/v1/locks/{key}/force-release", json={"reason": "test"})
    assert acquire(http, key)["error"] == "LOCK_ALREADY_HELD"


def test_renewals_end_at_the_longest_hold_and_say_why(http: httpx.Client, key: str) -> None:
    grant = acquire(http, key, ttlMillis=59_000, maxHoldMillis=60_000)
    renew = {"lockToken": grant["lockToken"], "ttlMillis": 600_000}
    renewed = http.post(f"/v1/locks/{key}/renew", json=renew).json()
    assert renewed["expiresAt"] <= grant["expiresAt"] + 1000
    refused = http.post(f"/v1/locks/{key}/renew", json=renew)
    assert (refused.status_code, refused.json()["error"]) == (409, "MAX_HOLD_REACHED")
    assert "60000" in refused.json()["detail"]
    assert acquire(http, f"{key}-short", ttlMillis=60_000, maxHoldMillis=1000)["remainingMillis"] <= 1000
