"""One call that takes a token, on its way to the database: a claim, a fenced read, or writes."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from fencegate.core.ports import Key, Row, RowWrite, Seen

MAX_WRITES_TOGETHER = 100


class Done(NamedTuple):
    """What a call that was admitted brings: the rows that it wrote or read, as they are now."""

    rows: list[Row | None]
    seen: Seen


Outcome = Done | Exception


class Work:
    """It is answered once, from whatever thread, and only when what it did has been committed."""

    __slots__ = ("_answer", "_loop", "deadline_us", "fence", "lonely", "names", "reached", "reads", "token", "writes")

    def __init__(
        self, fence: str, token: int, deadline_us: int, *, writes: tuple[RowWrite, ...] = (), reads: Key | None = None
    ) -> None:
        self.fence = fence
        self.token = token
        self.deadline_us = deadline_us
        self.writes = writes
        self.reads = reads
        self.names = {"/".join(key) for key in self.keys}
        self.lonely = len(writes) > MAX_WRITES_TOGETHER or len(self.names) < len(writes)
        """Whether it can't share a transaction: it writes a row twice, or very many; or it was tried."""
        self.reached = False
        """Whether it has passed the failpoint."""
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Outcome] = self._loop.create_future()

    @property
    def keys(self) -> list[Key]:
        return [write.key for write in self.writes] if self.reads is None else [self.reads]

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._answer.done()

    async def outcome(self) -> Done:
        outcome = await self._answer
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _settle(self, outcome: Outcome) -> None:
        if not self._answer.done():
            self._answer.set_result(outcome)


def answer(outcomes: Iterable[tuple[Work, Outcome]]) -> None:
    """Answer these, from any thread: each event loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Work, Outcome]]] = defaultdict(list)
    for work, outcome in outcomes:
        by_loop[work._loop].append((work, outcome))
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, some)
        except RuntimeError:
            continue  # the loop was closed, and with it all who waited


def _settle(outcomes: list[tuple[Work, Any]]) -> None:
    for work, outcome in outcomes:
        work._settle(outcome)
