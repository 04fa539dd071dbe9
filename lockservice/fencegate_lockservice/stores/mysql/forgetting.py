"""What is past its time goes, in small steps of its own: entries that were kept for a while, and old log lines."""

import asyncio
import logging

from fencegate.core.ports import Unavailable
from fencegate_lockservice.stores.mysql.lines import Lines
from fencegate_lockservice.stores.mysql.log import READ_WITHIN_S, Log
from fencegate_lockservice.stores.mysql.packet import Plan
from fencegate_lockservice.stores.mysql.statements import literals, sql
from fencegate_lockservice.stores.mysql.tables import TABLES, TableOf
from fencegate_lockservice.stores.server_time import ServerTime

STEP = 250
LOOK_AFTER_S = 5.0
"""However little is due here: what another replica wrote before it died is forgotten too."""
SOONEST_S = 0.02

log = logging.getLogger("fencegate.store.mysql")


class Forgetting:
    """Knows when the next entry is due, so that it need not ask."""

    def __init__(self, lines: Lines, change_log: Log, time: ServerTime) -> None:
        self._lines = lines
        self._log = change_log
        self._time = time
        self._due_us: int | None = None
        self._sooner = asyncio.Event()

    def committed(self, plan: Plan) -> None:
        """Note what is to be forgotten of this."""
        due_us = min((c.keep_until_us for c in plan.written.values() if c.keep_until_us is not None), default=None)
        if due_us is not None and (self._due_us is None or due_us < self._due_us):
            self._due_us = due_us
            self._sooner.set()

    async def run(self) -> None:
        """For ever; in a task of its own."""
        while True:
            try:
                await self._log.newest()  # which also asks for the time: nobody else may for long
                await self._forget_all()
            except Unavailable as error:
                log.debug("nothing is forgotten for now: %s", error)
            except Exception:  # it must go on, or the tables grow for ever
                log.exception("what is past its time can't be removed")
            await self._rest()

    async def _rest(self) -> None:
        """Until something is due."""
        await asyncio.sleep(SOONEST_S)
        wait_s = LOOK_AFTER_S
        while wait_s > 0:
            self._sooner.clear()
            wait_s = min(wait_s, self._left_s())
            try:
                async with asyncio.timeout(wait_s):
                    await self._sooner.wait()
            except TimeoutError:
                return

    def _left_s(self) -> float:
        if self._due_us is None:
            return LOOK_AFTER_S
        try:
            return (self._due_us - self._time.now().earliest) / 1_000_000
        except Unavailable:
            return LOOK_AFTER_S

    async def _forget_all(self) -> None:
        more = True
        while more:
            self._due_us = None
            more = await self._log.drop_old()
            for table in TABLES:
                more |= await self._forget_some_of(table)

    async def _forget_some_of(self, table: TableOf) -> bool:
        """Gives whether there may be more."""
        statements = [
            sql("past_their_time", table=table.table, key=table.key, limit=STEP),
            sql("next_due", table=table.table),
        ]
        rows, ((next_us,),) = await self._lines.run(statements, READ_WITHIN_S)
        if next_us is not None:
            self._due_us = min(next_us, self._due_us or next_us)
        if not rows:
            return False
        keys = literals(key for (key,) in sorted(rows))
        await self._lines.run([sql("forget", table=table.table, key=table.key, keys=keys)], READ_WITHIN_S)
        return len(rows) == STEP
