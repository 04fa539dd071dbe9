"""Locks in a MariaDB or MySQL database: one packet of SQL for a group of commits, one table that people can read.

`mysql_packet` says how a commit is made safe, `mysql_log` how its news travel.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from fencegate.clock import Clock
from fencegate.core.errors import UnsafeConfiguration
from fencegate.core.ports import Capabilities, Change, Changes, Entry, Finding, Interval, Unavailable
from fencegate_lockservice.stores.following import Following
from fencegate_lockservice.stores.grouping import Groups
from fencegate_lockservice.stores.migrations import migrate, newest
from fencegate_lockservice.stores.mysql_address import Address, read_address
from fencegate_lockservice.stores.mysql_commits import Commits
from fencegate_lockservice.stores.mysql_forgetting import Forgetting
from fencegate_lockservice.stores.mysql_inspection import findings, refuse_other_tables
from fencegate_lockservice.stores.mysql_lines import Broken, Lines, Misconfigured, Refused
from fencegate_lockservice.stores.mysql_log import READ_WITHIN_S, Log
from fencegate_lockservice.stores.mysql_packet import Commit, Plan
from fencegate_lockservice.stores.mysql_reading import Reading
from fencegate_lockservice.stores.mysql_statements import sql
from fencegate_lockservice.stores.mysql_tables import check_key
from fencegate_lockservice.stores.server_time import ServerTime
from fencegate_lockservice.stores.sql_schema import VERSION_TABLE

OPEN_WITHIN_S = 10.0
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
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                await self._log_in()
        except TimeoutError:
            raise Unavailable(f"{self._address.server} did not answer within {OPEN_WITHIN_S:.0f} s") from None
        await self._migrate()
        await refuse_other_tables(self._lines, complete=True)
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

    async def _log_in(self) -> None:
        try:
            await self._lines.run(["DO 0"], OPEN_WITHIN_S)
        except Misconfigured as error:
            raise UnsafeConfiguration(str(error)) from None

    async def _migrate(self) -> None:
        """In a thread, since Alembic waits where it stands; and only where there is something to do."""
        migrated = await self._migrated()
        if migrated == newest():
            return
        if migrated is None:
            await refuse_other_tables(self._lines, complete=False)
        try:
            await asyncio.to_thread(_migrate, self._address)
        except SQLAlchemyError as error:
            cause = str(getattr(error, "orig", "") or type(error).__name__)[:300]
            raise UnsafeConfiguration(f"the tables in {self._address.server} can't be made: {cause}") from None

    async def _migrated(self) -> str | None:
        """How far the tables are; None when there is no note of that."""
        try:
            async with self._lines.line() as line:
                (rows,) = await line.run([sql("migrated", table=VERSION_TABLE)], READ_WITHIN_S)
        except Refused:  # there is no such table
            return None
        except Broken as error:
            raise Unavailable(f"{self._address.server}: {error}") from None
        return rows[0][0] if rows else None


def _migrate(address: Address) -> None:
    url, arguments = address.for_sqlalchemy()
    engine = create_engine(url, connect_args=arguments, isolation_level="READ COMMITTED")
    try:
        migrate(engine)
    finally:
        engine.dispose()


async def _fail(error: Exception) -> None:
    raise error


def _failed(error: Exception) -> Coroutine[Any, Any, None]:
    return _fail(error)
