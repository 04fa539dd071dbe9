"""Carries out groups of commits, and tells each commit of a group what became of it.

A group is one transaction, sent on the assumption that all of it fits. When something does not, the server says how
things are and has written nothing: what fits now is sent again. One bad commit fails alone. Nobody is answered before
the transaction has ended.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from fencegate.clock import Clock
from fencegate.core.ports import Ambiguous, Conflict, TooLate, Unavailable
from fencegate_lockservice.stores.grouping import Waiting
from fencegate_lockservice.stores.mysql.lines import Broken, Line, Lines, Refused, Rows
from fencegate_lockservice.stores.mysql.packet import Commit, Packet, Plan, Verdict, packet
from fencegate_lockservice.stores.server_time import ServerTime

COMMIT_WITHIN_S = 5.0
ALONE_WITHIN_S = 8.0
MAX_GROUP_BYTES = 2_000_000
"""As hexadecimal that is 4 MB, a quarter of what MariaDB takes in one packet by default."""
ROUNDS = 3
TRIES = 5
PAUSE_S = 0.02
DEADLOCK = 1213

Group = Sequence[Waiting[Commit]]


class _NotWritten(Exception):
    """The server refused a statement, for a reason that has nothing to do with what is compared."""

    def __init__(self, error: Refused) -> None:
        super().__init__(str(error))
        self.may_pass = error.code == DEADLOCK


class Commits:
    """Runs on the connections of `lines`; `committed` is called when something was."""

    def __init__(self, lines: Lines, time: ServerTime, clock: Clock, committed: Callable[[Plan], None]) -> None:
        self._lines = lines
        self._time = time
        self._clock = clock
        self._committed = committed

    async def send(self, group: Group) -> None:
        """Settle each of them. What is raised is told to those that were left."""
        for part in _parts(group):
            try:
                await self._carry(part)
            except _NotWritten:
                await self._carry_singly(part)

    async def _carry_singly(self, group: Group) -> None:
        by_us = self._clock.monotonic_us() + int(ALONE_WITHIN_S * 1_000_000)
        for waiting in group:
            if waiting.future.done():
                continue
            if self._clock.monotonic_us() > by_us:
                raise Unavailable("the database is too slow: this commit was not sent")
            await self._carry_alone(waiting)

    async def _carry_alone(self, waiting: Waiting[Commit]) -> None:
        for left in reversed(range(TRIES)):
            try:
                await self._carry([waiting])
                return
            except _NotWritten as error:
                if not left or not error.may_pass:
                    waiting.failed(Unavailable(f"the database refused the commit: {error}"))
                    return
            await asyncio.sleep(PAUSE_S * self._clock.jitter())

    async def _carry(self, group: Group) -> None:
        """As many rounds as it takes, but not for ever when rivals come between: then each is carried alone."""
        actual: Mapping[str, str] | None = None
        for _ in range(ROUNDS):
            plan = Plan()
            fitting = [waiting for waiting in group if plan.add(waiting.item, actual)]
            verdict = await self._try(plan, fitting) if fitting else None
            if verdict is None or verdict.done:
                _settle(group, Conflict)  # the others, that did not fit behind those
                return
            actual = verdict.actual
            late = [waiting for waiting in group if verdict.now_us > waiting.item.not_after_us]
            _settle(late, TooLate)
            group = [waiting for waiting in group if waiting not in late]
        await self._carry_singly(group)

    async def _try(self, plan: Plan, fitting: Group) -> Verdict | None:
        """Send it; all in it are told when it is done, or (None) when that can't be known."""
        sent = packet(plan)
        sent_us = self._clock.monotonic_us()
        try:
            async with self._lines.line() as line:
                verdict = sent.verdict(await _run(line, sent))
        except Broken as error:
            _settle(fitting, Ambiguous, f"the answer to a commit got lost: {error}")
            return None
        self._time.heard(sent_us, verdict.now_us)
        if verdict.done:
            self._committed(plan)
            for waiting in fitting:
                waiting.done()
        return verdict


async def _run(line: Line, sent: Packet) -> list[Rows]:
    try:
        return await line.run(sent.statements, COMMIT_WITHIN_S)
    except Refused as error:
        # An error of COMMIT itself says little, but for a deadlock (which a cluster may find then).
        if error.statement > sent.commit_at or (error.statement == sent.commit_at and error.code != DEADLOCK):
            raise Broken(str(error)) from None
        raise _NotWritten(error) from None  # the connection is dropped, and with it what the transaction has locked


def _settle(group: Group, error: type[Exception], *words: str) -> None:
    for waiting in group:
        waiting.failed(error(*words))


def _parts(group: Group) -> list[Group]:
    """Several packets where one would be too large."""
    parts: list[list[Waiting[Commit]]] = []
    size = 0
    for waiting in group:
        size += waiting.item.size
        if not parts or size > MAX_GROUP_BYTES:
            parts.append([])
            size = waiting.item.size
        parts[-1].append(waiting)
    return list(parts)
