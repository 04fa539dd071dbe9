"""Services that are slow, broken or endless: a clear answer with the outcome, bounded memory, and nothing that looks
whole and is not."""

import asyncio
import contextlib
import json
import socket
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import ResourceUnavailable
from fencegate.core.ports import Outgoing
from fencegate.gateway.app import DRAIN_WITHIN_S, Gateway
from fencegate.gateway.resources import ResourceSettings
from fencegate.web.asgi import ThinApp
from fencegate_adapters.http import Limits, Upstream
from tests.eventually import eventually
from tests.resources.gateways import start_gateway
from tests.resources.plain_service import PlainService
from tests.servers import Server

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
MIB = 1024 * 1024
WRITE = {"Fencing-Token": "7"}


class Stage:
    """A service whose every byte a test decides: `play` is run for each connection, after the head of a request."""

    def __init__(self) -> None:
        self.play: Play = self.silent
        self.connections = 0
        self.closed = 0
        self.port = 0

    @staticmethod
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    def says(self, *parts: bytes, close: bool = True) -> None:
        """Answer every request with these bytes, and close; or wait for the other side to close."""

        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for part in parts:
                writer.write(part)
                await writer.drain()
            if not close:
                await reader.read()

        self.play = play

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await self.play(reader, writer)
        writer.close()
        self.closed += 1


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    server = await asyncio.start_server(stage.connected, "127.0.0.1", 0)
    stage.port = server.sockets[0].getsockname()[1]
    yield stage
    server.close()


@pytest.fixture
def start(stage: Stage, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def make(**more: Any) -> Server:
        started.append(start_gateway(tmp_path, {"api": {"url": f"http://127.0.0.1:{stage.port}", **more}}))
        return started[-1]

    yield make
    for server in started:
        server.kill()
    assert "Traceback" not in (errors := (tmp_path / "gateway.err").read_text()), errors


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as client:
        yield client


async def outcome(http: httpx.AsyncClient, gateway: Server, key: str, method: str = "PUT") -> tuple[int, str]:
    answer = await http.request(method, f"{gateway.url}/v1/resources/api/{key}", headers=WRITE)
    assert answer.json()["error"] == "RESOURCE_UNAVAILABLE"
    return answer.status_code, answer.json()["outcome"]


BROKEN = {
    "nothing": [],
    "no HTTP": [b"SSH-2.0-OpenSSH_9\r\n\r\n"],
    "half a head": [b"HTTP/1.1 200 OK\r\nContent-Le"],
    "two lengths": [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"],
    "no number": [b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"],
    "status 999": [b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n"],
    "a tunnel": [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"],
    "a control character": [b"HTTP/1.1 200 OK\r\nX: a\x01b\r\nContent-Length: 0\r\n\r\n"],
    "an endless head": [b"HTTP/1.1 200 OK\r\n", b"X: %b\r\n" % (b"x" * 200_000)],
    "less than it said": [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"],
}


async def test_an_answer_that_is_none_makes_the_outcome_of_a_write_unknown(
    http: httpx.AsyncClient, stage: Stage, start: Callable[..., Server]
) -> None:
    gateway = start()
    for number, (what, parts) in enumerate(BROKEN.items()):
        stage.says(*parts)
        assert await outcome(http, gateway, f"k{number}") == (503, "unknown"), what
        before = stage.connections
        assert (await outcome(http, gateway, f"r{number}", "GET"))[0] == 503, what
        assert stage.connections - before <= 2, "a read is repeated once at most"
    stage.says()
    before = stage.connections
    await http.get(f"{gateway.url}/v1/resources/api/k", headers={"Content-Length": "0"})
    assert stage.connections - before == 2, "also one that says that its body is empty"
    stage.says(b"HTTP/1.1 103 Early\r\nX: 1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert (await http.put(f"{gateway.url}/v1/resources/api/fine", headers=WRITE)).text == "ok"


@pytest.mark.parametrize("first", ["PUT", "HEAD"])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
async def test_what_a_service_says_beyond_its_answer_never_answers_the_next_request(
    first: str, late: bool, http: httpx.AsyncClient, stage: Stage, start: Callable[..., Server]
) -> None:
    gateway = start()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole, beyond = answer % (2, b"ok"), answer % (6, b"beyond")  # to a HEAD, even its body is beyond
        writer.write(whole if late else whole + beyond)
        await asyncio.sleep(0.1)
        writer.write(beyond)
        await reader.read()

    stage.play = play
    url = f"{gateway.url}/v1/resources/api/x"
    assert (await http.request(first, url, headers=WRITE)).status_code == 200
    await asyncio.sleep(0.2 if late else 0)
    second = await http.put(url, headers=WRITE)
    assert (second.status_code, second.text, stage.connections) == (200, "ok", 2)


async def test_a_service_that_stays_silent_is_given_up(
    http: httpx.AsyncClient, stage: Stage, start: Callable[..., Server]
) -> None:
    gateway = start(timeout=0.3, idle_timeout=0.3)
    async with asyncio.timeout(30):  # long before the whole time of a request is over
        assert await outcome(http, gateway, "k") == (503, "unknown")
        assert (await outcome(http, gateway, "k2", "GET"))[0] == 503
        stage.says(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", close=False)
        assert await outcome(http, gateway, "k3") == (503, "unknown")
    await eventually(lambda: stage.connections == stage.closed)


@asynccontextmanager
async def adapter(folder: Path, port: int, **limits: Any) -> AsyncIterator[Upstream]:
    fence = f"sqlite:///{folder / 'fence.db'}"
    made = Upstream("api", f"http://127.0.0.1:{port}", fence=fence, limits=Limits(**limits))
    await made.open()
    yield made
    await made.close()


async def test_a_service_that_takes_no_connection_is_given_up_and_nothing_was_written(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # there is no place for a second that nobody accepts
            async with adapter(tmp_path, port, connect_s=0.3) as upstream, asyncio.timeout(30):
                with pytest.raises(ResourceUnavailable) as refused:
                    await upstream.forward(Outgoing("PUT", b"/k", body=b"x", writes=True), "api:k", 7)
                assert refused.value.outcome == "not-written"


async def test_those_who_wait_for_an_older_write_take_no_place_from_other_locks(stage: Stage, tmp_path: Path) -> None:
    async def play(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way.set()
        await over.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def put(fence: str, token: int) -> int:
        answer, _ = await upstream.forward(Outgoing("PUT", b"/k", body=b"x", writes=True), fence, token)
        assert [part async for part in answer.body] == []
        return answer.status

    under_way, over = asyncio.Event(), asyncio.Event()
    stage.play = play
    async with adapter(tmp_path, stage.port, connections=2, connect_s=1) as upstream, asyncio.timeout(30):
        older = asyncio.create_task(put("job", 7))
        await under_way.wait()
        newer = [asyncio.create_task(put("job", 8)) for _ in range(3)]
        while await upstream.mark("job") < 8:
            await asyncio.sleep(0.01)
        stage.says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert await put("another", 7) == 200
        assert not any(task.done() for task in (older, *newer))
        over.set()
        assert await asyncio.gather(older, *newer) == [200] * 4


async def test_a_service_that_promises_an_answer_again_and_again_is_cut_when_its_whole_time_is_over(
    stage: Stage, tmp_path: Path
) -> None:
    async def play(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    stage.play = play
    async with adapter(tmp_path, stage.port, total_s=0.5) as upstream, asyncio.timeout(20):
        with pytest.raises(ResourceUnavailable) as refused:
            await upstream.forward(Outgoing("PUT", b"/k", body=b"x", writes=True), "api:k", 7)
        assert refused.value.outcome == "unknown"


async def test_who_finds_no_free_connection_in_time_is_refused_with_nothing_sent(stage: Stage, tmp_path: Path) -> None:
    async with adapter(tmp_path, stage.port, connections=1, connect_s=0.3) as upstream, asyncio.timeout(20):
        first = asyncio.create_task(upstream.forward(Outgoing("GET", b"/k"), "api:k"))
        await eventually(lambda: stage.connections == 1)
        with pytest.raises(ResourceUnavailable, match="too many requests") as refused:
            await upstream.forward(Outgoing("PUT", b"/k", body=b"x", writes=True), "api:k", 7)
        assert (refused.value.outcome, stage.connections) == ("not-written", 1)
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first


async def test_a_caller_whose_body_stops_to_come_is_given_up_and_the_service_hears_nothing(
    stage: Stage, start: Callable[..., Server]
) -> None:
    gateway = start(timeout="300ms")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    writer.write(b"PUT /v1/resources/api/k HTTP/1.1\r\nHost: x\r\nFencing-Token: 7\r\nContent-Length: 9\r\n\r\nabc")
    async with asyncio.timeout(20):
        assert b" 422 " in await reader.readline()
    assert stage.connections == 0
    writer.close()


async def test_a_service_that_stops_to_read_is_given_up(stage: Stage, tmp_path: Path) -> None:
    async def play(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await given_up.wait()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB

    given_up = asyncio.Event()
    stage.play = play
    async with adapter(tmp_path, stage.port, idle_s=0.3) as upstream, asyncio.timeout(30):
        with pytest.raises(ResourceUnavailable) as refused:
            await upstream.forward(Outgoing("PUT", b"/k", body=endless(), writes=True), "api:k", 7)
        assert refused.value.outcome == "unknown"
    given_up.set()


async def test_a_service_that_trickles_is_cut_when_its_whole_time_is_over(
    http: httpx.AsyncClient, stage: Stage, start: Callable[..., Server]
) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    stage.play = play
    gateway = start(total_timeout=1)
    with contextlib.suppress(httpx.RemoteProtocolError):  # it does not look whole
        answer = await http.put(f"{gateway.url}/v1/resources/api/k", headers=WRITE)
        assert answer.status_code == 503  # its time was over before the first byte came
    await eventually(lambda: stage.connections == stage.closed)
    assert (await http.get(f"{gateway.url}/readyz")).status_code == 200


async def test_an_answer_that_breaks_off_or_is_too_long_does_not_look_whole(
    http: httpx.AsyncClient, stage: Stage, start: Callable[..., Server]
) -> None:
    gateway = start(max_answer_bytes=1_000_000)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for parts in ((head, b"3\r\nabc\r\n"), (head, *[b"10000\r\n%b\r\n" % (b"x" * 65536)] * 20, b"0\r\n\r\n")):
        stage.says(*parts)
        with pytest.raises(httpx.HTTPError):
            await http.get(f"{gateway.url}/v1/resources/api/k")


async def test_a_length_beside_chunks_is_not_passed_on(
    http: httpx.AsyncClient, stage: Stage, start: Callable[..., Server]
) -> None:
    gateway = start()
    for length in (1, 100_000):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % length
        stage.says(head, b"3\r\nabc\r\n", b"0\r\n\r\n")
        assert (await http.get(f"{gateway.url}/v1/resources/api/k")).text == "abc"


async def test_a_caller_that_reads_nothing_holds_back_the_service_and_one_that_goes_lets_go_of_it(
    http: httpx.AsyncClient, stage: Stage, start: Callable[..., Server]
) -> None:
    sent = 0

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"10000\r\n%b\r\n" % (b"x" * 65536))
            await writer.drain()
            sent += 65536

    stage.play = play
    gateway = start()
    async with http.stream("GET", f"{gateway.url}/v1/resources/api/endless"):
        last = -1

        async def stands_still() -> bool:
            nonlocal last
            before, last = last, sent
            await asyncio.sleep(0.2)
            return before == sent > 0

        await eventually(stands_still)
        assert sent < 64 * MIB
    await eventually(lambda: stage.connections == stage.closed)


async def test_a_caller_that_reads_nothing_does_not_keep_its_place_at_the_service_for_ever(
    http: httpx.AsyncClient, stage: Stage, start: Callable[..., Server]
) -> None:
    stage.says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 * MIB), *[b"x" * MIB] * 64)
    gateway = start(timeout="1s", max_connections=1, connect_timeout="1s")
    async with http.stream("GET", f"{gateway.url}/v1/resources/api/large") as unread:
        stage.says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        async def is_served() -> bool:
            return (await http.get(f"{gateway.url}/v1/resources/api/small")).status_code == 200

        await eventually(is_served)
        with pytest.raises(httpx.HTTPError):  # it was cut, so that no part looks whole
            await unread.aread()


def peak_mib(server: Server) -> int:
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024


async def test_large_bodies_stream_both_ways_in_bounded_memory(http: httpx.AsyncClient, tmp_path: Path) -> None:
    size = 96 * MIB
    service = PlainService()
    resources = {"api": {"url": service.url, "max_bytes": size, "total_timeout": 120}}
    gateway = start_gateway(tmp_path, resources)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(size // MIB):
            yield bytes(MIB)

    try:
        before = peak_mib(gateway)
        answer = await http.post(f"{gateway.url}/v1/resources/api/swallow", content=body(), headers=WRITE)
        assert answer.text == str(size)
        received = 0
        async with http.stream("GET", f"{gateway.url}/v1/resources/api/big?bytes={size}") as download:
            async for part in download.aiter_raw():
                received += len(part)
        assert received == size
        assert peak_mib(gateway) - before < 40
    finally:
        gateway.kill()
        service.kill()


async def test_an_upload_is_cut_before_its_end_when_a_newer_holder_came_meanwhile(
    http: httpx.AsyncClient, tmp_path: Path
) -> None:
    service = PlainService()
    gateway = start_gateway(tmp_path, {"api": {"url": service.url, "drain_timeout": 0.1}})
    url = f"{gateway.url}/v1/resources/api/kv/upload"
    go_on = asyncio.Event()
    begun = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield bytes(200_000)
        begun.set()
        await go_on.wait()
        yield b"the end"

    try:
        upload = asyncio.create_task(http.put(url, content=body(), headers=WRITE))
        await begun.wait()

        async def announced() -> bool:
            fence = (await http.get(f"{gateway.url}/v1/fences/api/kv/upload")).json()
            return bool(fence["highestToken"] == "7")

        await eventually(announced)
        assert (await http.post(f"{url}/claim", headers={"Fencing-Token": "8"})).status_code == 503
        go_on.set()
        answer = await upload
        # Not a plain refusal: a part of the body was on its way already.
        assert (answer.status_code, answer.json()["outcome"]) == (503, "unknown")
        assert answer.headers["Fencing-Token-Highest"] == "8"
        assert (await http.get(url)).status_code == 404
    finally:
        gateway.kill()
        service.kill()


@pytest.mark.parametrize(("more", "status"), [(b"", 422), (bytes(200_000), 413)], ids=["stops", "too long"])
async def test_an_upload_that_its_caller_breaks_off_is_in_doubt_and_not_stale_though_a_newer_holder_came(
    http: httpx.AsyncClient, stage: Stage, start: Callable[..., Server], more: bytes, status: int
) -> None:
    """A part of it is at the service, and some services keep parts: nothing may be told as if it were not there."""
    gateway = start(drain_timeout=0.1, timeout="2s", max_bytes=300_000)
    begun = asyncio.Event()

    async def play(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        begun.set()
        while await reader.read(65536):
            pass

    stage.play = play
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    head = b"PUT /v1/resources/api/k HTTP/1.1\r\nHost: x\r\nFencing-Token: 7\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with asyncio.timeout(30):
        writer.write(head + b"%x\r\n%b\r\n" % (200_000, bytes(200_000)))
        await begun.wait()
        claim = await http.post(f"{gateway.url}/v1/resources/api/k/claim", headers={"Fencing-Token": "8"})
        assert claim.status_code == 503  # it waited for the upload in vain, and is known all the same
        writer.write(b"%x\r\n%b\r\n" % (len(more), more) if more else b"")
        told = await reader.readuntil(b"\r\n\r\n")
        answer = json.loads(await reader.readuntil(b"}"))
        writer.close()
    assert (int(told.split()[1]), answer.get("outcome")) == (status, "unknown")


async def test_an_answer_whose_head_can_not_be_sent_lets_go_of_the_service_and_holds_up_no_shutdown(
    stage: Stage, tmp_path: Path
) -> None:
    table = {"url": f"http://127.0.0.1:{stage.port}", "fence": f"sqlite:///{tmp_path / 'fence.db'}"}
    gateway = Gateway({"api": ResourceSettings.of("api", table)}, SYSTEM)
    await gateway.open()
    stage.says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", close=False)
    scope = {"type": "http", "method": "GET", "raw_path": b"/v1/resources/api/x", "query_string": b"", "headers": []}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await ThinApp(gateway.route, unrouted)(scope, receive, send)
    async with asyncio.timeout(DRAIN_WITHIN_S / 2):
        await gateway.close()
    await eventually(lambda: stage.closed == 1)


async def unrouted(*_: object) -> None:
    pytest.fail("the gateway has no such route")


async def test_a_lost_answer_is_unknown_although_the_service_told_of_a_newer_token(
    http: httpx.AsyncClient, stage: Stage, start: Callable[..., Server]
) -> None:
    gateway = start(upstream_checks=True)
    stage.says(b"HTTP/1.1 200 OK\r\nFencing-Token-Highest: 9\r\nContent-Length: 5\r\n\r\nab")
    assert await outcome(http, gateway, "told") == (503, "unknown")


@pytest.mark.parametrize("status", [b"502 Bad Gateway", b"504 Gateway Timeout"])
async def test_a_proxy_that_lost_the_service_does_not_end_a_write_for_it(
    status: bytes, http: httpx.AsyncClient, stage: Stage, start: Callable[..., Server]
) -> None:
    gateway = start(drain_timeout="300ms", total_timeout="20s")
    stage.says(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
    url = f"{gateway.url}/v1/resources/api/x"
    assert (await http.put(url, headers=WRITE)).status_code == int(status[:3])
    newer = await http.put(url, headers={"Fencing-Token": "8"})
    assert (newer.status_code, newer.json().get("outcome")) == (503, "not-written")


async def test_a_fence_that_fails_in_the_middle_of_an_upload_leaves_its_outcome_unknown(
    stage: Stage, tmp_path: Path
) -> None:
    upstream = Upstream("api", f"http://127.0.0.1:{stage.port}", fence=f"sqlite:///{tmp_path / 'fence.db'}")
    await upstream.open()

    async def body() -> AsyncIterator[bytes]:
        yield b"half "
        yield b"of "
        await eventually(lambda: stage.connections == 1)
        with contextlib.closing(sqlite3.connect(tmp_path / "fence.db")) as other:
            other.execute("DROP TABLE fencegate_http_resources")

    with pytest.raises(ResourceUnavailable) as failed:
        await upstream.forward(Outgoing("PUT", b"/x", body=body(), writes=True), "api:x", 7)
    assert failed.value.outcome == "unknown"
    await upstream.close()
