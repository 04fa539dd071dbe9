"""Our end of the workers: they are born at the nursery, told to go, stopped, continued and killed; none outlives us."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from fencegate.clock import SYSTEM
from fencegate_demo.events import Paused, Resumed
from fencegate_demo.processes import LOOK_EVERY_S, START_WITHIN_S, Child, is_stopped, started
from fencegate_demo.trials.events import Born, Done, Event, Killed, Stumbled, Told
from fencegate_demo.trials.worker import Part

ANSWER_WITHIN_S = 90.0

_decode = msgspec.json.Decoder(Told).decode


class Worker:
    """One worker's process. What it says is heard as it comes."""

    def __init__(
        self,
        name: str,
        nursery: Child,
        line: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        heard: Callable[[Event], None],
    ) -> None:
        self.name = name
        self._nursery = nursery
        self._reader, self._writer = line
        self._heard = heard
        self._pid = 0
        self._finished = False
        self._gone = False
        self._news = asyncio.Event()

    async def listen(self) -> None:
        """Hear what it says until it is gone."""
        with suppress(ConnectionResetError):
            while line := await self._reader.readline():
                event: Told = _decode(line)
                if isinstance(event, Born):
                    self._pid = event.pid
                self._finished |= isinstance(event, Done | Stumbled)
                self._heard(event)
                self._news.set()
        self._gone = True
        self._news.set()

    async def born(self, part: Part) -> None:
        self._tell(msgspec.json.encode(part))
        await self._until(lambda: self._pid != 0, "was not born", START_WITHIN_S)

    def go(self) -> None:
        self._tell(b"go")

    async def done(self) -> None:
        await self._until(lambda: self._finished, "did not finish")

    async def stops(self) -> None:
        """Wait until it has stopped itself, in the middle of its work."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                while not await is_stopped(self._pid):
                    if self._finished or self._gone:
                        raise self._failure("never came to the line where it was to stop")
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise self._failure(f"was not stopped within {ANSWER_WITHIN_S:g} s") from None
        self._heard(Paused(SYSTEM.monotonic_us(), self.name))

    def resume(self) -> None:
        self._heard(Resumed(SYSTEM.monotonic_us(), self.name))
        os.kill(self._pid, signal.SIGCONT)

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        os.kill(self._pid, signal.SIGKILL)
        await self._until(lambda: self._gone, "did not die")
        self._heard(Killed(SYSTEM.monotonic_us(), self.name))

    def end(self) -> None:
        """However far it is."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._writer.close()

    def _tell(self, line: bytes) -> None:
        self._writer.write(line + b"\n")

    async def _until(self, condition: Callable[[], bool], otherwise: str, within_s: float = ANSWER_WITHIN_S) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    if self._gone:
                        raise self._failure("ended before its part was done")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise self._failure(f"{otherwise} within {within_s:g} s") from None

    def _failure(self, what: str) -> Exception:
        return self._nursery.failure(f"worker {self.name} {what}")


class Nursery:
    """Where workers are born."""

    def __init__(self, process: Child, path: Path) -> None:
        self._process = process
        self._path = path

    async def ready(self) -> None:
        """Wait until it has loaded what its workers need."""
        try:
            async with asyncio.timeout(START_WITHIN_S):
                if await self._process.line() != "ready":
                    raise self._process.failure("did not start")
        except TimeoutError:
            raise self._process.failure(f"was not ready within {START_WITHIN_S:g} s") from None

    @asynccontextmanager
    async def crew(self, parts: Sequence[Part], heard: Callable[[Event], None]) -> AsyncIterator[list[Worker]]:
        """A worker for each part, waiting to be told to go. They are gone when the block is left."""
        workers: list[Worker] = []
        listening: list[asyncio.Task[None]] = []
        try:
            for part in parts:
                line = await asyncio.open_unix_connection(str(self._path))
                worker = Worker(part.name, self._process, line, heard)
                workers.append(worker)
                listening.append(asyncio.create_task(worker.listen()))
                await worker.born(part)
            yield workers
        finally:
            for worker in workers:
                worker.end()
            await asyncio.gather(*listening)


@asynccontextmanager
async def nursery(folder: Path) -> AsyncIterator[Nursery]:
    """One that is being started."""
    path = folder / "nursery"
    async with started("nursery", ("-m", "fencegate_demo.trials.nursery", str(path)), folder) as process:
        yield Nursery(process, path)
