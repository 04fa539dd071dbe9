"""The arms that update a row in the caller's own transactions, by a session of SQLAlchemy: fenced, and plainly.

The two of a database run in turns of some transactions each, in one thread, and the rate is that of the median turn:
they are so close together that one bad moment of the machine would decide. Each has an engine of its own, and in SQLite
a file. The lock is named by hand, so no lease is asked whether it is still held.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    event,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Session

from bench.arm import Sample
from bench.library import SharedServer
from bench.summary import WRITE
from fencegate.sql import fenced

TOKEN = 1_700_000_000_000_000
TURN = 20
"""So many transactions of one arm, then as many of the other."""
WARM_TURNS = 2

accounts = Table("own_accounts", MetaData(), Column("id", Integer, primary_key=True), Column("balance", BigInteger))


class OwnTransactions:
    """An arm; see the head of this file. Without a server it is an SQLite file."""

    def __init__(self, name: str, server: SharedServer | None, *, fenced: bool) -> None:
        self.name = name
        self._server = server
        self._fenced = fenced
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
            for arm, sample in zip(arms, in_turns([arm.writer() for arm in arms], seconds), strict=True):
                arm._taken.append(sample)
        return self._taken.pop()

    def writer(self) -> Callable[[], None]:
        """What is measured."""
        engine = self._engine
        assert engine is not None
        change = update(accounts).where(accounts.c.id == 1).values(balance=accounts.c.balance + 1)

        def plainly() -> None:
            with Session(engine) as session:
                session.execute(change)
                session.commit()

        def under_fence() -> None:
            with Session(engine) as session, fenced(session, lock_key="bench:1", token=TOKEN):
                session.execute(change)

        return under_fence if self._fenced else plainly


def pair(database: str, server: SharedServer | None) -> list[OwnTransactions]:
    """The same transaction on a database, plainly and under a fence."""
    plain = OwnTransactions(f"plain-session-{database}", server, fenced=False)
    under_fence = OwnTransactions(f"fenced-session-{database}", server, fenced=True)
    plain._other, under_fence._other = under_fence, plain
    return [plain, under_fence]


def in_turns(writers: list[Callable[[], None]], seconds: float) -> list[Sample]:
    """A sample of each, of so many seconds. An error ends them all."""
    turns = [_Turns(write) for write in writers]
    for one in turns * WARM_TURNS:
        one.take()
    for one in turns:
        one.begin_to_count()
    while min(sum(one.turns_s) for one in turns) < seconds and not any(one.error for one in turns):
        for one in turns:
            one.take()
    return [one.sample() for one in turns]


class _Turns:
    """Of one arm."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self.error = ""
        self.begin_to_count()

    def begin_to_count(self) -> None:
        self._latencies_us: Counter[int] = Counter()
        self.turns_s: list[float] = []
        self._cpu_s = 0.0

    def take(self) -> None:
        cpu_s, began_s = time.process_time(), time.perf_counter()
        before_s = began_s
        try:
            for _ in range(TURN):
                self._write()
                now_s = time.perf_counter()
                self._latencies_us[int((now_s - before_s) * 1_000_000)] += 1
                before_s = now_s
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        self.turns_s.append(before_s - began_s)
        self._cpu_s += time.process_time() - cpu_s

    def sample(self) -> Sample:
        done, rate = self._latencies_us.total(), 0.0 if self.error else TURN / median(self.turns_s)
        load_cpu = self._cpu_s / max(sum(self.turns_s), self._cpu_s) / (os.cpu_count() or 1)
        return Sample(done, rate, int(bool(self.error)), self.error, {WRITE: self._latencies_us}, load_cpu)


def _durable(driver: Any, _record: object) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=60000"):
        driver.execute(f"PRAGMA {pragma}").close()
