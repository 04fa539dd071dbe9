"""Processes that come back: stopped, continued, killed and started again on the same address, by their process id."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fencegate.clock import SYSTEM
from fencegate.core.errors import FencegateError, StoreUnavailable, UnsafeConfiguration
from fencegate_demo.processes import is_stopped, spawn

READY_WITHIN_S = 90.0
TRY_AGAIN_S = 0.3
LAST_WORDS = 500


class Process:
    """One place in the cast: who plays it may be killed, and another takes over. Its children are its group's."""

    def __init__(
        self,
        name: str,
        arguments: Callable[[], Sequence[str]],
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.environment = dict(environment or {})
        self.lives = 0
        self.busy = False
        """Whether a fault is being done to it: one at a time."""
        self._complaints = folder / f"{name}.err"
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    async def begin(self) -> None:
        """The first time: what it can't do now it could not do later either."""
        if not await self._ready({}):
            raise self._refusal()

    async def start(self, **environment: str) -> None:
        """Returns when it says that it is ready. One that can't begin yet (its store is away) is begun anew, as any
        supervisor would do."""
        until_us = SYSTEM.monotonic_us() + int(READY_WITHIN_S * 1e6)
        while not await self._ready(environment):
            if self.code == 2 or SYSTEM.monotonic_us() > until_us:
                raise self._refusal()
            await asyncio.sleep(TRY_AGAIN_S)

    async def _ready(self, environment: Mapping[str, str]) -> bool:
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                return await self._begin(environment)
        except TimeoutError:
            await self.kill()
            why = f"{self.name} was not ready within {READY_WITHIN_S:g} s: {self.last_words()}"
            raise StoreUnavailable(why) from None

    def _refusal(self) -> FencegateError:
        """Its own words, and bad usage stays bad usage."""
        kind = UnsafeConfiguration if self.code == 2 else StoreUnavailable
        return kind(f"{self.name} did not start: {self.last_words()}")

    async def _begin(self, environment: Mapping[str, str]) -> bool:
        self.lives += 1
        with self._complaints.open("ab") as stderr:
            self._process = await spawn(self.arguments(), stderr, {**self.environment, **environment})
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.strip() == b"ready":
                self._listening = asyncio.ensure_future(_drain(self._process.stdout))
                return True
        await self._process.wait()
        return False

    def send(self, line: bytes) -> None:
        if self.alive:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(line + b"\n")

    def last_words(self) -> str:
        with suppress(OSError):
            return " ".join(self._complaints.read_text(encoding="utf-8", errors="replace").split())[-LAST_WORDS:]
        return ""

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def stopped(self, within_s: float) -> bool:
        """Whether it is stopped, whoever did it, within that time."""
        until_us = SYSTEM.monotonic_us() + int(within_s * 1e6)
        while SYSTEM.monotonic_us() < until_us and self.alive:
            if await is_stopped(self.pid):
                return True
            await asyncio.sleep(0.01)
        return False

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    async def end(self) -> None:
        """Nothing that it has is needed any more."""
        await asyncio.shield(self.kill())
        if self._listening is not None:
            self._listening.cancel()

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


async def _drain(stream: asyncio.StreamReader) -> None:
    """So that it is never held up by what nobody reads."""
    while await stream.read(65536):
        pass


async def end_all(processes: Sequence[Process]) -> None:
    await asyncio.gather(*(process.end() for process in processes), return_exceptions=True)
