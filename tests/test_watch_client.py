"""`locks.watch` of both clients, and `fencegate watch`: no gap and no duplicate, whatever becomes of the connection."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

import fencegate.sync
from fencegate import InvalidInput, LockLost, Locks, StoreUnavailable, Watcher, WatchEvent, connect
from fencegate.client.sse import EventReader
from tests.servers import MakeServer, Server

Cut = Callable[[int, bytes], int | None]
"""Given the number of a connection and all that came from the server: after how many bytes to cut it; None: not yet."""


@asynccontextmanager
async def proxy(servers: list[Server], cut: Cut) -> AsyncIterator[str]:
    """A way to the last of these servers, on which every connection is cut where `cut` says."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        number, connections = connections, connections + 1
        address = httpx.URL(servers[-1].url)
        try:
            behind, ahead = await asyncio.open_connection(address.host, address.port)
        except ConnectionError:
            writer.close()
            return

        async def upstream() -> None:
            while part := await reader.read(65536):
                ahead.write(part)

        up = asyncio.ensure_future(upstream())
        passed = b""
        with suppress(ConnectionError):
            while part := await behind.read(65536):
                end = cut(number, passed + part)
                writer.write(part if end is None else part[: max(0, end - len(passed))])
                await writer.drain()
                passed += part
                if end is not None:
                    break
        up.cancel()
        for one in (ahead, writer):
            one.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


def after_each_event(_number: int, passed: bytes) -> int | None:
    found = passed.find(b"data: ")
    return passed.index(b"\n\n", found) + 2 if found >= 0 and b"\n\n" in passed[found:] else None


def nowhere(_number: int, _passed: bytes) -> int | None:
    return None


def anywhere(number: int, passed: bytes) -> int | None:
    """In the middle of an event, too: each connection gets a little further."""
    limit = passed.find(b"\r\n\r\n") + 150 + 61 * number
    return limit if passed.find(b"\r\n\r\n") >= 0 and len(passed) >= limit else None


async def cycles(locks: Locks, lock_key: str, count: int) -> None:
    for _ in range(count):
        async with locks.hold(lock_key, ttl=60):
            pass


async def gather(watcher: Watcher, count: int) -> list[WatchEvent]:
    async with asyncio.timeout(60):
        return [await anext(watcher) for _ in range(count)]


@pytest.mark.parametrize("cut", [after_each_event, anywhere])
async def test_a_watcher_that_is_cut_off_again_and_again_hears_everything_once(
    make_server: MakeServer, cut: Cut
) -> None:
    server = make_server()
    async with connect(server.url) as direct:
        async with direct.watch() as watcher:
            begin = watcher.id
            await cycles(direct, "a", 3)
            await cycles(direct, "b", 3)
            whole = await gather(watcher, 12)
        assert [event.id for event in whole] == sorted({event.id for event in whole})
        async with proxy([server], cut) as url, connect(url) as locks:
            async with locks.watch(since=begin) as watcher:
                assert await gather(watcher, 12) == whole
            async with locks.watch("b", since=begin) as watcher:
                assert await gather(watcher, 6) == [event for event in whole if event.lock_key == "b"]


async def test_a_watcher_outlives_its_server(make_server: MakeServer) -> None:
    servers = [make_server()]
    async with proxy(servers, nowhere) as url, connect(url) as locks, locks.watch(prefix="a") as watcher:
        await cycles(locks, "a1", 1)
        assert [event.kind for event in await gather(watcher, 2)] == ["acquired", "released"]
        waiting = asyncio.ensure_future(gather(watcher, 2))
        assert await asyncio.to_thread(servers[0].terminate) == 0
        servers.append(await asyncio.to_thread(make_server))
        async with connect(servers[1].url) as others:
            await cycles(others, "b", 1)
            await cycles(others, "a2", 1)
        assert [event.lock_key for event in await waiting] == ["a2", "a2"]


@pytest.mark.parametrize("where", ["http", "memory", "sqlite"])
async def test_what_is_told_is_typed_and_the_same_with_and_without_a_server(
    server: Server, tmp_path: object, where: str
) -> None:
    urls = {"http": server.url, "memory": "memory://watch-typed", "sqlite": f"sqlite:///{tmp_path}/locks.db"}
    async with connect(urls[where]) as locks, locks.watch(prefix="typed:") as watcher:
        with pytest.raises(LockLost):
            async with locks.hold("typed:a", ttl=60) as lease:
                await locks.force_release("typed:a", "for the test")
        await cycles(locks, "other", 1)
        acquired, forced = await gather(watcher, 2)
        assert (acquired.kind, acquired.lock_key, acquired.owner_id) == ("acquired", "typed:a", locks.owner_id)
        assert (acquired.token, forced.token) == (lease.token, lease.token)
        assert (forced.kind, forced.reason, acquired.reason) == ("forced", "for the test", None)
        assert acquired.at <= forced.at
        assert acquired.id < forced.id
        async with locks.watch("typed:a", since=acquired.id) as later:
            assert await gather(later, 1) == [forced]
        async with locks.watch(since=1 << 70) as lost:
            (reset,) = await gather(lost, 1)
            assert (reset.kind, reset.lock_key, reset.token) == ("reset", "", None)


@pytest.mark.parametrize("where", ["http", "memory"])
async def test_a_watcher_whose_wait_was_cancelled_misses_nothing(server: Server, where: str) -> None:
    url = server.url if where == "http" else "memory://watch-cancelled"
    async with connect(url) as locks, locks.watch("watch:cancelled") as watcher:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await anext(watcher)
        await cycles(locks, "watch:cancelled", 2)
        found: list[WatchEvent] = []
        while len(found) < 4:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02 if len(found) % 2 else 20):
                    found.append(await anext(watcher))
        assert [event.kind for event in found] == ["acquired", "released"] * 2


@pytest.mark.parametrize("where", ["http", "memory"])
async def test_closing_a_client_ends_its_watchers(server: Server, where: str) -> None:
    locks = connect(server.url if where == "http" else "memory://watch-closed")
    watcher = await locks.watch("watch:closed").begin()
    idle = await locks.watch("watch:closed").begin()

    async def read_to_the_end() -> list[WatchEvent]:
        return [event async for event in watcher]

    reading = asyncio.ensure_future(read_to_the_end())
    await asyncio.sleep(0.05)
    await locks.aclose()
    async with asyncio.timeout(20):
        assert await reading == []
        assert [event async for event in idle] == []


async def test_where_there_is_no_server_the_first_answer_says_so() -> None:
    async with connect("http://127.0.0.1:9") as locks:
        with pytest.raises(StoreUnavailable):
            await anext(locks.watch())
        with pytest.raises(StoreUnavailable):
            async with locks.watch("a"):
                pass


def test_what_cannot_be_watched_is_refused_before_anything_is_sent() -> None:
    locks = connect("http://127.0.0.1:9")
    wrong: list[dict[str, Any]] = [{"key": "a", "prefix": "b"}, {"key": ""}, {"prefix": "\n"}, {"since": -1}]
    for arguments in wrong:
        with pytest.raises(InvalidInput):
            locks.watch(**arguments)


def test_the_blocking_client_watches_too(server: Server) -> None:
    with fencegate.sync.connect(server.url) as locks, locks.watch("watch:sync") as watcher:
        with locks.hold("watch:sync") as lease:
            pass
        acquired, released = next(watcher), next(watcher)
        assert (acquired.kind, acquired.token, released.kind) == ("acquired", lease.token, "released")
        assert watcher.id == released.id
        ended = threading.Event()

        def read_to_the_end() -> None:
            for _ in watcher:
                pass
            ended.set()

        threading.Thread(target=read_to_the_end, daemon=True).start()
        watcher.close()
        assert ended.wait(20)


def test_the_command_prints_what_happens_until_it_is_interrupted(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        grant = http.post("/v1/locks/watch:cli/acquire", json={"ownerId": "somebody"}).json()
        http.post("/v1/locks/watch:cli/force-release", json={"reason": "why not"})
    for arguments in (["--json"], []):
        command = [sys.executable, "-c", "from fencegate.cli import main; main()", "watch", "--key", "watch:cli"]
        running = subprocess.Popen(
            [*command, "--since", "0", *arguments],
            env={**os.environ, "FENCEGATE_URL": server.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert running.stdout is not None
        lines = [running.stdout.readline(), running.stdout.readline()]
        running.send_signal(2)
        assert (running.wait(20), "Traceback" in (running.communicate()[1])) == (130, False)
        if arguments:
            first, second = map(json.loads, lines)
            assert (first["event"], first["fencingToken"]) == ("acquired", grant["fencingToken"])
            assert (second["event"], second["reason"], second["ownerId"]) == ("forced", "why not", "somebody")
        else:
            assert "acquired" in lines[0]
            assert "somebody" in lines[0]
            assert "why not" in lines[1]


def test_a_stream_is_read_the_same_however_it_is_cut_into_pieces() -> None:
    stream = b'retry: 5\nid: 7\n\n:\n\nevent: acquired\nid: 8\r\ndata: {"a": ": x"}\r\n\r\nid: 9\n\nevent: lost\nid: 1'
    expected = [(7, "", b""), (8, "acquired", b'{"a": ": x"}'), (9, "", b"")]
    for size in range(1, len(stream) + 1):
        reader = EventReader()
        parts = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [heard for part in parts for heard in reader.feed(part)] == expected


@pytest.mark.parametrize("nonsense", [b"x" * (1 << 21), b"id: x\n\n", b"".join(b"f%d: x\n" % n for n in range(100))])
def test_what_is_no_stream_of_events_is_refused_and_not_kept(nonsense: bytes) -> None:
    with pytest.raises(ValueError):
        list(EventReader().feed(nonsense))
