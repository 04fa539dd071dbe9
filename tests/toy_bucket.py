"""A tiny S3 server for the tests of the probe: it can be told which conditions to ignore, or (`"… at the end"`) to look
at them first only, and to write later; or to take one write a second to a name (`"haste"`), as Google's does. It keeps
no promise else."""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ignored: ClassVar[frozenset[str]] = frozenset()
    held: ClassVar[dict[str, bytes]] = {}
    written: ClassVar[dict[str, float]] = {}
    lock: ClassVar[threading.Lock] = threading.Lock()

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            there = self.held.get(self._key)
            if not self._allows(there):
                self._answer(412)
                return
            if "haste" in self.ignored and time.monotonic() < self.written.get(self._key, 0.0) + 1.0:
                self._answer(429)
                return
            self.written[self._key] = time.monotonic()
            if not self._looks_first:
                self.held[self._key] = data
        if self._looks_first:
            time.sleep(0.05)
            self.held[self._key] = data
        self._answer(200, etag=_etag(data))

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._list(query["prefix"][0])
            return
        data = self.held.get(self._key)
        if data is None:
            self._answer(404)
        elif (wanted := self.headers["Range"]) is None:
            self._answer(200, data, _etag(data))
        else:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            part = data[first : last + 1]
            self._answer(206, part, _etag(data), f"bytes {first}-{first + len(part) - 1}/{len(data)}")

    def do_DELETE(self) -> None:
        self.held.pop(self._key, None)
        self._answer(204)

    def do_POST(self) -> None:  # a bulk delete, which is how obstore deletes
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"<DeleteResult></DeleteResult>")

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path.split("/", 2)[2])

    @property
    def _looks_first(self) -> bool:
        return any(f"{name.title()} at the end" in self.ignored for name in self.headers)

    def _allows(self, there: bytes | None) -> bool:
        if "If-None-Match" not in self.ignored and self.headers["If-None-Match"] == "*" and there is not None:
            return False
        wanted = self.headers["If-Match"]
        if "If-Match" in self.ignored or wanted is None:
            return True
        if there is None:
            return "If-Match of nothing" in self.ignored
        return "If-Match of another" in self.ignored or wanted == _etag(there)

    def _list(self, prefix: str) -> None:
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
            f"<ETag>{escape(_etag(data))}</ETag><Size>{len(data)}</Size></Contents>"
            for key, data in sorted(self.held.items())
            if key.startswith(prefix)
        )
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode())

    def _answer(self, status: int, data: bytes = b"", etag: str = "", part: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if etag:
            self.send_header("ETag", etag)
        if part:
            self.send_header("Content-Range", part)
        self.end_headers()
        self.wfile.write(data)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        return


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


@contextlib.contextmanager
def toy_bucket(*ignored: str) -> Iterator[str]:
    """Its endpoint."""

    class Handler(_Handler):
        pass

    Handler.ignored, Handler.held, Handler.written = frozenset(ignored), {}, {}

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
