"""A tiny S3 server for the tests of the probe: it can be told which conditions to ignore. It keeps no promise else."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ignored: ClassVar[frozenset[str]] = frozenset()
    held: ClassVar[dict[str, bytes]] = {}
    lock: ClassVar[threading.Lock] = threading.Lock()

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            there = self.held.get(self._key)
            if not self._allows(there):
                self._answer(412)
                return
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
        else:
            self._answer(200, data, _etag(data))

    def do_DELETE(self) -> None:
        self.held.pop(self._key, None)
        self._answer(204)

    def do_POST(self) -> None:  # a bulk delete, which is how obstore deletes
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"<DeleteResult></DeleteResult>")

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path.split("/", 2)[2])

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

    def _answer(self, status: int, data: bytes = b"", etag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if etag:
            self.send_header("ETag", etag)
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

    Handler.ignored, Handler.held = frozenset(ignored), {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
