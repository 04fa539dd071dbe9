"""Callers of HTTP/1.0 know neither chunks nor 100 Continue: an answer without a length ends with its connection, and
one that broke off must not look whole."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from fencegate.serve.protocol import ShortWayProtocol
from fencegate.web.asgi import App, Receive, Scope, Send
from tests.resources.gateways import raw
from tests.resources.test_upstream_faults import Stage, stage, start  # noqa: F401  (fixtures)
from tests.servers import Server

_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_READ = b"GET /v1/resources/api/k HTTP/1.0\r\n\r\n"


async def _ask(gateway: Server, request: bytes = _READ) -> tuple[bytes, bytes]:
    answer = await asyncio.to_thread(raw, gateway, request)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"\r\nconnection: close" in head
    return head, body


async def test_an_answer_of_unknown_length_comes_without_chunks(stage: Stage, start: Callable[..., Server]) -> None:  # noqa: F811
    gateway = start()
    stage.says(_CHUNKED, b"10000\r\n%b\r\n" % (b"x" * 65536), b"3\r\nend\r\n0\r\n\r\n")
    head, body = await _ask(gateway)
    assert b"content-length" not in head
    assert body == b"x" * 65536 + b"end"
    stage.says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert (await _ask(gateway))[1] == b"ok"
    stage.says(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (await _ask(gateway))[1] == b""


async def test_one_that_breaks_off_does_not_look_whole(stage: Stage, start: Callable[..., Server]) -> None:  # noqa: F811
    gateway = start()
    stage.says(_CHUNKED, b"3\r\nabc\r\n")
    with pytest.raises(ConnectionResetError):
        await _ask(gateway)


def test_nobody_is_told_to_continue(server: Server) -> None:
    head = b"PUT /v1/resources/rows/old-caller HTTP/1.0\r\nFencing-Token: 7\r\nExpect: 100-continue\r\n"
    assert raw(server, head + b"Content-Length: 2\r\n\r\n{}").startswith(b"HTTP/1.1 201 ")


async def test_events_come_as_they_are(server: Server, http: httpx.Client) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(b"GET /v1/watch?key=old-caller HTTP/1.0\r\n\r\n")
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert http.post("/v1/locks/old-caller/acquire", json={}).status_code == 200
        event = await reader.readuntil(b"\n\n")
        while b"acquired" not in event:
            event = await reader.readuntil(b"\n\n")
    assert all(line.startswith((b"id: ", b"event: ", b"data: ")) for line in event.splitlines() if line)
    writer.close()


@asynccontextmanager
async def _served(app: App) -> AsyncIterator[tuple[ShortWayProtocol, asyncio.StreamReader, asyncio.StreamWriter]]:
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
    protocol = ShortWayProtocol(config, ServerState(), {}, hot=lambda _path, _body: None)
    server = await asyncio.get_running_loop().create_server(lambda: protocol, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    async with asyncio.timeout(20):
        yield protocol, reader, writer
    writer.close()
    server.close()


@pytest.mark.parametrize("how", ["fails", "is cut off when the server stops"])
async def test_one_whose_handler_does_not_come_to_its_end_does_not_look_whole_either(how: str) -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a part", "more_body": True})
        if how == "fails":
            raise RuntimeError("as a bug would")
        await asyncio.sleep(60)

    async with _served(app) as (protocol, reader, writer):
        writer.write(_READ)
        await reader.readuntil(b"\r\n\r\n")
        for task in list(protocol.tasks):
            task.cancel()
        with pytest.raises(ConnectionResetError):
            await reader.read()
