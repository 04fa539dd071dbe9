"""The durable fence in front of a service: its marks, and the writes that are under way.

A service can't compare tokens inside its own write, so the gateway writes down what it is about to send. Raising a mark
and looking for older writes is one transaction, and so is checking the mark and announcing a write: of two tokens, the
newer either sees the older write under way, or the older one is refused.
"""

import asyncio
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, bindparam, delete, func, insert, not_, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from fencegate.clock import Clock
from fencegate.core import fence as rule
from fencegate.core.errors import ResourceUnavailable, StaleToken
from fencegate.core.ports import Seen, ShadowRefusal
from fencegate.core.token import Token
from fencegate_adapters.http.fence.committing import Committer, cause
from fencegate_adapters.http.fence.databases import MARK, database
from fencegate_adapters.http.fence.record import Record
from fencegate_adapters.http.fence.tables import intents, metadata
from fencegate_adapters.tables import missing

T = TypeVar("T")

ANSWER_WITHIN_S = 10.0

_ANNOUNCE = insert(intents)
_END = delete(intents).where(intents.c.lock_key == bindparam("lock_key"), intents.c.id == bindparam("intent"))
_OLDER = select(func.max(intents.c.deadline_us)).where(
    intents.c.lock_key == bindparam("lock_key"), intents.c.token < bindparam("token")
)


class Passage(NamedTuple):
    """What the fence says to a token that is not stale."""

    seen: Seen
    intent: str | None = None
    """Names the write that was announced; `end` it."""
    blocked_us: int = 0
    """How long older writes may still be under way; nothing was announced then."""


class DurableFence:
    """Marks and intents in a database that every gateway in front of the service shares."""

    def __init__(self, url: str, record: Record, clock: Clock) -> None:
        self._database = database(url, clock)
        self._record = record
        self._clock = clock
        self._engine = self._database.engine()
        self._writing = Committer(record.name, self._engine, self._database, writes=True)
        self._reading = Committer(record.name, self._engine, self._database, writes=False)
        self._ends: set[asyncio.Future[None]] = set()
        self._latest = _OLDER.where(self._database.alive)
        self.durability = self._database.durability

    # --- life --------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._make_tables()

        def check(connection: Connection, now_us: int) -> None:
            self._database.check(connection)
            self._record.remember(connection, self._database)
            self._record.floor(connection)
            connection.execute(delete(intents).where(not_(self._database.alive)), {"now_us": now_us})

        await self._writing.submit(check)

    async def raise_floor(self, value: int) -> None:
        floor = Token(value)
        await self._make_tables()
        await self._writing.submit(lambda connection, _: self._record.raise_floor(connection, self._database, floor))

    async def _make_tables(self) -> None:
        def make() -> None:
            self._database.prepare()
            with self._engine.begin() as connection:
                absent = missing(connection, metadata.sorted_tables)
            for table in absent:
                with self._engine.begin() as connection:
                    connection.execute(CreateTable(table, if_not_exists=True))

        try:
            try:
                await asyncio.to_thread(make)
            except IntegrityError:
                # PostgreSQL fails the second of two that create a table at once, even with IF NOT EXISTS.
                await asyncio.to_thread(make)
        except SQLAlchemyError as error:
            raise ResourceUnavailable(f"the fence can't be opened: {cause(error)}") from None

    async def close(self) -> None:
        await self._writing.close()
        await self._reading.close()
        await asyncio.to_thread(self._engine.dispose)

    # --- tokens ------------------------------------------------------------------------------------------------------

    async def mark(self, lock_key: str) -> int:
        def read(connection: Connection, _: int) -> int:
            floor = self._record.floor(connection, until_commit=False)
            return max(self._mark(connection, lock_key.encode()), floor)

        return await _within(self._reading.submit(read), "not-written")

    async def claim(self, lock_key: str, token: int) -> Passage:
        """Raise the mark; `blocked_us` tells of older writes that are still under way."""

        def step(connection: Connection, now_us: int) -> Passage:
            seen = self._admit(connection, lock_key.encode(), token)
            return Passage(seen, blocked_us=self._older(connection, lock_key.encode(), token, now_us))

        return await _within(self._writing.submit(step, lock_key.encode()), "unknown")

    async def announce(self, lock_key: str, token: int, length_us: int, *, drained: bool) -> Passage:
        """Raise the mark, and write down that a write with this token is under way for at most `length_us`.

        With `drained` only when no older one is.
        """
        intent = self._clock.random_id()

        def step(connection: Connection, now_us: int) -> Passage:
            key = lock_key.encode()
            seen = self._admit(connection, key, token)
            if self._record.mode == "shadow":
                return Passage(seen)
            blocked_us = self._older(connection, key, token, now_us) if drained else 0
            if blocked_us:
                return Passage(seen, blocked_us=blocked_us)
            row = {"lock_key": key, "id": intent, "token": token, "began_us": now_us, "deadline_us": now_us + length_us}
            connection.execute(_ANNOUNCE, row)
            return Passage(seen, intent)

        announced = self._writing.submit(step, lock_key.encode())
        try:
            return await _within(asyncio.shield(announced), "not-written")
        except (asyncio.CancelledError, ResourceUnavailable) as error:
            # Perhaps it was or will be written down, but nothing is sent.
            announced.add_done_callback(lambda _: self.end(lock_key, intent))
            announced.add_done_callback(_retrieved)
            if isinstance(error, ResourceUnavailable):
                error = ResourceUnavailable(error.detail, outcome="not-written")
            raise error from None

    def end(self, lock_key: str, intent: str) -> None:
        """Say that a write is no longer under way. Should that be lost, its deadline says so."""

        def step(connection: Connection, _: int) -> None:
            connection.execute(_END, {"lock_key": lock_key.encode(), "intent": intent})

        ended = self._writing.submit(step, later=True)
        self._ends.add(ended)
        ended.add_done_callback(self._ends.discard)
        ended.add_done_callback(_retrieved)

    async def older(self, lock_key: str, token: int) -> int:
        """How long older writes may still be under way, in microseconds; 0 when there are none."""
        asked = self._reading.submit(
            lambda connection, now_us: self._older(connection, lock_key.encode(), token, now_us)
        )
        return await _within(asked, "not-written")

    # --- inside a transaction ----------------------------------------------------------------------------------------

    def _admit(self, connection: Connection, lock_key: bytes, token: int) -> Seen:
        floor = self._record.floor(connection)
        raised = self._database.raise_mark(connection, lock_key, self._record.mode, token) if token >= floor else False
        mark = token if raised else max(self._mark(connection, lock_key), floor)
        try:
            return Seen(rule.admit(token, mark))
        except StaleToken as stale:
            if self._record.mode == "enforce":
                raise
            return Seen(stale.highest, shadow=ShadowRefusal(token, stale.highest))

    def _mark(self, connection: Connection, lock_key: bytes) -> int:
        values = {"lock_key": lock_key, "mode": self._record.mode}
        return int(connection.execute(MARK, values).scalar() or 0)

    def _older(self, connection: Connection, lock_key: bytes, token: int, now_us: int) -> int:
        values = {"lock_key": lock_key, "token": token, "now_us": now_us}
        latest = connection.execute(self._latest, values).scalar()
        return 0 if latest is None else int(latest) - now_us


async def _within(answer: "asyncio.Future[T]", outcome: str) -> T:
    """A database that stands still must not hold its callers for ever."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await answer
    except TimeoutError:
        raise ResourceUnavailable("the database of the fence does not answer", outcome=outcome) from None


def _retrieved(done: "asyncio.Future[Any]") -> None:
    """Nobody waits for this any more, so nobody is to be told of its failure."""
    if not done.cancelled():
        done.exception()
