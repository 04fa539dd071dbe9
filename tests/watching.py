"""Reading `/v1/watch` in tests, by a reader that shares nothing with the client's."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Told:
    """One event of a stream; `kind` is empty for a block with an id only."""

    kind: str
    id: int
    data: dict[str, Any]


def blocks(response: httpx.Response) -> Iterator[Told]:
    """What a stream tells, comments left out."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
            continue
        if "id" in fields:
            yield Told(fields.get("event", ""), int(fields["id"]), json.loads(fields.get("data", "{}")))
        fields = {}


@contextmanager
def watching(url: str, last_id: int | None = None, **query: str | int) -> Iterator[Iterator[Told]]:
    """A stream that has begun, without its opening."""
    headers = {} if last_id is None else {"Last-Event-ID": str(last_id)}
    with httpx.stream("GET", f"{url}/v1/watch", params=query, headers=headers, timeout=30) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield blocks(response)


def events(stream: Iterator[Told], count: int) -> list[Told]:
    """The next `count` events."""
    found: list[Told] = []
    while len(found) < count:
        told = next(stream)
        if told.kind:
            found.append(told)
    return found


def deaf_watcher(url: str, **query: str) -> socket.socket:
    """A connection that asked to watch, has read the head of the answer, and reads no more."""
    address = httpx.URL(url)
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.settimeout(30)
    deaf.connect((address.host, address.port or 80))
    asked = str(httpx.QueryParams(query))
    deaf.sendall(f"GET /v1/watch?{asked} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head = b""
    while b"\nid: " not in head:
        head += deaf.recv(256)
    return deaf
