"""Measures a hand-over: from the moment a holder sends its release until the next one has its lock in hand.

So many clients wait for one lock, each on a connection of its own. The holder releases, and queues up again once it
was told so; the next release comes when all of them wait again, so that every hand-over meets the same queue.
"""

import asyncio
import json
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from bench.arm import Sample
from bench.wrk import Cycle

WARMUP = 3
"""So many hand-overs don't count."""
PATIENCE_S = 60.0

CountWaiting = Callable[[], int]
"""How many wait for the lock now, as the server knows it."""


class _Failed(Exception):
    """An answer that is no cycle, or none at all."""


class _Client:
    """One connection, and the cycle that is sent over it."""

    def __init__(self, cycle: Cycle, token_field: str) -> None:
        self._cycle = cycle
        self._token_field = token_field
        self._token = ""

    async def connect(self, host: str, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection(host, port)

    def ask(self) -> None:
        self._send(self._cycle.acquire_path, self._cycle.acquire_body)

    def release(self) -> None:
        self._send(self._cycle.release_path, self._cycle.release_body.replace("%TOKEN%", self._token))

    def _send(self, path: str, body: str) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write((head + body).encode())

    async def held_at_s(self) -> float:
        """Read the answer to an acquire; when it came."""
        body = await self._answer("acquire")
        now_s = time.perf_counter()
        self._token = str(json.loads(body).get(self._token_field, ""))
        if not self._token:
            raise _Failed(f"acquire: no {self._token_field} in {body[:300]!r}")
        return now_s

    async def released(self) -> None:
        await self._answer("release")

    async def _answer(self, call: str) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        names = (line.partition(b":") for line in head.lower().split(b"\r\n"))
        length = next((int(value) for name, _, value in names if name == b"content-length"), 0)
        body = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200 "):
            raise _Failed(f"{call}: {head[9:12].decode()} {body[:300]!r}")
        return body

    def close(self) -> None:
        self._writer.close()


def run_handovers(
    url: str, cycles: Sequence[Cycle], token_field: str, count_waiting: CountWaiting, seconds: float
) -> Sample:
    """The first of these clients takes the lock, the others wait; then it goes round for so long."""
    run = _Run(cycles, token_field, count_waiting)
    cpu_s, started_s = time.process_time(), time.perf_counter()
    try:
        asyncio.run(run.go(url, seconds))
    except (_Failed, OSError, EOFError, TimeoutError) as error:
        run.errors.append(f"{type(error).__name__}: {error}")
    elapsed_s = time.perf_counter() - started_s
    return Sample(
        cycles=run.latencies_us.total(),
        cycles_per_s=run.latencies_us.total() / elapsed_s,
        errors=len(run.errors),
        first_error=run.errors[0] if run.errors else "",
        latencies_us={"hand-over": run.latencies_us},
        load_cpu=(time.process_time() - cpu_s) / elapsed_s / (os.cpu_count() or 1),
    )


class _Run:
    def __init__(self, cycles: Sequence[Cycle], token_field: str, count_waiting: CountWaiting) -> None:
        self._clients = [_Client(cycle, token_field) for cycle in cycles]
        self._count_waiting = count_waiting
        self._held: dict[asyncio.Task[float], _Client] = {}
        self.latencies_us: Counter[int] = Counter()
        self.errors: list[str] = []

    async def go(self, url: str, seconds: float) -> None:
        address = urlsplit(url)
        _allow_open_files(len(self._clients) + 100)
        try:
            for client in self._clients:
                await client.connect(str(address.hostname), int(address.port or 0))
            holder = self._clients[0]
            holder.ask()
            await asyncio.wait_for(holder.held_at_s(), PATIENCE_S)
            for client in self._clients[1:]:
                self._wait(client)
            await self._until_waiting(len(self._clients) - 1)
            end_s = time.perf_counter() + seconds
            turn = 0
            while turn <= WARMUP or time.perf_counter() < end_s:
                holder = await self._hand_over(holder, counts=turn >= WARMUP)
                turn += 1
        finally:
            for waiting in self._held:
                waiting.cancel()
            for client in set(self._held.values()):
                client.close()
        await self._until_waiting(0)  # so that the next run does not meet those who leave this one
        holder.release()
        await asyncio.wait_for(holder.released(), PATIENCE_S)
        holder.close()

    def _wait(self, client: _Client) -> None:
        client.ask()
        self._held[asyncio.create_task(client.held_at_s())] = client

    async def _hand_over(self, holder: _Client, *, counts: bool) -> _Client:
        """Release, and see who gets it."""
        released_s = time.perf_counter()
        holder.release()
        done, _ = await asyncio.wait(self._held, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if len(done) != 1:
            raise _Failed(f"after a release {len(done)} got the lock")
        (first,) = done
        successor = self._held.pop(first)
        latency_us = int((first.result() - released_s) * 1e6)
        if counts:
            self.latencies_us[latency_us] += 1
        await asyncio.wait_for(holder.released(), PATIENCE_S)
        self._wait(holder)
        await self._until_waiting(len(self._held))
        return successor

    async def _until_waiting(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await asyncio.to_thread(self._count_waiting) != count:
                await asyncio.sleep(0.002)


def _allow_open_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
