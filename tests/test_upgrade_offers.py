"""A request that offers another protocol (`Upgrade: h2c`, as Java's own client does with each) is served as it stands:
its body is its body, and what follows is the next request."""

import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from tests.servers import Server

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
LENGTH = (b"Content-Length: 5\r\n", b"hello")
CHUNKS = (b"Transfer-Encoding: chunked\r\n", b"2\r\nhe\r\n3\r\nllo\r\n0\r\nX-Late: yes\r\n\r\n")
LIVE = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def exchange(server: Server, *pieces: bytes) -> list[bytes]:
    """Send the pieces one by one over one connection; the statuses of what came back until it was closed."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.05)
        received = b""
        while part := connection.recv(65536):
            received += part
    return [answer.split(b" ")[0] for answer in received.split(b"HTTP/1.1 ")[1:]]


def put(key: str, framing: bytes, offer: bytes = OFFER) -> bytes:
    return b"PUT /v1/resources/objects/%b HTTP/1.1\r\nHost: x\r\nFencing-Token: 7\r\n%b%b\r\n" % (
        key.encode(),
        offer,
        framing,
    )


@pytest.mark.parametrize(("framing", "body"), [LENGTH, CHUNKS], ids=["length", "chunks"])
def test_its_body_is_written_however_it_is_cut(
    server: Server, http: httpx.Client, framing: bytes, body: bytes, request: pytest.FixtureRequest
) -> None:
    for cut in (-20, -1, 0, 1, len(body) - 1):
        key = f"offer-{request.node.callspec.id}-{cut}"
        head = put(key, framing)
        whole, at = head + body + LIVE, len(head) + cut
        assert exchange(server, whole[:at], whole[at:]) == [b"201", b"200"], cut
        assert http.get(f"/v1/resources/objects/{key}").text == "hello", cut


@pytest.mark.parametrize(("framing", "body"), [LENGTH, CHUNKS], ids=["length", "chunks"])
def test_its_body_is_written_when_the_connection_ends_with_it(
    server: Server, http: httpx.Client, framing: bytes, body: bytes, request: pytest.FixtureRequest
) -> None:
    for number, offer in enumerate((b"Connection: close\r\n" + OFFER, OFFER.replace(b"Upgrade,", b"close, Upgrade,"))):
        key = f"offer-last-{request.node.callspec.id}-{number}"
        head = put(key, framing, offer)
        assert exchange(server, head, body) == [b"201"]
        assert exchange(server, head + body + put(f"{key}-behind", b"Content-Length: 1\r\n", b"") + b"x") == [b"204"]
        assert http.get(f"/v1/resources/objects/{key}").text == "hello"
        assert http.get(f"/v1/resources/objects/{key}-behind").status_code == 404


@pytest.mark.parametrize("offer", [OFFER, b"Connection: upgrade\r\nUpgrade: websocket\r\n"])
def test_its_body_is_never_a_request(server: Server, http: httpx.Client, offer: bytes) -> None:
    hidden = put("hidden-in-an-offer", b"Content-Length: 1\r\n", b"") + b"x"
    head = put("offer-hides", b"Content-Length: %d\r\n" % len(hidden), offer)
    assert exchange(server, head, hidden, LIVE)[1:] == [b"200"]
    assert http.get("/v1/resources/objects/hidden-in-an-offer").status_code == 404


def test_one_without_a_body_is_answered_and_so_is_what_comes_behind_it(server: Server) -> None:
    asked = b"GET /livez HTTP/1.1\r\nHost: x\r\n" + OFFER + b"\r\n"
    nothing = asked.replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n")
    assert exchange(server, asked + nothing + asked, nothing + LIVE) == [b"200"] * 5


def test_a_length_that_can_be_read_in_two_ways_is_refused(server: Server, http: httpx.Client) -> None:
    for framing in (b"Transfer-Encoding: chunked, gzip\r\n", LENGTH[0] + CHUNKS[0], LENGTH[0] + LENGTH[0]):
        assert exchange(server, put("offer-in-two-ways", framing) + b"5\r\nhello\r\n0\r\n\r\n") == [b"400"]
    assert http.get("/v1/resources/objects/offer-in-two-ways").status_code == 404


def test_the_terms_of_a_lock_are_not_lost(server: Server, http: httpx.Client) -> None:
    body = b'{"mode": "shared", "ownerId": "java"}'
    head = b"POST /v1/locks/offer:terms/acquire HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n"
    assert exchange(server, head % (OFFER, len(body)), body, LIVE) == [b"200", b"200"]
    held = http.get("/v1/locks/offer:terms").json()
    assert (held["mode"], held["ownerId"]) == ("shared", "java")
