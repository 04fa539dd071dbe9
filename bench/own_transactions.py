"""The arms that update a row in the caller's own transactions, by a session of SQLAlchemy: fenced, and plainly.

Each client is a thread with a row of its own. With the fence it holds a lock of its own all the while.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
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
WARM_WRITES = 10

accounts = Table("own_accounts", MetaData(), Column("id", Integer, primary_key=True), Column("balance", BigInteger))


class OwnTransactions:
    """An arm; see the head of this file. Without a server it is an SQLite file."""

    def __init__(self, name: str, server: SharedServer | None, *, fenced: bool) -> None:
        self.name = name
        self._server = server
        self._fenced = fenced
        self._started = False
        self._engine: Engine | None = None

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
        self._started = True
        accounts.create(self._engine, checkfirst=True)
        with self._engine.begin() as connection:
            if connection.execute(select(accounts.c.id)).first() is None:  # else the other arm has made them
                connection.execute(insert(accounts), [{"id": number, "balance": 0} for number in range(64)])

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
        if self._started and self._server is not None:
            self._server.stop()
        self._started = False

    def hand_over(self, waiters: int, seconds: float) -> Sample:
        raise NotImplementedError("rows are not handed over")

    def run(self, clients: int, seconds: float) -> Sample:
        latencies_us: Counter[int] = Counter()
        errors: list[str] = []
        mutex = threading.Lock()
        start = threading.Barrier(clients + 1)

        def client(number: int) -> None:
            write, taken = self._writer(number), []
            try:
                for _ in range(WARM_WRITES):
                    write()
                start.wait()
                until_s = time.perf_counter() + seconds
                while time.perf_counter() < until_s:
                    began_s = time.perf_counter()
                    write()
                    taken.append(int((time.perf_counter() - began_s) * 1_000_000))
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
                start.abort()
            with mutex:
                latencies_us.update(taken)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        with suppress(threading.BrokenBarrierError):
            start.wait()
        cpu_s, began_s = time.process_time(), time.perf_counter()
        for thread in threads:
            thread.join()
        elapsed_s = time.perf_counter() - began_s
        load_cpu = (time.process_time() - cpu_s) / elapsed_s / (os.cpu_count() or 1)
        done = latencies_us.total()
        first_error = errors[0] if errors else ""
        return Sample(done, done / elapsed_s, len(errors), first_error, {WRITE: latencies_us}, load_cpu)

    def _writer(self, number: int) -> Callable[[], None]:
        engine = self._engine
        assert engine is not None
        change = update(accounts).where(accounts.c.id == number).values(balance=accounts.c.balance + 1)

        def plainly() -> None:
            with Session(engine) as session:
                session.execute(change)
                session.commit()

        def under_fence() -> None:
            with Session(engine) as session, fenced(session, lock_key=f"bench:{number}", token=TOKEN):
                session.execute(change)

        return under_fence if self._fenced else plainly


def _durable(driver: Any, _record: object) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=60000"):
        driver.execute(f"PRAGMA {pragma}").close()
