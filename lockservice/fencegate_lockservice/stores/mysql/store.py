"""Locks in a MariaDB or MySQL database: one packet of SQL for a group of commits, one table that people can read.

`packet` says how a commit is made safe, `log` how its news travel.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fencegate.clock import Clock
from fencegate.core.ports import Capabilities, Change, Changes, Entry, Finding, Interval, Unavailable
from fencegate_lockservice.stores.following import Following
from fencegate_lockservice.stores.grouping import Groups
from fencegate_lockservice.stores.mysql.address import Address, read_address
from fencegate_lockservice.stores.mysql.commits import Commits
from fencegate_lockservice.stores.mysql.forgetting import Forgetting
from fencegate_lockservice.stores.mysql.inspection import findings, max_value
from fencegate_lockservice.stores.mysql.lines import Lines
from fencegate_lockservice.stores.mysql.log import Log
from fencegate_lockservice.stores.mysql.opening import open_tables
from fencegate_lockservice.stores.mysql.packet import Commit, Plan
from fencegate_lockservice.stores.mysql.reading import Reading
from fencegate_lockservice.stores.mysql.tables import check_key
from fencegate_lockservice.stores.server_time import ServerTime

CLOSE_WITHIN_S = 8.0


def make_store(url: str, clock: Clock) -> "MysqlStore":
    return MysqlStore(read_address(url), clock)


class MysqlStore:
    """See the head of this file. It belongs to the event loop that opened it."""

    name = "mysql"
    capabilities = Capabilities()

    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._time = ServerTime(clock, address.server)
        self._lines = Lines(address, clock, self._time)
        self._log = Log(self._lines, self._time, clock)
        self._following = Following(self._log.tail, self._log.newest, self._log.read)
        self._forgetting = Forgetting(self._lines, self._log, self._time)
        self._commits = Groups(Commits(self._lines, self._time, clock, self._committed).send, at_once=2)
        self._reading = Reading(self._lines)
        self._job: asyncio.Task[None] | None = None

    # --- the contract ---

    async def open(self) -> None:
        await open_tables(self._address, self._lines)
        self.capabilities = Capabilities(max_value=await max_value(self._lines))
        self._job = asyncio.get_running_loop().create_task(self._forgetting.run())

    async def inspect(self) -> Sequence[Finding]:
        return await findings(self._lines)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Entry]:
        return await self._reading.load(keys)

    def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> Awaitable[None]:
        try:
            for change in changes:
                check_key(change.key)
            for key, _ in log:
                check_key(key)
        except ValueError as error:
            return _failed(Unavailable(f"the store can't take this: {error}"))
        return self._commits.add(Commit(changes, log, not_after_us))

    def changes(self, since: int | None) -> AsyncGenerator[Changes, None]:
        return self._following.changes(since)

    async def scan(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Entry]]:
        return await self._reading.scan(prefix, after, limit)

    def now(self) -> Interval:
        return self._time.now()

    async def close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await asyncio.gather(self._commits.close(), self._reading.close())
        if self._job is not None:
            self._job.cancel()
            with suppress(asyncio.CancelledError):
                await self._job
        await self._following.close()
        await self._lines.close()  # which ends whatever is still under way
        await asyncio.gather(self._commits.close(), self._reading.close())

    # --- its parts ---

    def _committed(self, plan: Plan) -> None:
        if plan.logs:
            self._log.look()
        self._forgetting.committed(plan)


async def _fail(error: Exception) -> None:
    raise error


def _failed(error: Exception) -> Coroutine[Any, Any, None]:
    return _fail(error)
