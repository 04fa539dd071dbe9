"""Who is refused while still sending reads the answer to its end: a connection that is closed with bytes unread is reset,
and the answer may be lost with it."""

import socket
import time

import pytest

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
