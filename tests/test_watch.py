"""`GET /v1/watch` on real servers: what is told, once each and in order, whatever becomes of connection and watcher."""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from fencegate.core.model import Event
from fencegate.engine.codec import encode_line
from fencegate.testing.committing import by, put
from fencegate_lockservice.stores.sqlite import SqliteStore
from tests.servers import MakeServer, Server
from tests.watching import Told, blocks, deaf_watcher, events, watching


def acquire(http: httpx.Client, lock_key: str, **body: Any) -> dict[str, Any]:
    answer = http.post(f"/v1/locks/{lock_key}/acquire", json={"ttlMillis": 60_000, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def release(http: httpx.Client, grant: dict[str, Any]) -> None:
    body = {"lockToken": grant["lockToken"]}
    assert http.post(f"/v1/locks/{grant['lockKey']}/release", json=body).status_code == 200


def cycles(http: httpx.Client, lock_key: str, count: int) -> None:
    for _ in range(count):
        release(http, acquire(http, lock_key))


def test_each_thing_that_happens_to_a_lock_is_told_with_its_token(server: Server, http: httpx.Client) -> None:
    with watching(server.url, key="watch:all") as stream:
        next(stream)
        first = acquire(http, "watch:all", ownerId="a", ttlMillis=60_000)
        http.post("/v1/locks/watch:all/renew", json={"lockToken": first["lockToken"], "ttlMillis": 60_000})
        held = http.post("/v1/locks/watch:all/acquire", json={"ownerId": "b", "waitMillis": 10, "requestId": "w"})
        assert held.status_code == 409
        http.post("/v1/locks/watch:all/force-release", json={"reason": "for the test"})
        told = events(stream, 4)
    assert [(one.kind, one.data["ownerId"]) for one in told] == [
        ("acquired", "a"),
        ("renewed", "a"),
        ("queued", "b"),
        ("forced", "a"),
    ]
    assert {one.data["lockKey"] for one in told} == {"watch:all"}
    assert [one.data.get("fencingToken") for one in told] == [first["fencingToken"]] * 2 + [None, first["fencingToken"]]
    assert told[3].data["reason"] == "for the test"
    assert all(abs(one.data["at"] / 1000 - time.time()) < 600 for one in told)
    assert [one.id for one in told] == sorted({one.id for one in told})


def test_a_lease_that_runs_out_is_told(server: Server, http: httpx.Client) -> None:
    with watching(server.url, key="watch:expiry") as stream:
        next(stream)
        first = acquire(http, "watch:expiry", ownerId="a", ttlMillis=1000)
        second = acquire(http, "watch:expiry", ownerId="b", waitMillis=30_000)
        kinds = {(one.kind, one.data["ownerId"]): one for one in events(stream, 4)}
    assert set(kinds) == {("acquired", "a"), ("queued", "b"), ("expired", "a"), ("acquired", "b")}
    assert kinds["expired", "a"].data["fencingToken"] == first["fencingToken"]
    assert kinds["acquired", "b"].data["fencingToken"] == second["fencingToken"]


def test_filters_tell_of_what_they_name_only(server: Server, http: httpx.Client) -> None:
    with (
        watching(server.url, key="wf:a") as one,
        watching(server.url, prefix="wf:a") as some,
        watching(server.url) as everything,
    ):
        for stream in (one, some, everything):
            next(stream)
        for lock_key in ("wf:b", "wf:ab", "wf:a"):
            release(http, acquire(http, lock_key))
        assert [told.data["lockKey"] for told in events(one, 2)] == ["wf:a"] * 2
        assert [told.data["lockKey"] for told in events(some, 4)] == ["wf:ab"] * 2 + ["wf:a"] * 2
        everywhere: list[str] = []
        while len(everywhere) < 6:  # what other tests left behind in this server may run out meanwhile
            everywhere += [key for told in events(everything, 1) if (key := told.data["lockKey"]).startswith("wf:")]
        assert everywhere == ["wf:b"] * 2 + ["wf:ab"] * 2 + ["wf:a"] * 2


@pytest.fixture
def busy(make_server: MakeServer) -> tuple[Server, list[Told]]:
    """A server on which something happened, and all of it as a watcher from the beginning heard it."""
    server = make_server()
    with httpx.Client(base_url=server.url, timeout=30) as http:
        for number in range(5):
            grant = acquire(http, f"k{number % 2}", ownerId=f"o{number}")
            http.post(f"/v1/locks/k{number % 2}/acquire", json={"waitMillis": 10, "requestId": f"r{number}"})
            release(http, grant)
            http.post(f"/v1/locks/k{number % 2}/force-release", json={"reason": "so that the next finds it free"})
    with watching(server.url, since=0) as stream:
        told = []
        while (one := next(stream)).kind:  # then comes the place by itself
            told.append(one)
    return server, told


def test_a_watcher_that_is_cut_off_at_any_event_goes_on_without_gap_or_duplicate(
    busy: tuple[Server, list[Told]],
) -> None:
    server, told = busy
    assert len(told) >= 15
    assert [one.id for one in told] == sorted({one.id for one in told})
    for cut in range(1, len(told)):
        with watching(server.url, last_id=told[cut - 1].id, since=0) as stream:  # the header wins
            assert events(stream, len(told) - cut) == told[cut:]
        with watching(server.url, since=told[cut - 1].id, key="k1") as stream:
            rest = [one for one in told[cut:] if one.data["lockKey"] == "k1"]
            assert events(stream, len(rest)) == rest


def test_the_place_of_a_watcher_that_heard_nothing_is_enough_to_go_on(server: Server, http: httpx.Client) -> None:
    with watching(server.url, key="watch:quiet") as stream:
        place = next(stream).id
    release(http, acquire(http, "watch:quiet"))
    with watching(server.url, last_id=place, key="watch:quiet") as stream:
        assert [one.kind for one in events(stream, 2)] == ["acquired", "released"]


def test_the_log_is_told_across_a_restart_of_the_server(make_server: MakeServer) -> None:
    server = make_server()
    with httpx.Client(base_url=server.url) as http, watching(server.url) as stream:
        next(stream)
        cycles(http, "a", 2)
        heard = events(stream, 4)
    server.kill()
    again = make_server()
    with httpx.Client(base_url=again.url) as http, watching(again.url, last_id=heard[0].id) as stream:
        cycles(http, "b", 1)
        told = events(stream, 5)
        assert told[:3] == heard[1:]
        assert [one.data["lockKey"] for one in told[3:]] == ["b", "b"]


@pytest.mark.parametrize("ahead", [1, 2, 1 << 40])
def test_a_place_in_the_future_brings_a_reset_and_then_what_is_new(make_server: MakeServer, ahead: int) -> None:
    server = make_server()
    with httpx.Client(base_url=server.url) as http:
        cycles(http, "a", 1)
        future = (2 + ahead) << 16
        with watching(server.url, since=future) as stream:
            (reset,) = events(stream, 1)
            assert reset.kind == "reset"
            assert reset.id < future
            cycles(http, "a", 1)
            assert [one.kind for one in events(stream, 2)] == ["acquired", "released"]
        with watching(server.url, last_id=reset.id) as stream:
            assert [one.kind for one in events(stream, 2)] == ["acquired", "released"]


@pytest.mark.parametrize(
    ("query", "headers", "error"),
    [
        ("key=a&prefix=b", {}, "INVALID_PREFIX"),
        ("key=", {}, "INVALID_KEY"),
        ("key=a%00", {}, "INVALID_KEY"),
        ("prefix=" + "x" * 2000, {}, "INVALID_PREFIX"),
        ("since=-1", {}, "INVALID_SINCE"),
        ("since=", {}, "INVALID_SINCE"),
        ("since=1_0", {}, "INVALID_SINCE"),
        ("since=%D9%A3", {}, "INVALID_SINCE"),
        ("since=" + "9" * 5000, {}, "INVALID_SINCE"),
        ("", {"Last-Event-ID": "x"}, "INVALID_LAST_EVENT_ID"),
        ("nonsense=1", {}, "INVALID_NONSENSE"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_name_of_the_field(
    http: httpx.Client, query: str, headers: dict[str, str], error: str
) -> None:
    answer = http.get(f"/v1/watch?{query}", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (422, error)


def test_only_get_is_for_watching(http: httpx.Client) -> None:
    assert http.post("/v1/watch").status_code == 405
    assert http.head("/v1/watch").status_code == 200
    assert "/v1/watch" in http.get("/openapi.json").json()["paths"]


async def test_a_hundred_watchers_hear_of_a_change_soon(server: Server, record_property: Any) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=httpx.Limits(max_connections=None)) as http:

        async def wait_for_it(begun: asyncio.Semaphore) -> float:
            async with http.stream("GET", "/v1/watch", params={"key": "watch:hundred"}) as response:
                async for line in response.aiter_lines():
                    if line.startswith("id: ") and begun.locked():
                        begun.release()
                    if line == "event: acquired":
                        return time.monotonic()
            raise AssertionError("the stream ended")

        opened = [asyncio.Semaphore(0) for _ in range(100)]
        watchers = [asyncio.ensure_future(wait_for_it(begun)) for begun in opened]
        async with asyncio.timeout(30):
            for begun in opened:
                await begun.acquire()
        before = time.monotonic()
        assert (await http.post("/v1/locks/watch:hundred/acquire", json={})).status_code == 200
        async with asyncio.timeout(30):
            latest = max(await asyncio.gather(*watchers)) - before
    record_property("the last of a hundred watchers heard of it after, in seconds", round(latest, 3))
    assert latest < 10


def test_watchers_that_never_read_hold_up_nobody_and_cost_little(make_server: MakeServer, tmp_path: Path) -> None:
    asyncio.run(_write_long_log(tmp_path / "data" / "locks.db", 6000))
    server = make_server("data", "--role", "lockservice")
    with contextlib.ExitStack() as stack, httpx.Client(base_url=server.url, timeout=30) as http:
        cycles(http, "k", 50)
        before = _resident_bytes(server.pid)
        for _ in range(30):  # the kernel takes 3 MB for each of them; 5 MB are left, 150 MB for all of them
            stack.enter_context(contextlib.closing(deaf_watcher(server.url, since="0")))
        cycles(http, "k", 50)
        with watching(server.url, since=0) as reading:
            assert len(events(reading, 6200)) == 6200
        cycles(http, "k", 50)
        grown = _resident_bytes(server.pid) - before
    assert grown < 80_000_000, f"{grown / 1e6:.0f} MB"


async def _write_long_log(path: Path, count: int) -> None:
    """So many events of 1.4 KB each."""
    store = SqliteStore(path)
    line = encode_line("r", Event("acquired", "k" * 1024, "o" * 256, 1, 1))
    await asyncio.gather(*(store.commit([put(f"{number}")], [("lock/k", line)], by(store)) for number in range(count)))
    await store.close()


def _resident_bytes(pid: int) -> int:
    statm = Path(f"/proc/{pid}/statm")
    if not statm.exists():
        pytest.skip("how much memory a process has is only read from /proc")
    return int(statm.read_text().split()[1]) * 4096


def test_sigterm_ends_streams_also_those_that_nobody_reads(make_server: MakeServer, tmp_path: Path) -> None:
    asyncio.run(_write_long_log(tmp_path / "data" / "locks.db", 3500))  # more than the kernel takes for a connection
    server = make_server("data", "--role", "lockservice")
    with contextlib.closing(deaf_watcher(server.url, since="0")):
        with watching(server.url, since=0) as stream:
            events(stream, 3500)
        with httpx.stream("GET", f"{server.url}/v1/watch", timeout=60) as response:
            stream = blocks(response)
            next(stream)
            assert server.terminate(within_s=60) == 0
            assert list(stream) == []  # ended, not broken off


def test_the_data_of_an_event_is_one_line_of_json_whatever_the_key(server: Server, http: httpx.Client) -> None:
    lock_key = 'watch:"\\{}: ü 漢'
    with httpx.stream("GET", f"{server.url}/v1/watch", params={"key": lock_key}, timeout=30) as response:
        lines = response.iter_lines()
        while not next(lines).startswith("id: "):
            pass
        body = {"lockKey": lock_key, "ownerId": "data: x"}
        assert http.post("/v1/acquire", json=body).status_code == 200
        data = next(line for line in lines if line.startswith("data: "))
    told = json.loads(data.removeprefix("data: "))
    assert (told["lockKey"], told["ownerId"]) == (lock_key, "data: x")
