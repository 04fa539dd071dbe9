"""Locks over independent Redis nodes, of which a majority is enough: CASPaxos, one register for each lock.

This is Redlock's idea, with what it lacks: a comparison that holds, tokens that rise, and nodes that don't vote after
they forgot. The rules of voting are in `paxos`, who votes is in `members`.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fencegate.clock import SYSTEM, Clock
from fencegate.core.ports import (
    Ambiguous,
    Capabilities,
    Change,
    Changes,
    Conflict,
    Entry,
    Finding,
    Unavailable,
)
from fencegate_lockservice.stores.redlock.council import Council
from fencegate_lockservice.stores.redlock.hints import Hints
from fencegate_lockservice.stores.redlock.inspect import inspect
from fencegate_lockservice.stores.redlock.keys import Keys
from fencegate_lockservice.stores.redlock.node import Node
from fencegate_lockservice.stores.redlock.paxos import Fit
from fencegate_lockservice.stores.redlock.register import MAX_SETTLED, MAX_VALUE, Commit, decode, found_in, register_of
from fencegate_lockservice.stores.redlock.untold import hint
from fencegate_lockservice.stores.redlock.url import Settings, parse
from fencegate_lockservice.stores.redlock.voting import Voting
from fencegate_lockservice.stores.server_time import MAX_OFF_US, clocks_differ

OPEN_WITHIN_S = 10.0
CLOSE_WITHIN_S = 10.0
PAGE = 500

Result = TypeVar("Result")


def make_store(url: str, clock: Clock = SYSTEM) -> "RedlockStore":
    """`redlock://A:PORT,B:PORT,C:PORT,D:PORT,E:PORT`; UnsafeConfiguration when the URL can't be used."""
    return RedlockStore(parse(url), clock)


class RedlockStore:
    """See the head of this file. Used in the event loop that opened it."""

    name = "redlock"
    capabilities = Capabilities(
        clock=False,
        several_keys=False,
        forgets=False,
        replays=False,
        max_value=MAX_VALUE,
        notes=(
            "goes on while a majority of the nodes does; a node that lost its data is brought back from a majority",
            "one lock in a commit: no sessions, no several locks at once, no hierarchy",
            "lock records are never removed",
            f"of each lock the last {MAX_SETTLED} settled requests are remembered, within their retention",
            "changes are hints: what was told before this process began can't be told again",
        ),
    )

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._keys = Keys(settings.prefix)
        self._nodes = [Node(number, seat, settings, clock, self._moved) for number, seat in enumerate(settings.seats)]
        self._closed = False
        self._work: set[asyncio.Task[Any]] = set()
        self._council: Council | None = None
        self._opened: tuple[Council, Hints, Voting] | None = None

    def _moved(self) -> None:
        """A line to a node was made, or lost."""
        if self._council is not None:
            self._council.poke()

    # --- the contract ---

    async def open(self) -> None:
        hints = Hints(self._nodes, self._keys, self._clock)
        council = self._council = Council(self._nodes, self._keys, self._clock, hints.lost)
        for node in self._nodes:
            node.start()
        await council.open(OPEN_WITHIN_S)
        self._opened = council, hints, Voting(self._nodes, self._keys, self._clock, council)
        await hints.start(self._landed)

    async def inspect(self) -> Sequence[Finding]:
        self._parts()
        return await self._begin(inspect(self._nodes))

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        return await self._begin(self._load(keys))

    def commit(
        self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int
    ) -> "asyncio.Future[None]":
        return self._begin(self._commit(changes, log))

    async def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        _, hints, _ = self._parts()
        async with aclosing(hints.changes(since)) as stream:
            async for changes in stream:
                yield changes

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        return await self._begin(self._scan(prefix, after, limit))

    def now(self) -> None:
        off_us = self._council.off_us() if self._council is not None else 0
        if abs(off_us) > MAX_OFF_US:
            raise Unavailable(clocks_differ("most of the nodes", off_us))

    async def close(self) -> None:
        self._closed = True
        if self._work:
            await asyncio.wait(self._work, timeout=CLOSE_WITHIN_S)
        for task in self._work:
            task.cancel()
        if self._opened is not None:
            await self._opened[1].close()
        if self._council is not None:
            await self._council.close()
        for node in self._nodes:
            await node.close()

    # --- what they do ---

    def _parts(self) -> tuple[Council, Hints, Voting]:
        if self._closed or self._opened is None:
            raise Unavailable("the store is closed" if self._closed else "the store was not opened")
        return self._opened

    def _begin(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Future[Result]":
        """Carry out what was asked to its end, also when whoever asked goes away."""
        if self._closed:
            work.close()
            refused: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            refused.set_exception(Unavailable("the store is closed"))
            return refused
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._ended)
        return asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: whoever asked may have gone away, and asyncio would tell of it as an error

    async def _commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]]) -> None:
        voting = self._voting()
        registers = {register_of(change.key) for change in changes}
        if len(registers) != 1:
            raise Unavailable("this store commits one lock at a time, and nothing else with it")
        (register,) = registers
        if any(change.value is not None and len(change.value) > MAX_VALUE for change in changes):
            raise Unavailable(f"this store takes values of up to {MAX_VALUE} bytes")
        commit_id = self._clock.random_id(8)
        now_us = self._clock.now_us()
        edit = Commit(register, changes, hint(commit_id, register, log, now_us), commit_id, now_us)
        try:
            fit = (await voting.settle(register, edit)).fit
        except (TimeoutError, Unavailable) as error:
            if edit.proposed:
                raise Ambiguous("no majority of the nodes said that it was done") from None
            raise Unavailable(str(error) or "a majority of the nodes does not answer in time") from None
        if fit is Fit.NEVER:
            raise Conflict
        if fit is Fit.UNKNOWN:
            raise Ambiguous("others went on, and it can't be seen whether it was before them")

    async def _load(self, keys: Sequence[str]) -> dict[str, Entry]:
        wanted: dict[str, list[str]] = {}
        for key in keys:
            wanted.setdefault(register_of(key), []).append(key)
        values = await self._voting().read(list(wanted))
        now_us = self._clock.now_us()
        found: dict[str, Entry] = {}
        for register, names in wanted.items():
            found |= found_in(values[register], names, now_us)
        return found

    async def _landed(self, commits: Mapping[str, str]) -> set[str]:
        """Which of these commits, given with their registers, are in the past of what is there now."""
        values = await self._voting().read(sorted(set(commits.values())))
        past = {register: decode(value).commits for register, value in values.items()}
        return {commit_id for commit_id, register in commits.items() if commit_id in past[register]}

    async def _scan(self, prefix: str, after: str, limit: int) -> list[tuple[str, Entry]]:
        """The main entry of each register, by name; settled requests have none of their own."""
        voting = self._voting()
        first = prefix.encode()
        lower = b"(" + after.encode() if after.encode() >= first and after else b"[" + first
        upper = b"[" + first + b"\xff"
        found: list[tuple[str, Entry]] = []
        while len(found) < limit:
            names, end = await voting.names(lower, upper, min(max(limit, 16), PAGE))
            values = await voting.read(names)
            now_us = self._clock.now_us()
            for name in names:
                found += found_in(values[name], [name], now_us).items()
            if end is None:
                break
            lower = b"(" + end
        return found[:limit]

    def _voting(self) -> Voting:
        if self._opened is None:
            raise Unavailable("the store was not opened")
        return self._opened[2]
