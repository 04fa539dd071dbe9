"""A store that fails on purpose, before or after the real call; seeded, so that a run can be repeated.

It fails only in ways that the store contract allows: whatever it does, a lock service above it must stay correct.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from fencegate.clock import ManualClock
from fencegate.core.ports import (
    Ambiguous,
    Change,
    Changes,
    Conflict,
    Entry,
    Finding,
    Interval,
    Store,
    TooLate,
    Unavailable,
)


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each thing goes wrong, from 0 to 1."""

    unavailable: float = 0
    """Refused before anything was done: a load or a commit."""
    lost: float = 0
    """The commit got lost on its way: `Ambiguous`, and it never happens."""
    unheard: float = 0
    """The commit happened and its answer got lost: `Ambiguous`."""
    late: float = 0
    """`Ambiguous`, and the commit happens some time after the caller was told so."""
    cut: float = 0
    """The commit happened, its answer got lost, and from then on nothing gets through until `faults` is set anew."""
    conflict: float = 0
    """A `Conflict` that nobody caused, as after a comparison that was too careful."""
    broken_stream: float = 0
    """The change stream ends in the middle, and what it was about to say is lost."""
    max_delay_s: float = 0
    """Loads and commits take up to this long."""


CALM = Faults()
GONE = Faults(unavailable=1, broken_stream=1)
"""Out of reach, for good."""


class FaultyStore:
    """Wraps `store`. Set `faults` at any time; `loads` and `commits` count what was asked of the real store."""

    def __init__(self, store: Store, seed: int = 0, faults: Faults = CALM) -> None:
        self._store = store
        self._chance = ManualClock(seed=seed)
        self._late: set[asyncio.Task[None]] = set()
        self.faults = faults
        self.loads = 0
        self.commits = 0
        self.name = store.name
        self.capabilities = store.capabilities

    async def open(self) -> None:
        """The real store was opened by whoever gave it."""

    async def inspect(self) -> Sequence[Finding]:
        return await self._store.inspect()

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        await self._delay()
        self._refuse()
        self.loads += 1
        return await self._store.load(keys)

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        await self._delay()
        self._refuse()
        if self._happens(self.faults.conflict):
            raise Conflict
        if self._happens(self.faults.lost):
            raise Ambiguous("lost on its way")
        if self._happens(self.faults.late):
            late = asyncio.get_running_loop().create_task(self._commit_late(changes, log, not_after_us))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            raise Ambiguous("still on its way")
        self.commits += 1
        await self._store.commit(changes, log, not_after_us)
        if self._happens(self.faults.cut):
            self.faults = GONE
            raise Ambiguous("the line was cut")
        if self._happens(self.faults.unheard):
            raise Ambiguous("its answer got lost")

    async def _commit_late(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int
    ) -> None:
        await asyncio.sleep(0.05 * self._chance.jitter())
        self.commits += 1
        with suppress(Conflict, TooLate, Ambiguous, Unavailable):
            await self._store.commit(changes, log, not_after_us)

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        async with aclosing(self._store.changes(since)) as stream:
            async for changes in stream:
                if self._happens(self.faults.broken_stream):
                    raise Unavailable("the change stream broke")
                yield changes

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        self._refuse()
        return await self._store.scan(prefix, after, limit)

    def now(self) -> Interval | None:
        return self._store.now()

    async def close(self) -> None:
        """Let what is still on its way arrive. The real store belongs to whoever opened it."""
        if self._late:
            await asyncio.wait(self._late)

    def _happens(self, rate: float) -> bool:
        return rate > 0 and self._chance.jitter() < rate

    def _refuse(self) -> None:
        if self._happens(self.faults.unavailable):
            raise Unavailable("out of reach")

    async def _delay(self) -> None:
        if self.faults.max_delay_s:
            await asyncio.sleep(self.faults.max_delay_s * self._chance.jitter())
