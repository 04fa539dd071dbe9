"""The short way for hot calls: taken only by what is surely one plain request, and never told from the long one."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from fencegate.serve.protocol import Hot, ShortWayProtocol, plain_post
from fencegate.web.asgi import App, Receive, Reply, Scope, Send, ThinApp
from tests.servers import MakeServer, Server

_PLAIN = b"POST /v1/locks/a/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


def test_a_plain_post_is_recognised() -> None:
    assert plain_post(_PLAIN) == (b"/v1/locks/a/acquire", b"{}")
    assert plain_post(_PLAIN.replace(b"Host: x", b"Connection: keep-alive\r\nHost:x")) is not None


@pytest.mark.parametrize(
    "data",
    [
        _PLAIN[:-1],
        _PLAIN + b"x",
        _PLAIN + _PLAIN,
        _PLAIN.replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 2"),
        _PLAIN.replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length : 3"),
        _PLAIN.replace(b"Content-Length: 2", b"Content-Length: +2"),
        _PLAIN.replace(b"Content-Length: 2", b"Content-Length: 2,2"),
        _PLAIN.replace(b"Content-Length: 2", b"X-Content-Length: 2"),
        _PLAIN.replace(b"Host: x", b"Transfer-Encoding: chunked"),
        _PLAIN.replace(b"Host: x", b"transfer-ENCODING: identity"),
        _PLAIN.replace(b"Host: x", b"Host: x\r\n\tfolded"),
        _PLAIN.replace(b"Host: x", b"Connection: close"),
        _PLAIN.replace(b"Host: x", b"Connection: keep-alive, close"),
        _PLAIN.replace(b"Host: x", b"Expect: 100-continue"),
        _PLAIN.replace(b"Host: x", b"Upgrade: h2c"),
        _PLAIN.replace(b"Host: x", b"Host: \x00"),
        _PLAIN.replace(b"Host: x", b"Ho st: x"),
        _PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        _PLAIN.replace(b"POST", b"GET"),
        _PLAIN.replace(b"/a/", b"/a b/"),
        _PLAIN.replace(b"/acquire", b"/acquire?x=1"),
        _PLAIN.replace(b"\r\n", b"\n"),
        b"",
    ],
)
def test_whatever_is_not_plain_goes_the_long_way(data: bytes) -> None:
    assert plain_post(data) is None


@pytest.mark.parametrize("number", [30, 33, 100, 10_000])
@pytest.mark.parametrize("last", [b"X: plain", b"X: caf\xc3\xa9", b"X"])
def test_many_headers_are_looked_at_once_and_not_in_every_way_in_which_they_can_be_read(
    make_server: MakeServer, number: int, last: bytes
) -> None:
    """A pattern that can read `: 1` in two ways takes 2^n steps for n headers, and the server stands still."""
    server = make_server()
    address = urlsplit(server.url)
    headers = b"".join(b"X-%d: 1\r\n" % header for header in range(number)) + last
    with socket.create_connection((address.hostname, address.port or 80), timeout=20) as connection:
        connection.sendall(_PLAIN.replace(b"Host: x", b"Host: x\r\n" + headers))
        assert connection.recv(9) == b"HTTP/1.1 "
    assert httpx.get(f"{server.url}/livez", timeout=20).status_code == 200


def _exchange(server: Server, *pieces: bytes, answers: int) -> bytes:
    """Send the pieces one by one over one connection, and read until so many answers have come."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.05)
        received = b""
        while received.count(b"HTTP/1.1 ") < answers or not received.rstrip().endswith(b"}"):
            received += connection.recv(65536)
    return received


def _post(key: str, verb: str = "acquire", body: bytes = b"{}") -> bytes:
    return f"POST /v1/locks/{key}/{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_both_ways_alternate_on_one_connection(server: Server) -> None:
    get = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    received = _exchange(server, _post("short:1"), get, _post("short:2"), get, _post("short:1"), answers=5)
    statuses = [part.split(b" ")[0] for part in received.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"200", b"200", b"200", b"409"]


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    received = _exchange(server, _post("pipe:1"), answers=1)
    assert received.startswith(b"HTTP/1.1 200")
    both = _exchange(server, _post("pipe:2") + _post("pipe:2") + _post("pipe:3"), answers=3)
    assert [part.split(b" ")[0] for part in both.split(b"HTTP/1.1 ")[1:]] == [b"200", b"409", b"200"]


def test_a_request_cut_anywhere_is_one_request(server: Server) -> None:
    for cut in (1, 10, 40, 62, len(_post("cut:00")) - 1):
        key = f"cut:{cut:02d}"
        whole = _post(key)
        assert b" 200 OK" in _exchange(server, whole[:cut], whole[cut:], answers=1)


def test_a_request_hidden_in_a_header_of_another_is_not_a_request(server: Server, http: httpx.Client) -> None:
    """What the long way has begun to read is its to finish, however much the rest looks like a request of its own."""
    hidden = _post("hidden:1")
    _exchange(server, b"GET /livez HTTP/1.1\r\nHost: x\r\nX: ", hidden.replace(b"{}", b"") + b"\r\n", answers=1)
    assert http.get("/v1/locks/hidden:1").status_code == 404


def test_ten_thousand_headers_are_refused_and_nothing_is_granted(server: Server, http: httpx.Client) -> None:
    many = b"".join(b"X-%d: y\r\n" % number for number in range(10_000))
    request = _PLAIN.replace(b"/a/", b"/many-headers/").replace(b"Host: x\r\n", many)
    assert _first_line(server, request) == b"HTTP/1.1 400 Bad Request"
    assert http.get("/v1/locks/many-headers").status_code == 404


def test_a_head_without_an_end_is_refused_and_not_kept(server: Server, http: httpx.Client) -> None:
    endless = _PLAIN.partition(b"\r\n")[0] + b"\r\nX: " + b"a" * 8_000_000
    assert _first_line(server, endless) in (b"HTTP/1.1 400 Bad Request", b"cut")
    assert http.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\r\n\r\n",
        _PLAIN.replace(b"POST", b"FROB"),
        _PLAIN.replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 3"),
        _PLAIN.replace(b"Host: x\r\n", b"X: y\r\n" * 300),
    ],
    ids=["no HTTP", "no method", "two lengths", "many headers"],
)
def test_what_is_no_request_is_answered_with_a_problem_document(server: Server, data: bytes) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(data)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/problem+json" in head
    assert b"content-length: %d" % len(body) in head
    document = json.loads(body)
    assert (document["status"], document["error"]) == (400, "INVALID_REQUEST")
    assert all(document[name] for name in ("type", "title", "detail"))


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["short", "long"])
def test_blanks_around_a_header_are_no_part_of_it(server: Server, more: bytes) -> None:
    path, length = b"/v1/resources/rows/blank%d" % len(more), b"Content-Length: 2"
    head = b"PUT %b HTTP/1.1\r\nHost: x\r\n%bFencing-Token: \t5 \t\r\n%b\r\n\r\n" % (path, more, length)
    assert _first_line(server, head + b"{}") == b"HTTP/1.1 201 Created"


def test_a_trailer_without_an_end_is_not_kept(server: Server, http: httpx.Client) -> None:
    chunked = _PLAIN.replace(b"/a/", b"/trailer/").replace(
        b"Content-Length: 2\r\n\r\n{}", b"Transfer-Encoding: chunked"
    )
    assert _first_line(server, chunked + b"\r\n\r\n2\r\n{}\r\n0\r\nX: " + b"a" * 8_000_000) in (b"", b"cut")
    assert http.get("/livez").status_code == 200


def _first_line(server: Server, request: bytes) -> bytes:
    """Of the answer; `cut` where the server closed the connection before it had read all."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=5) as line:
        try:
            line.sendall(request)
            return line.recv(65536).partition(b"\r\n")[0]
        except ConnectionError:
            return b"cut"


def test_an_answer_has_the_same_headers_both_ways(http: httpx.Client) -> None:
    short = http.post("/v1/locks/headers:1/acquire", content=b"{}", headers={"connection": "keep-alive"})
    long = http.post("/v1/locks/headers:2/acquire", content=b"{}", headers={"connection": "close"})
    assert short.status_code == long.status_code == 200
    assert set(long.headers) - {"connection"} == set(short.headers) - {"connection"}


def test_sigterm_finishes_what_came_the_short_way(make_server: MakeServer) -> None:
    server = make_server()
    outcomes: list[int] = []

    def hammer(number: int) -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            try:
                while True:
                    outcomes.append(client.post(f"/v1/locks/k{number}/acquire", json={"ttlMillis": 1000}).status_code)
            except httpx.HTTPError:
                return

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    while outcomes.count(200) < 8 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.3)
    assert server.terminate() == 0
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {200, 409, 503}
    assert 200 in outcomes


def test_a_wait_that_is_spelt_with_escapes_ends_when_its_client_hangs_up(server: Server, http: httpx.Client) -> None:
    assert http.post("/v1/locks/escaped:1/acquire", json={"ttlMillis": 600_000}).status_code == 200
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(_post("escaped:1", body=b'{"\\u0077aitMillis": 60000}'))
        _until_waiting(http, "escaped:1", 1)
    _until_waiting(http, "escaped:1", 0)


def _until_waiting(http: httpx.Client, key: str, count: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if http.get(f"/v1/locks/{key}").json()["waiters"] == count:
            return
        time.sleep(0.02)
    raise AssertionError(f"there are never {count} waiters")


async def test_a_client_that_reads_no_answers_is_not_answered_without_end() -> None:
    served = 0

    async def answer() -> Reply:
        return Reply(200, b"x" * 50_000)

    def hot(_path: bytes, _body: bytes) -> Awaitable[Reply]:
        nonlocal served
        served += 1
        return answer()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"50000")]})
        await send({"type": "http.response.body", "body": b"x" * 50_000})

    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
    state = ServerState()
    await loop.connect_accepted_socket(lambda: ShortWayProtocol(config, state, {}, hot=hot), theirs)
    reader, writer = await asyncio.open_connection(sock=ours, limit=1000)
    async with asyncio.timeout(60):
        for _ in range(40):
            writer.write(_post("k"))
            await asyncio.sleep(0.002)
        assert served < 20
        received = b""
        while received.count(b"HTTP/1.1 200") < 40 or received.count(b"x") < 40 * 50_000:
            received += await reader.read(1 << 20)
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"DELETE /k HTTP/1.1\r\nHost: x\r\n\r\n", b"\0\r\n\r\n"),
        (b"DELETE /k HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n"),
        (b"DELETE /k HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 400_000),
        (b"DELETE /k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"no size\r\n"),
    ],
    ids=["garbage", "many headers", "a head without an end", "its own body"],
)
async def test_what_is_under_way_is_not_told_that_it_was_refused(first: bytes, then: bytes) -> None:
    """What comes behind it on the same connection can't be read; it may be done all the same."""
    under_way = asyncio.Event()
    protocol, reader, writer = await spoken_to(under_way)
    async with asyncio.timeout(20):
        writer.write(first)
        await under_way.wait()
        writer.write(then)
        with suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    for task in protocol.tasks:
        task.cancel()


@pytest.mark.parametrize("then", [b"\0\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n"])
async def test_what_comes_with_garbage_in_one_piece_is_refused_and_not_begun(then: bytes) -> None:
    begun = asyncio.Event()
    _, reader, writer = await spoken_to(begun)
    async with asyncio.timeout(20):
        writer.write(b"DELETE /k HTTP/1.1\r\nHost: x\r\n\r\n" + then)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    assert not begun.is_set()
    writer.close()


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["the short way", "the long way"])
async def test_what_is_cut_off_when_the_server_stops_is_told_as_unknown(more: bytes) -> None:
    """A server whose time to stop is up cancels what is under way: what was sent to the store may come to be."""
    begun = asyncio.Event()

    async def stands_still(_request: object = None) -> Reply:
        begun.set()
        await asyncio.sleep(60)
        raise AssertionError("it is cancelled before")

    async def nothing_else(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError("there is one handler for all")

    app = ThinApp(lambda _method, _path: stands_still, nothing_else)
    protocol, reader, writer = await connected(app, hot=lambda _path, _body: stands_still())
    async with asyncio.timeout(20):
        writer.write(_post("k").replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n", 1))
        await begun.wait()
        protocol.shutdown()
        for task in list(protocol.tasks):
            task.cancel()
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"OUTCOME_UNKNOWN"' in answer
    writer.close()


async def spoken_to(begun: asyncio.Event) -> tuple[ShortWayProtocol, asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to an app that tells when it has begun, and answers nothing."""

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        begun.set()
        await asyncio.sleep(60)

    return await connected(app, hot=lambda _path, _body: None)


async def connected(app: App, hot: Hot) -> tuple[ShortWayProtocol, asyncio.StreamReader, asyncio.StreamWriter]:
    ours, theirs = socket.socketpair()
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
    protocol = ShortWayProtocol(config, ServerState(), {}, hot=hot)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, theirs)
    return protocol, *await asyncio.open_connection(sock=ours)
