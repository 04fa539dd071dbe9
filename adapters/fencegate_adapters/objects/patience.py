"""Blocking steps, run in threads and waited for with a bound: for a lock file, and in order for the same fence."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from fencegate.clock import Clock
from fencegate.core.errors import ResourceUnavailable
from fencegate_adapters.objects import disk
from fencegate_adapters.objects.fences import DamagedFence

T = TypeVar("T")

_THREADS = 8
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


class Patience:
    """Runs steps; what they raise comes out as an error of ours."""

    def __init__(self, resource: str, wait_s: float, clock: Clock) -> None:
        self._resource = resource
        self._wait_s = wait_s
        self._clock = clock
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"objects-{resource}")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._closed = False

    async def run(self, step: Callable[..., T], *args: object) -> T:
        """Run a step that waits for nobody."""
        if self._closed:
            raise ResourceUnavailable(f"resource {self._resource!r} is closed")
        with self._translated():
            return await asyncio.get_running_loop().run_in_executor(self._threads, step, *args)

    async def until_free(self, step: Callable[..., T], *args: object) -> T:
        """Run a step again while it raises Busy. Between the tries no thread waits: a stuck fence must not eat them."""
        deadline_us = self._clock.monotonic_us() + int(self._wait_s * 1_000_000)
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await self.run(step, *args)
            except disk.Busy:
                if self._clock.monotonic_us() >= deadline_us:
                    raise self._busy() from None
            await asyncio.sleep(pause_s * (0.5 + self._clock.jitter()))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def in_turn(self, fence: str, step: Callable[..., T], *args: object) -> T:
        """Run a step that holds the fence: first come, first served in this process, and one at a time polls."""
        turn = self._turns.setdefault(fence, asyncio.Lock())
        try:
            async with asyncio.timeout(self._wait_s):
                await turn.acquire()
        except TimeoutError:
            raise self._busy() from None
        try:
            return await self.until_free(step, *args)
        finally:
            turn.release()

    async def close(self) -> None:
        """Finish the steps that were begun."""
        self._closed = True
        await asyncio.to_thread(self._threads.shutdown)

    def _busy(self) -> ResourceUnavailable:
        return ResourceUnavailable(
            f"resource {self._resource!r}: another process has held the fence for {self._wait_s:g} s; try again"
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except disk.Unsettled as error:
            raise ResourceUnavailable(
                f"resource {self._resource!r}: {error.strerror}; whether it was written is unknown", outcome="unknown"
            ) from error
        except OSError as error:
            raise ResourceUnavailable(
                f"resource {self._resource!r}: {error.strerror or error}; nothing was written"
            ) from error
        except DamagedFence as damaged:
            raise ResourceUnavailable(
                f"resource {self._resource!r}: the mark of fence {damaged} is damaged, so all is refused: restore it"
            ) from damaged
