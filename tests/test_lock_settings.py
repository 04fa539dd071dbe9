"""The `[locks]` table and its variables: how long the history is kept, how many may wait, and the lock-delay."""

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from fencegate.core.errors import UnsafeConfiguration
from fencegate_lockservice.config import DAY_US, LockSettings
from tests.servers import MakeServer


def read(table: Any, **variables: str) -> LockSettings:
    return LockSettings.of(table, variables.get)


def test_there_are_defaults() -> None:
    assert read(None) == read({}) == LockSettings(history_us=7 * DAY_US, lock_delay_us=0, max_waiters=1000)


def test_the_table_is_read_and_a_variable_goes_before_it() -> None:
    table = {"history": "1d", "lock_delay": 2.5, "max_waiters": 7}
    assert read(table) == LockSettings(history_us=DAY_US, lock_delay_us=2_500_000, max_waiters=7)
    variables = {"history": "12h", "lock_delay": "500ms", "max_waiters": "8"}
    assert read(table, **variables) == LockSettings(history_us=DAY_US // 2, lock_delay_us=500_000, max_waiters=8)


@pytest.mark.parametrize("value", [0, "0", "0s", "off", "none", False])
def test_the_history_can_be_switched_off(value: Any) -> None:
    assert read({"history": value}).history_us == 0


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"history": "a week"}, "locks.history: "),
        ({"history": "4000d"}, "locks.history: "),
        ({"history": -1}, "locks.history: "),
        ({"history": True}, "locks.history: "),
        ({"history": []}, "locks.history: "),
        ({"lock_delay": "2h"}, "locks.lock_delay: "),
        ({"lock_delay": "off"}, "locks.lock_delay: "),
        ({"lock_delay": float("inf")}, "locks.lock_delay: "),
        ({"max_waiters": 0}, "locks.max_waiters: "),
        ({"max_waiters": 10_001}, "locks.max_waiters: "),
        ({"max_waiters": "many"}, "locks.max_waiters: "),
        ({"max_waiters": True}, "locks.max_waiters: "),
        ({"max_waiters": 1.5}, "locks.max_waiters: "),
        ({"max_waters": 1}, "locks.max_waters: "),
        ([], "locks: "),
        ("7d", "locks: "),
    ],
)
def test_what_is_wrong_is_named(table: Any, says: str) -> None:
    with pytest.raises(UnsafeConfiguration) as caught:
        read(table)
    assert caught.value.detail.startswith(says)


def test_the_server_goes_by_the_file(make_server: MakeServer, tmp_path: Path) -> None:
    config = tmp_path / "fencegate.toml"
    config.write_text('[locks]\nhistory = "off"\nmax_waiters = 1\nlock_delay = "1h"\n')
    with httpx.Client(base_url=make_server("data", "--config", str(config)).url, timeout=60) as http:
        http.post("/v1/locks/a/acquire", json={"lockDelayMillis": 0}).raise_for_status()
        waiting = threading.Thread(target=http.post, args=("/v1/locks/a/acquire",), kwargs={"json": {"wait": True}})
        waiting.start()
        end = time.monotonic() + 30
        while http.get("/v1/locks/a").json()["waiters"] < 1:
            assert time.monotonic() < end
            time.sleep(0.02)
        answer = http.post("/v1/locks/a/acquire", json={"wait": True})
        assert (answer.status_code, answer.json()["error"]) == (429, "TOO_MANY_WAITERS")
        http.post("/v1/locks/b/acquire", json={}).raise_for_status()
        http.post("/v1/locks/b/force-release", json={"reason": "test"}).raise_for_status()
        assert http.post("/v1/locks/b/acquire", json={}).json()["retryAfterMillis"] > 60_000  # the delay of the file
        http.post("/v1/locks/c/acquire", json={"lockDelayMillis": 0}).raise_for_status()
        http.post("/v1/locks/c/force-release", json={"reason": "test"}).raise_for_status()
        assert http.post("/v1/locks/c/acquire", json={}).status_code == 200  # the acquire's own goes before it
        assert http.get("/v1/history", params={"lockKey": "a"}).json()["complete"] is False
        http.post("/v1/locks/a/force-release", json={"reason": "done"}).raise_for_status()
        waiting.join()
