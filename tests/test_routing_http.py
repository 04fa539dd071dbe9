"""`fencegate serve` over several stores, as a process of its own: over HTTP, its readiness, and when it won't start."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.eventually import eventually_sync
from tests.real import redis as real_redis
from tests.servers import MakeServer, Server, kept_address, start_server
from tests.test_serve import Command, run


def stores(folder: Path, **names: str) -> list[str]:
    """The flags for SQLite files in a folder: `orders="a", all="b"`."""
    routes = {"*" if key == "all" else f"{key}:": f"sqlite:///{folder / name}.db" for key, name in names.items()}
    return [flag for prefix, url in routes.items() for flag in ("--store", f"{prefix}={url}")]


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("routed")
    server = start_server(folder / "data", *stores(folder, orders="a", carts="b", all="c"))
    yield server
    assert server.terminate() == 0


@pytest.fixture
def http(routed: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=routed.url, timeout=60) as client:
        yield client


def test_locks_of_all_stores_over_http(http: httpx.Client) -> None:
    keys = ["carts:1", "orders:1", "x:1"]
    grants = {key: http.post(f"/v1/locks/{key}/acquire", json={"ownerId": "me"}).json() for key in keys}
    listed = http.get("/v1/locks", params={"limit": 2}).json()
    rest = http.get("/v1/locks", params={"limit": 2, "cursor": listed["nextCursor"]}).json()
    assert [lock["lockKey"] for lock in listed["locks"] + rest["locks"]] == keys
    for key, grant in grants.items():
        assert http.get(f"/v1/locks/{key}").json()["fencingToken"] == grant["fencingToken"]
        body = {"lockToken": grant["lockToken"]}
        assert http.post(f"/v1/locks/{key}/release", json=body).json()["status"] == "RELEASED"
        assert http.get("/v1/history", params={"lockKey": key}).json()["history"][0]["ending"] == "released"
    assert http.get("/readyz").json() == {"status": "ready"}


@pytest.mark.parametrize(
    ("path", "body", "feature"),
    [
        ("/v1/multi/acquire", {"locks": [{"lockKey": "orders:1"}, {"lockKey": "x"}]}, "multi"),
        ("/v1/locks/orders:1/acquire", {"sessionId": "abc"}, "sessionId"),
    ],
)
def test_what_would_need_two_stores_is_501_and_names_them(
    http: httpx.Client, path: str, body: dict[str, Any], feature: str
) -> None:
    answer = http.post(path, json=body)
    problem = answer.json()
    assert (answer.status_code, problem["error"], problem["feature"]) == (501, "NOT_SUPPORTED_BY_STORE", feature)
    assert "'orders:'" in problem["store"]
    assert "'*'" in problem["store"]
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_watch_is_of_one_store(http: httpx.Client) -> None:
    refused = http.get("/v1/watch")
    assert (refused.status_code, refused.json()["error"]) == (501, "NOT_SUPPORTED_BY_STORE")
    with http.stream("GET", "/v1/watch", params={"prefix": "orders:"}) as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()
        assert next(lines).startswith("retry")
        http.post("/v1/locks/carts:9/acquire", json={})
        http.post("/v1/locks/orders:9/acquire", json={})
        data = next(line for line in lines if line.startswith("data:"))
        assert "orders:9" in data


def test_a_waiter_is_sent_away_when_the_server_stops(tmp_path: Path, make_server: MakeServer) -> None:
    server = make_server("data", *stores(tmp_path, orders="a", all="b"))
    with httpx.Client(base_url=server.url, timeout=60) as http:
        http.post("/v1/locks/orders:1/acquire", json={}).raise_for_status()
        answers: list[httpx.Response] = []
        body = {"waitMillis": 60_000}
        waiting = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{server.url}/v1/locks/orders:1/acquire", json=body, timeout=60))
        )
        waiting.start()
        eventually_sync(lambda: http.get("/v1/locks/orders:1").json()["waiters"] == 1)
        assert server.terminate() == 0
        waiting.join()
        assert [answer.json()["error"] for answer in answers] == ["SHUTTING_DOWN"]


def test_other_routes_are_refused_at_start_and_the_same_are_not(tmp_path: Path, make_server: MakeServer) -> None:
    make_server("data", *stores(tmp_path, orders="a", all="b")).terminate()
    other = stores(tmp_path, orders="b", all="a")
    answer = run("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), *other)
    assert answer.returncode == 2, answer.stderr
    assert "remembers other routes" in answer.stderr
    assert "--accept-routes" in answer.stderr
    make_server("again", *stores(tmp_path, all="b", orders="a"))


def test_routes_from_the_environment_and_from_the_file(tmp_path: Path, make_server: MakeServer) -> None:
    urls = {"orders:": f"sqlite:///{tmp_path}/a.db", "*": f"sqlite:///{tmp_path}/b.db"}
    flags = " ".join(f"{prefix}={url}" for prefix, url in urls.items())
    make_server("data", FENCEGATE_STORE=flags).terminate()
    file = tmp_path / "fencegate.toml"
    file.write_text("[store]\n" + "".join(f'"{prefix}" = "{url}"\n' for prefix, url in urls.items()))
    server = make_server("data", "--config", str(file))
    assert httpx.post(f"{server.url}/v1/locks/orders:1/acquire", json={}, timeout=60).status_code == 200
    assert (tmp_path / "a.db").exists()


def test_a_store_that_is_down_is_exit_code_3_and_said(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="pip install 'fencegate[redis]'")
    with kept_address() as address:
        url = f"redis://:secret@{address}"
        answer = run("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--store", url)
    assert answer.returncode == 3, answer.stderr
    assert "can't be reached" in answer.stderr
    assert address in answer.stderr
    assert "secret" not in answer.stderr + answer.stdout
    assert "Traceback" not in answer.stderr


def test_the_resources_that_are_there_by_default_need_no_lock_store_beside_them(tmp_path: Path) -> None:
    command = Command(tmp_path, "--listen", "127.0.0.1:0", "--store", "memory://")
    try:
        assert httpx.get(f"{command.url}/readyz", timeout=60).status_code == 200
        assert (tmp_path / ".fencegate" / "rows.db").exists()
    finally:
        os.kill(command.process.pid, signal.SIGTERM)
        assert command.process.wait(60) == 0


@pytest.mark.skipif(real_redis.missing() is not None, reason=str(real_redis.missing()))
def test_one_store_that_goes_down_takes_no_other_with_it(tmp_path: Path, make_server: MakeServer) -> None:
    redis = real_redis.RedisServer(tmp_path / "redis", "--appendonly", "yes").start()
    try:
        routes = [f"orders:={redis.url}", f"*=sqlite:///{tmp_path}/b.db"]
        server = make_server("data", *[flag for route in routes for flag in ("--store", route)])
        with httpx.Client(base_url=server.url, timeout=60) as http:
            assert http.post("/v1/locks/orders:1/acquire", json={"ttlMillis": 600_000}).status_code == 200
            redis.kill()
            down = http.post("/v1/locks/orders:2/acquire", json={})
            assert (down.status_code, down.json()["error"]) in ((503, "STORE_UNAVAILABLE"), (503, "OUTCOME_UNKNOWN"))
            assert http.post("/v1/locks/x/acquire", json={}).status_code == 200
            ready = http.get("/readyz")
            assert ready.status_code == 200
            assert "redis ('orders:')" in ready.json()["detail"]
            redis.start()
            eventually_sync(lambda: http.get("/v1/locks/orders:1").status_code == 200)
            eventually_sync(lambda: http.get("/readyz").json() == {"status": "ready"})
        assert server.terminate() == 0
    finally:
        redis.terminate()
