"""One member of an etcd cluster: the line to it for calls, lines of their own for watches, and plain HTTP beside."""

import asyncio
import ssl

from fencegate_lockservice.stores.etcd import headers
from fencegate_lockservice.stores.etcd.grpc import CONNECT_WITHIN_S, Connection, NotSent
from fencegate_lockservice.stores.etcd.url import Settings

MAX_PAGE = 16 * 1024 * 1024


class Endpoint:
    """See the head of this file."""

    def __init__(self, host: str, port: int, settings: Settings) -> None:
        self._host = host
        self._port = port
        self._settings = settings
        self._calls: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._open: set[Connection] = set()
        self.name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.trouble: Exception | None = None
        """Why nothing is sent to it for now."""

    def head(self, path: str, token: str) -> bytes:
        """The headers of a call. Without a leader it is refused at once, and not after a long wait."""
        login = headers.encoded(b"token", token.encode()) if token else b""
        return (
            (b"\x83\x87" if self._settings.tls else b"\x83\x86")  # POST, https or http
            + headers.encoded_at(4, path.encode())
            + headers.encoded_at(1, self.name.encode())
            + headers.encoded(b"te", b"trailers")
            + headers.encoded(b"content-type", b"application/grpc")
            + headers.encoded(b"hasleader", b"true")
            + login
        )

    @property
    def ready(self) -> Connection | None:
        """The line for calls, if there is one."""
        return self._calls if self._calls is not None and self._calls.alive else None

    async def line(self) -> Connection:
        """The same, made when there is none. NotSent when there is none to be had."""
        if (ready := self.ready) is not None:
            return ready
        if self._connecting is None or self._connecting.done():  # one try for all who ask meanwhile
            self._connecting = asyncio.get_running_loop().create_task(self.connect())
            self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        connecting = self._connecting
        try:
            self._calls = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():  # and not we
                raise NotSent("the store was closed") from None
            raise
        return self._calls

    async def connect(self) -> Connection:
        """A line of one's own."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._open.discard), self._host, self._port, ssl=self._settings.tls
                )
        except TimeoutError:
            raise NotSent(f"etcd at {self.name} does not answer") from None
        except (OSError, ssl.CertificateError) as error:
            raise NotSent(f"etcd at {self.name} can't be reached: {error}") from None
        self._open.add(connection)
        return connection

    async def get(self, path: str) -> tuple[dict[str, str], bytes]:
        """Headers and body of a page. NotSent when it can't be had."""
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, ssl=self._settings.tls_for_pages, limit=MAX_PAGE
                )
                try:
                    request = f"GET {path} HTTP/1.1\r\nHost: {self.name}\r\nConnection: close\r\n\r\n"
                    writer.write(request.encode())
                    head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError) as error:
            raise NotSent(f"etcd at {self.name} shows no page: {error}") from None
        lines = head.decode("latin-1").split("\r\n")
        named = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if " 200 " not in f"{lines[0]} ":
            raise NotSent(f"etcd at {self.name} shows no page: {lines[0]}")
        return named, body

    def cut(self, why: str) -> None:
        """Cut every line to it."""
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self._open):
            connection.fail(why)
