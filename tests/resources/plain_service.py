"""An HTTP service that knows nothing of fences, for tests: `python -m tests.resources.plain_service` prints its port.

It keeps texts under /kv/, remembers in which order writes were applied, and can be told to hold a write (`?hold=NAME`)
until /_release/NAME.
"""

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn

ROOT = Path(__file__).parent.parent.parent

_texts: dict[str, bytes] = {}
_applied: list[list[str]] = []
_released: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
_held: set[str] = set()

Answer = tuple[int, bytes, list[tuple[bytes, bytes]]]


def _etag(text: bytes) -> bytes:
    return b'"%s"' % hashlib.sha256(text).hexdigest()[:16].encode()


def _refused(text: bytes | None, headers: dict[bytes, bytes]) -> bool:
    wanted = headers.get(b"if-match")
    return wanted is not None and (text is None or wanted not in (b"*", _etag(text)))


async def _body(receive: Callable[[], Any]) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the request broke off")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _keep(scope: Any, receive: Any, headers: dict[bytes, bytes], query: dict[str, list[str]]) -> Answer:
    path = scope["raw_path"].decode()
    if scope["method"] in ("GET", "HEAD"):
        text = _texts.get(path)
        return (404, b"nothing", []) if text is None else (200, text, [(b"etag", _etag(text))])
    body = await _body(receive)
    if "hold" in query:
        name = query["hold"][0]
        _held.add(name)
        await _released[name].wait()
        _held.discard(name)
    token = int(headers.get(b"fencing-token", b"0"))
    old = _texts.get(path)
    if _refused(old, headers):
        return 412, b"precondition", []
    if scope["method"] == "DELETE":
        if old is None:
            return 404, b"nothing", []
        del _texts[path]
    else:
        _texts[path] = body
    _applied.append([scope["method"], path, str(token), body[:100].decode("latin-1")])
    return (204, b"", []) if scope["method"] == "DELETE" else (201 if old is None else 200, b"kept", [])


async def _swallow(receive: Any) -> Answer:
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the request broke off")
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    return 200, b"%d" % size, []


async def _answer(scope: Any, receive: Any) -> Answer:
    path, headers = scope["raw_path"].decode(), dict(scope["headers"])
    query = parse_qs(scope["query_string"].decode())
    if path.startswith("/kv/"):
        return await _keep(scope, receive, headers, query)
    if path == "/swallow":
        return await _swallow(receive)
    if path.startswith("/echo"):
        told = {
            "method": scope["method"],
            "path": path,
            "query": scope["query_string"].decode(),
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
            "body": (await _body(receive)).decode("latin-1"),
        }
        return 200, json.dumps(told).encode(), [(b"content-type", b"application/json")]
    if path == "/redirect":
        return 302, b"", [(b"location", b"http://169.254.169.254/latest/meta-data/")]
    if path == "/hop":
        hop = [(b"connection", b"x-secret"), (b"x-secret", b"1"), (b"keep-alive", b"timeout=5"), (b"x-kept", b"1")]
        hop += [(b"proxy-x", b"1")]
        return 200, b"hop", [*hop, (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"fencing-token-highest", b"9")]
    if path.startswith("/private/"):
        return (200 if headers.get(b"authorization") == b"Bearer t" else 401), b"", []
    if path == "/empty":
        return 200, b"", [(b"content-type", b"text/csv")]
    if path == "/_applied":
        return 200, json.dumps(_applied).encode(), []
    if path == "/_held":
        return 200, json.dumps(sorted(_held)).encode(), []
    if path.startswith("/_release/"):
        _released[path.removeprefix("/_release/")].set()
        return 200, b"", []
    return 404, b"no such thing here", []


async def _big(scope: Any, send: Any) -> None:
    left = int(parse_qs(scope["query_string"].decode())["bytes"][0])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while left > 0:
        await send({"type": "http.response.body", "body": b"x" * min(left, 65536), "more_body": True})
        left -= 65536
    await send({"type": "http.response.body", "body": b""})


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["raw_path"] == b"/big":
        await _big(scope, send)
        return
    try:
        status, body, headers = await _answer(scope, receive)
    except ConnectionError:  # a part of a request is none
        return
    length = [] if status == 204 else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})


class PlainService:
    """A running service and its address."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.resources.plain_service"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none")).run(sockets=[listener])


if __name__ == "__main__":
    main()
