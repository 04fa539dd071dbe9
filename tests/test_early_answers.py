"""Who is refused while still sending reads the answer to its end: a connection that is closed with bytes unread is
reset, and the answer may be lost with it."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import cast

import pytest
import uvloop

from fencegate.serve.outgoing import Outgoing
from tests.resources.gateways import raw
from tests.servers import Server

_BODY = b"Fencing-Token: 07\r\nConnection: close\r\nContent-Length: 2000000\r\n\r\n"
EARLY = {
    "a head that is no request": b"NONSENSE\r\n",
    "headers without an end": b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % number for number in range(300)),
    "a body that nobody wants": b"PUT /v1/resources/objects/early HTTP/1.1\r\nHost: x\r\n" + _BODY,
}
PIECE = b"x" * 10_000


@pytest.mark.parametrize("request_", EARLY.values(), ids=EARLY)
def test_who_goes_on_sending_reads_the_answer_to_its_end(server: Server, request_: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=20) as connection:
        connection.sendall(request_)
        for _ in range(10):
            time.sleep(0.02)
            connection.sendall(PIECE)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"}")


def test_who_goes_on_for_ever_is_cut_off(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=20) as connection:
        connection.sendall(b"NONSENSE\r\n")
        began_s = time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() < began_s + 20:
                connection.sendall(PIECE)
                time.sleep(0.01)


def test_a_head_of_many_headers_is_answered(server: Server) -> None:
    head = b"PUT /v1/resources/rows/early HTTP/1.1\r\nFencing-Token: 7\r\n"
    lines = b"".join(b"X-%d: 1\r\n" % number for number in range(10_000))
    for _ in range(50):
        assert raw(server, head + lines + b"\r\n").startswith(b"HTTP/1.1 400 ")


class _Early(asyncio.Protocol):
    """Answers a caller who is gone, of whom not all is read yet."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.pause_reading()

    def answer(self) -> None:
        outgoing = Outgoing(self.transport, asyncio.get_running_loop(), lambda: True)
        outgoing.write(b"an answer")
        outgoing.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_a_caller_who_is_gone_before_the_answer_leaves_no_connection_behind(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        theirs, ours = _connected()
        ours.setblocking(False)
        _, protocol = await loop.connect_accepted_socket(_Early, ours)
        theirs.sendall(PIECE)
        theirs.close()
        protocol.answer()
        await asyncio.wait_for(protocol.lost, 20)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(play())


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return socket.create_connection(listening.getsockname()), listening.accept()[0]
