"""The store of `toy_server.py`, and that server as a process: what the fault suite itself is tried on."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fencegate.clock import Clock
from fencegate.core.ports import (
    Ambiguous,
    Capabilities,
    Change,
    Changes,
    Conflict,
    Entry,
    Finding,
    Interval,
    LogEntry,
    TooLate,
    Unavailable,
)
from fencegate_lockservice.stores.following import Following
from fencegate_lockservice.stores.server_time import ServerTime
from tests.servers import kept_address

ANSWER_WITHIN_S = 3.0
DEFECTS = ("says-yes-when-cut-off", "waits-for-ever", "says-unavailable-when-unanswered", "is-ahead-of-time")
AHEAD_US = 600_000


class ToyServer:
    """See `FaultyServer` of the fault suite."""

    def __init__(self, folder: Path, defect: str = "") -> None:
        self._stack = ExitStack()
        self._journal = folder / "journal"
        self._defect = defect
        self.port = int(self._stack.enter_context(kept_address()).rpartition(":")[2])

    def start(self) -> None:
        run = [sys.executable, "-m", "tests.toy_server", str(self.port), str(self._journal), self._defect]
        self.process = subprocess.Popen(run)
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=30).close()
                return
            except OSError:
                assert self.process.poll() is None
                assert time.monotonic() < end, "it does not answer"
                time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._stack.close()


class ToyStore:
    """One connection, made anew by whoever finds it broken. Not quick, and not meant to be."""

    name = "toy"
    capabilities = Capabilities()

    def __init__(self, address: str, clock: Clock, defect: str = "") -> None:
        self._address = address
        self._clock = clock
        self._defect = defect
        self._time = ServerTime(clock, "the toy server")
        self._following = Following(self._tail, self._newest, self._read_log)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._is_down = False
        self._broken: asyncio.StreamWriter | None = None
        self._closed = False

    async def open(self) -> None:
        await self._newest()

    async def inspect(self) -> Sequence[Finding]:
        return []

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        found = await self._ask("load", list(keys))
        return {key: Entry(version, value.encode()) for key, (version, value) in found.items()}

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        raw = [(c.key, c.expected, c.version, c.value.decode() if c.value else None, c.compare_only) for c in changes]
        try:
            verdict = await self._ask("commit", raw, [(key, event.decode()) for key, event in log], not_after_us)
        except Unavailable:
            if self._defect == "says-yes-when-cut-off":
                return
            raise
        if verdict != "done":
            raise TooLate if verdict == "late" else Conflict

    def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        return self._following.changes(since)

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        found = await self._ask("scan", prefix, after, limit)
        return [(key, Entry(version, value.encode())) for key, (version, value) in found]

    def now(self) -> Interval | None:
        now = self._time.now()
        if self._defect == "is-ahead-of-time":
            return Interval(now.earliest + AHEAD_US, now.latest + AHEAD_US)
        return now

    async def close(self) -> None:
        self._closed = True
        await self._following.close()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        self._break(self._writer)

    # --- the log ---

    async def _tail(self, since: int) -> AsyncIterator[Sequence[LogEntry] | None]:
        while True:
            lines = await self._read_log(since, 0)
            if lines:
                since = lines[-1].revision
                yield lines
            await asyncio.sleep(0.01)

    async def _newest(self) -> int:
        newest: int = await self._ask("newest")
        return newest

    async def _read_log(self, since: int, _limit: int) -> Sequence[LogEntry]:
        return [LogEntry(r, n, key, event.encode()) for r, n, key, event in await self._ask("log", since)]

    # --- the line ---

    async def _ask(self, verb: str, *arguments: Any) -> Any:
        """While the line is down this fails at once; meanwhile it is being made anew."""
        if self._closed:
            raise Unavailable("the store is closed")
        if self._writer is None:
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.ensure_future(self._connect())
                self._connecting.add_done_callback(lambda done: done.cancelled() or done.exception())
            if self._is_down:
                raise Unavailable("the toy server can't be reached")
            await asyncio.shield(self._connecting)
        assert self._writer is not None
        return await self._send(self._writer, verb, *arguments)

    async def _send(self, writer: asyncio.StreamWriter, verb: str, *arguments: Any) -> Any:
        self._number += 1
        future = self._answers[self._number] = asyncio.get_running_loop().create_future()
        sent_us = self._clock.monotonic_us()
        writer.write(json.dumps([self._number, verb, arguments]).encode() + b"\n")
        try:
            async with asyncio.timeout(None if self._defect == "waits-for-ever" else ANSWER_WITHIN_S):
                at_us, result = await asyncio.shield(future)
        except (TimeoutError, ConnectionError):
            self._break(writer)
            is_unknown = verb == "commit" and self._defect != "says-unavailable-when-unanswered"
            raise (Ambiguous if is_unknown else Unavailable)("no answer") from None
        self._time.heard(sent_us, at_us)
        return result

    async def _connect(self) -> None:
        host, _, port = self._address.rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
        except OSError as error:
            self._is_down = True
            raise Unavailable(f"the toy server can't be reached: {error}") from None
        self._reading = asyncio.ensure_future(self._read(reader, writer))
        await self._send(writer, "newest")
        self._writer, self._is_down = writer, False

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                number, at_us, result = json.loads(line)
                future = self._answers.pop(number, None)
                if future is not None and not future.done():
                    future.set_result((at_us, result))
        except ConnectionError:
            pass
        finally:
            self._break(writer)

    def _break(self, writer: asyncio.StreamWriter | None) -> None:
        """Let go of a line: whoever waits for an answer on it won't get one."""
        if writer is None or writer is self._broken:
            return
        self._broken = writer
        answers, self._answers = self._answers, {}
        for future in answers.values():
            if not future.done():
                future.set_exception(ConnectionError("the line broke"))
                future.exception()
        writer.transport.abort()
        if self._writer is writer:
            self._writer, self._is_down = None, True
