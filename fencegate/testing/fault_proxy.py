"""A TCP proxy that fails on purpose, to be put between a store and its server.

It forwards connections to one target and runs in a thread of its own, so that it goes on whatever the event loop of a
test does. Its faults are in force when the call returns, for all connections, and last until `pass_()`:

with FaultProxy("127.0.0.1:6379") as proxy:
    store = await open_store(f"redis://{proxy.address}/0")
    proxy.drop()                            # a black hole
    ...
    proxy.pass_()
    proxy.cut_answers(after=b"EVALSHA")     # the commit happens, and its answer never comes
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, Self

Way = Literal["requests", "answers"]
Ways = Literal["both", "requests", "answers"]
CHUNK = 65_536
QUEUED_CHUNKS = 64
SWALLOW_S = 0.05
START_WITHIN_S = 30.0


class FaultProxy:
    """See the head of this file. `address` is where it listens; `cuts` counts the answers that were cut off."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.cuts = 0
        self.to_cut = 0
        self.cut_after = b""
        self.refusing = False
        self.unwanted = b""
        self.delay_s: dict[Way, float] = {"requests": 0.0, "answers": 0.0}
        self.dropping: set[Way] = set()
        self.flowing: dict[Way, asyncio.Event] = {}
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self._thread.start()
        self._call(self._listen())

    def close(self) -> None:
        """Reset every connection, and let go of the port."""
        if self._loop.is_closed():
            return
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_WITHIN_S)
        self._loop.close()

    # --- faults ---

    def pass_(self) -> None:
        """No fault any more. What was held goes on; a connection that lost bytes is reset, for TCP has no holes."""
        self._do(self._heal)

    def delay(self, seconds: float, ways: Ways = "both") -> None:
        """Everything arrives so much later, in order."""

        def do() -> None:
            self.delay_s.update(dict.fromkeys(_ways(ways), seconds))

        self._do(do)

    def hold(self, ways: Ways = "both") -> None:
        """Nothing arrives before `pass_()`, and then all of it does: a line that is down for a while."""

        def do() -> None:
            for way in _ways(ways):
                self.flowing[way].clear()

        self._do(do)

    def drop(self, ways: Ways = "both") -> None:
        """Connections stay open, can be made, and nothing arrives ever: a black hole."""
        self._do(lambda: self.dropping.update(_ways(ways)))

    def cut(self) -> None:
        """Reset every connection, and every new one at once."""

        def do() -> None:
            self.refusing = True
            self._reset_all()

        self._do(do)

    def cut_whoever(self, says: bytes) -> None:
        """Reset every connection whose first bytes hold this, and every new one that begins so; others pass. Where
        members of a cluster say who they are, one of them can be cut off from the rest."""

        def do() -> None:
            self.unwanted = says
            for link in list(self._links):
                if says in link.opening:
                    link.reset()

        self._do(do)

    def reset(self) -> None:
        """Reset every connection, once; new ones pass."""
        self._do(self._reset_all)

    def cut_answers(self, times: int = 1, after: bytes = b"") -> None:
        """Requests pass, and the next answer to one that contains `after` is swallowed and its connection reset; so
        many times, each counted in `cuts`. The server has done what it was asked, and nobody hears of it."""

        def do() -> None:
            self.to_cut, self.cut_after = times, after
            for link in self._links:
                link.marked = not after

        self._do(do)

    def retarget(self, target: str) -> None:
        """Forward to another server from now on, as after a failover: connections to the last one are reset."""

        def do() -> None:
            self.target = target
            self._reset_all()

        self._do(do)

    # --- in the proxy's own thread ---

    def _do(self, what: Callable[[], None]) -> None:
        async def do() -> None:
            what()

        self._call(do())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(START_WITHIN_S)

    async def _listen(self) -> None:
        for way in _ways("both"):
            self.flowing[way] = asyncio.Event()
            self.flowing[way].set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _end(self) -> None:
        self._server.close()
        self._reset_all()
        ours = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not ours]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _heal(self) -> None:
        self.refusing, self.unwanted, self.to_cut = False, b"", 0
        self.dropping.clear()
        self.delay_s = dict.fromkeys(self.delay_s, 0.0)
        for link in list(self._links):
            if link.holed:
                link.reset()
        for flowing in self.flowing.values():
            flowing.set()

    def _reset_all(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, writer)
        self._links.add(link)
        try:
            if not self.refusing:
                await link.carry(reader)
        except (OSError, asyncio.CancelledError):
            pass  # the target can't be reached, or the proxy ends
        finally:
            link.reset()
            self._links.discard(link)


def _ways(ways: Ways) -> tuple[Way, ...]:
    return ("requests", "answers") if ways == "both" else (ways,)


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: FaultProxy, client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._writers = [client]
        self._tail = b""
        self._swallowing = False
        self.holed = False
        self.opening = b""
        self.marked = not proxy.cut_after

    async def carry(self, reader: asyncio.StreamReader) -> None:
        host, _, port = self._proxy.target.rpartition(":")
        answers, server = await asyncio.open_connection(host, int(port))
        client = self._writers[0]
        self._writers.append(server)
        if client.transport.is_closing():  # cut while the target was being reached
            return
        await asyncio.gather(self._flow("requests", reader, server), self._flow("answers", answers, client))

    def reset(self) -> None:
        for writer in self._writers:
            with suppress(OSError):
                sock: socket.socket | None = writer.get_extra_info("socket")
                if sock is not None and sock.fileno() >= 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _flow(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(QUEUED_CHUNKS)
        reading = asyncio.ensure_future(self._read(way, reader, queue))
        try:
            await self._write(way, queue, writer)
        except OSError:
            pass  # that side is gone; what the other one sent before may still arrive
        finally:
            reading.cancel()

    async def _read(
        self, way: Way, reader: asyncio.StreamReader, queue: "asyncio.Queue[tuple[float, bytes | None]]"
    ) -> None:
        """Take bytes as they come; `b""` stands for the end, None for a reset."""
        loop = asyncio.get_running_loop()
        data: bytes | None = b"-"
        while data:
            try:
                data = await reader.read(CHUNK)
            except OSError:
                data = None
            await queue.put((loop.time() + self._proxy.delay_s[way], data))

    async def _write(
        self, way: Way, queue: "asyncio.Queue[tuple[float, bytes | None]]", writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            if (wait_s := due - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            await self._proxy.flowing[way].wait()
            if way in self._proxy.dropping:
                self.holed = True
            elif data is None:
                self.reset()
            elif not (self._passes_request(data) if way == "requests" else self._passes_answer(data)):
                continue
            elif data:
                writer.write(data)
                await writer.drain()
            elif writer.can_write_eof():
                writer.write_eof()
            if not data:
                return

    def _passes_request(self, data: bytes) -> bool:
        if not self.opening:
            self.opening = data
            if self._proxy.unwanted and self._proxy.unwanted in data:
                self.reset()
                return False
        mark = self._proxy.cut_after
        if self._proxy.to_cut and mark and not self.marked:
            seen = self._tail + data
            self.marked = mark in seen
            self._tail = seen[-len(mark) + 1 :] if len(mark) > 1 else b""
        return True

    def _passes_answer(self, data: bytes) -> bool:
        proxy = self._proxy
        if self._swallowing:
            return not data
        if not (data and proxy.to_cut and self.marked):
            return True
        proxy.to_cut -= 1
        proxy.cuts += 1
        self._swallowing = True
        asyncio.get_running_loop().call_later(SWALLOW_S, self.reset)
        return False
