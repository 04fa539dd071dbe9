"""A connection on which no request comes to be is not kept for ever, however slowly one goes on."""

import asyncio
from contextlib import suppress

import pytest

from fencegate.serve import protocol
from fencegate.web.asgi import Receive, Scope, Send
from tests.test_short_way import connected, spoken_to


@pytest.mark.parametrize(
    ("first", "drip"),
    [(b"DELETE /k HTTP/1.1\r\nHost: x\r\n", b"X: y\r\n"), (b"DEL", b"E"), (b"\r\n", b"\r\n"), (b"", b"")],
    ids=["a head", "a method", "empty lines", "nothing"],
)
async def test_a_head_that_does_not_end_in_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch, first: bytes, drip: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.5)
    begun = asyncio.Event()
    server, reader, writer = await spoken_to(begun)
    assert server.timeout_keep_alive == 5  # the time for a first byte, and between two requests
    async with asyncio.timeout(30):
        writer.write(first)
        ended = asyncio.ensure_future(reader.read())
        while not ended.done():
            with suppress(ConnectionError):
                writer.write(drip)
            await asyncio.wait([ended], timeout=0.1)
    assert not begun.is_set()
    writer.close()


async def test_a_request_that_is_under_way_is_not_cut_off_by_the_time_for_its_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.2)
    begun = asyncio.Event()
    server, reader, writer = await spoken_to(begun)
    for piece in (b"PUT /k HTTP/1.1\r\n", b"Host: x\r\nContent-Length: 3\r\n\r\n", b"a", b"b"):
        writer.write(piece)
        await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        await begun.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.6):
            await reader.read()
    assert not server.transport.is_closing()
    writer.close()
    for task in server.tasks:
        task.cancel()


async def test_the_rest_of_a_body_that_was_answered_early_is_taken_while_it_comes_and_not_waited_for_for_ever() -> None:
    async def refuses(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 412, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    server, reader, writer = await connected(refuses, hot=lambda _path, _body: None)
    server.timeout_keep_alive = 1
    async with asyncio.timeout(30):
        writer.write(b"PUT /k HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 412 ")
        for _ in range(15):
            writer.write(b"x")
            await asyncio.sleep(0.1)
        assert not server.transport.is_closing()
        assert await reader.read() == b""
    writer.close()
