"""The arms that update a row in the caller's own transactions, by a session of SQLAlchemy: fenced, and plainly.

By one statement that is used again and again, which is the shortest transaction that there is, with the mark in the
fence table or in the row itself; by one that is built for each transaction, with the mark in the row; and as an object
that is read and changed. The two of a database run in turns (`turns.py`), in one thread. Each has an engine of its own,
and in SQLite a file. The lock is named by hand, so no lease is asked whether it is still held.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Integer,
    MetaData,
    Table,
    Update,
    create_engine,
    event,
    insert,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session

from bench.arm import Sample
from bench.library import SharedServer
from bench.turns import Turns, in_turns
from fencegate.sql import fenced, fenced_update

TOKEN = 1_700_000_000_000_000
TURN = 20
"""So many transactions of one arm, then as many of the other."""

accounts = Table(
    "own_accounts",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("balance", BigInteger),
    Column("token", BigInteger),
)
change = update(accounts).where(accounts.c.id == 1).values(balance=accounts.c.balance + 1)


class Lease:
    """What `fenced_update` asks of one."""

    lock_key = "bench:1"
    token = TOKEN


class Base(DeclarativeBase):
    """SQLAlchemy wants one."""


class Account(Base):
    """A row of the table."""

    __table__ = accounts
    id: Mapped[int]
    balance: Mapped[int]
    token: Mapped[int | None]


Work = Callable[[Session], None]
"""What is done in a transaction."""


def by_one_statement(session: Session) -> None:
    session.execute(change)


def with_the_mark_in_the_row(session: Session) -> None:
    fenced_update(session, change, Lease(), column=accounts.c.token)


def as_an_object(session: Session) -> None:
    session.get_one(Account, 1).balance += 1


def change_of_objects() -> Update:
    return update(Account).where(Account.id == 1).values(balance=Account.balance + 1)


def by_its_own_statement(session: Session) -> None:
    session.execute(change_of_objects())


def its_own_with_the_mark_in_the_row(session: Session) -> None:
    fenced_update(session, change_of_objects(), Lease(), column=Account.token)


class OwnTransactions:
    """An arm; see the head of this file. Without a server it is an SQLite file."""

    def __init__(
        self,
        name: str,
        server: SharedServer | None,
        work: Callable[[Session], None],
        *,
        is_async: bool,
        is_fenced: bool,
    ) -> None:
        self.name = name
        self._server = server
        self._work = work
        self._is_async = is_async
        self._is_fenced = is_fenced
        self._engine: Engine | None = None
        self._other: OwnTransactions | None = None
        self._taken: list[Sample] = []
        """In the turns of the other, and not asked for yet."""

    @property
    def missing(self) -> str | None:
        return self._server.missing() if self._server is not None else None

    def start(self, folder: Path) -> None:
        if self._server is None:
            self._engine = create_engine(f"sqlite:///{folder / 'own.db'}")
            event.listen(self._engine, "connect", _durable)
        else:
            self._server.start(folder)
            self._engine = create_engine(self._server.url.replace("postgresql://", "postgresql+psycopg://"))
        accounts.create(self._engine, checkfirst=True)
        with self._engine.begin() as connection:
            if connection.execute(select(accounts.c.id)).first() is None:  # else the other arm has made them
                connection.execute(insert(accounts), [{"id": number, "balance": 0} for number in range(64)])

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            if self._server is not None:
                self._server.stop()
        self._engine = None

    def hand_over(self, waiters: int, seconds: float) -> Sample:
        raise NotImplementedError("rows are not handed over")

    def run(self, clients: int, seconds: float) -> Sample:
        assert clients == 1, "they run in turns, in one thread"
        if not self._taken:
            arms = [arm for arm in (self, self._other) if arm is not None and arm._engine is not None]
            for arm, sample in zip(arms, asyncio.run(_in_turns(arms, seconds)), strict=True):
                arm._taken.append(sample)
        return self._taken.pop()

    def writer(self, stack: AsyncExitStack) -> Callable[[], Awaitable[None] | None]:
        """What is measured."""
        engine, work = self._engine, self._work
        assert engine is not None
        if self._is_async:
            async_engine = create_async_engine(engine.url)
            stack.push_async_callback(async_engine.dispose)

        def plainly() -> None:
            with Session(engine) as session:
                work(session)
                session.commit()

        def under_fence() -> None:
            with Session(engine) as session, fenced(session, lock_key="bench:1", token=TOKEN):
                work(session)

        async def plainly_async() -> None:
            async with AsyncSession(async_engine) as session:
                await session.execute(change)
                await session.commit()

        async def under_fence_async() -> None:
            async with AsyncSession(async_engine) as session, fenced(session, lock_key="bench:1", token=TOKEN):
                await session.execute(change)

        if self._is_async:
            return under_fence_async if self._is_fenced else plainly_async
        return under_fence if self._is_fenced else plainly


LABELS = ("session", "orm-session", "column", "orm-column")


def pairs(database: str, server: SharedServer | None) -> list[OwnTransactions]:
    """What there is in a blocking session."""
    return [
        *pair(database, server, by_one_statement, label="session"),
        *pair(database, server, as_an_object, label="orm-session"),
        *pair(database, server, by_one_statement, with_the_mark_in_the_row, label="column"),
        *pair(
            database,
            server,
            by_its_own_statement,
            its_own_with_the_mark_in_the_row,
            label="orm-column",
        ),
    ]


def pair(
    database: str,
    server: SharedServer | None,
    work: Work = by_one_statement,
    fenced_work: Work | None = None,
    *,
    label: str,
    is_async: bool = False,
) -> list[OwnTransactions]:
    """The same transaction on a database, plainly and under a fence; if it has a fence of its own, that is its."""

    def arm(kind: str, work: Work, *, is_fenced: bool) -> OwnTransactions:
        return OwnTransactions(f"{kind}-{label}-{database}", server, work, is_async=is_async, is_fenced=is_fenced)

    plain = arm("plain", work, is_fenced=False)
    under_fence = arm("fenced", fenced_work or work, is_fenced=fenced_work is None)
    plain._other, under_fence._other = under_fence, plain
    return [plain, under_fence]


async def _in_turns(arms: Sequence[OwnTransactions], seconds: float) -> list[Sample]:
    async with AsyncExitStack() as stack:
        return await in_turns([partial(_turn, arm.writer(stack)) for arm in arms], TURN, seconds)


async def _turn(write: Callable[[], Awaitable[None] | None], turns: Turns) -> None:
    with turns.one():
        now_s = time.perf_counter()
        try:
            for _ in range(TURN):
                writing = write()
                if writing is not None:
                    await writing
                now_s = turns.written(now_s)
        except Exception as error:
            turns.failed(error)


def _durable(driver: Any, _record: object) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=60000"):
        driver.execute(f"PRAGMA {pragma}").close()
