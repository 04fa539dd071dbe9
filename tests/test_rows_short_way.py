"""A row that is written by one plain request goes the short way, and nobody can tell it from the long one."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fencegate.serve.protocol import plain_write
from tests.servers import MakeServer, Server

_PLAIN = b'PATCH /v1/resources/notes/a HTTP/1.1\r\nHost: x\r\nFencing-Token:  7 \r\nContent-Length: 7\r\n\r\n{"n":1}'


def test_a_plain_write_is_recognised_with_its_headers() -> None:
    headers = [(b"host", b"x"), (b"fencing-token", b"7"), (b"content-length", b"7")]
    assert plain_write(_PLAIN) == ("PATCH", b"/v1/resources/notes/a", headers, b'{"n":1}')
    assert plain_write(_PLAIN.replace(b"PATCH", b"PUT")) is not None


@pytest.mark.parametrize(
    "data",
    [
        _PLAIN[:-1],
        _PLAIN + b"x",
        _PLAIN + _PLAIN,
        _PLAIN.replace(b"Length: 7", b"Length: 7\r\nContent-Length: 7"),
        _PLAIN.replace(b"Host: x", b"Transfer-Encoding: chunked"),
        _PLAIN.replace(b"Host: x", b"Connection: close"),
        _PLAIN.replace(b"Host: x", b"Connection: Fencing-Token"),
        _PLAIN.replace(b"Host: x", b"Expect: 100-continue"),
        _PLAIN.replace(b"Host: x", b"Host: x\r\n\tfolded"),
        _PLAIN.replace(b"Host: x", b"Ho st: x"),
        _PLAIN.replace(b"/a HTTP", b"/a?x=1 HTTP"),
        _PLAIN.replace(b"/v1/resources/", b"/v1/fences/"),
        _PLAIN.replace(b"PATCH", b"DELETE"),
        _PLAIN.replace(b"\r\n", b"\n"),
    ],
)
def test_whatever_is_not_plain_goes_the_long_way(data: bytes) -> None:
    assert plain_write(data) is None


def request(method: str, path: str, token: str, body: str, *headers: str) -> bytes:
    lines = [f"{method} /v1/resources/{path} HTTP/1.1", "Host: x", *headers, f"Content-Length: {len(body)}"]
    lines += [f"Fencing-Token: {token}"] if token else []
    return ("\r\n".join(lines) + f"\r\n\r\n{body}").encode()


def answer(server: Server, data: bytes) -> tuple[bytes, set[bytes], bytes]:
    """The status, the headers but for the date, and the body of the one answer."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(data)
        told = connection.makefile("rb")
        status = told.readline()
        headers = set()
        while (line := told.readline()) not in (b"\r\n", b""):
            headers.add(line.lower())
        length = next((int(line.split(b":")[1]) for line in headers if line.startswith(b"content-length")), 0)
        return status, {line for line in headers if not line.startswith(b"date")}, told.read(length)


def test_both_ways_give_the_same_answers(make_server: MakeServer, tmp_path: Path) -> None:
    config = tmp_path / "fencegate.toml"
    config.write_text(f"[resources.notes]\nurl = 'sqlite:///{tmp_path}/notes.db'\n")
    server = make_server("data", "--role", "gateway", "--config", str(config))
    wishes = "Prefer: return=representation"
    cases = [
        ("PUT", "a", "7", '{"n":1}', ()),
        ("PUT", "a", "7", '{"n":1}', (wishes,)),
        ("PATCH", "a", "7", '{"n":null,"m":"x"}', (wishes,)),
        ("PATCH", "a", "6", '{"n":2}', ()),
        ("PATCH", "a", "", '{"n":2}', ()),
        ("PATCH", "a", "x", '{"n":2}', ()),
        ("PATCH", "a", "7", "{", ()),
        ("PATCH", "a", "7", "[]", ()),
        ("PATCH", "none", "7", '{"n":2}', ()),
        ("PUT", "a", "7", '{"n":2}', ("If-None-Match: *",)),
        ("PUT", "a", "7", '{"n":2}', ("Fencing-Lock: other",)),
        ("PUT", "a/../b", "7", '{"n":2}', ()),
        ("PUT", "%2e%2e", "7", '{"n":2}', ()),
    ]
    for method, key, token, body, headers in cases:
        # Each in a place of its own for each way, so that what one wrote does not change what the other is told.
        for prefix in ("", "x"):
            seed = request("PUT", f"notes/short{prefix}/a", "7", '{"n":0}')
            assert answer(server, seed)[0] in (b"HTTP/1.1 201 Created\r\n", b"HTTP/1.1 204 No Content\r\n")
        short = request(method, f"notes/short/{key}", token, body, *headers)
        long = request(method, f"notes/shortx/{key}", token, body, *headers, "TE: trailers")
        assert plain_write(short) is not None
        assert plain_write(long) is None
        taken, other = answer(server, short), answer(server, long)
        assert taken[0] == other[0], (method, key, token, body, headers)
        assert {_same(line) for line in taken[1]} == {_same(line) for line in other[1]}
        assert _same(taken[2]) == _same(other[2])


def _same(text: bytes) -> bytes:
    """Without the place, which tells the two ways apart, and what its length does to other lengths."""
    without = text.replace(b"shortx/", b"short/")
    return b"content-length" if without.startswith(b"content-length") else without
