"""Taking the fence along in forked processes, and behind a pooler (ADR 29)."""

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from fencegate.core.errors import StaleToken
from fencegate.sql import fenced
from tests.real import pgbouncer
from tests.real.pgbouncer import Pgbouncer
from tests.real.postgres import PostgresServer
from tests.resources.along.ways import WARM, backend
from tests.resources.databases import Database
from tests.resources.sql_notes import (
    Lease,
    Note,
    engine_of,
    note,
    notes_in,
    texts,
)


@pytest.fixture
def pooler(postgres_server: PostgresServer) -> Iterator[Pgbouncer]:
    if reason := pgbouncer.missing():
        pytest.skip(reason)
    pooler = Pgbouncer(postgres_server)
    yield pooler
    pooler.terminate()


class Pooled(Database):
    kind = "postgresql"

    def __init__(self, url: str) -> None:
        self.url = url


def in_child(body: Callable[[], object]) -> int:
    """What `body` came to in a forked process: 0, or 1 when it raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            body()
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_goes_on_with_connections_of_its_own(warm: Engine, ways: list[str]) -> None:
    def work() -> None:
        warm.dispose(close=False)  # as SQLAlchemy asks for
        for number in range(WARM):
            note(warm, 7, f"of the child {number}")

    assert in_child(work) == 0
    with Session(warm) as session, fenced(session, Lease(7)):
        session.connection()
        ways.clear()
        assert in_child(lambda: None) == 0
        session.add(Note(text="of the parent"))
    assert ways == ["along"]
    assert texts(warm)[WARM:] == [*(f"of the child {number}" for number in range(WARM)), "of the parent"]


@pytest.mark.parametrize("what", ["rollback", "commit", "close"])
def test_a_forked_process_leaves_its_parents_connection_alone(warm: Engine, ways: list[str], what: str) -> None:
    """As when it leaves the block by an exception. It would speak where the parent does."""
    connection = backend(warm)
    with Session(warm) as session, fenced(session, Lease(7)):
        session.connection()
        ways.clear()
        in_child(getattr(session, what))
        session.add(Note(text="of the parent"))
    assert ways == ["along"]
    assert texts(warm)[-1] == "of the parent"
    assert backend(warm) == connection


def test_behind_a_transaction_pooler_statements_take_it_along_all_the_same(
    pooler: Pgbouncer, postgres_server: PostgresServer, ways: list[str]
) -> None:
    """What is prepared is lost whenever the pooler gives a transaction another connection."""
    through = Pooled(pooler.url)
    with notes_in(through):
        # The driver's own statements would fail there; ours don't.
        engine = engine_of(through, pool_size=8, connect_args={"prepare_threshold": 1_000_000})

        def work(worker: int) -> None:
            for number in range(60):
                key, token = f"pooled:{worker}", 10 + number // 20
                note(engine, token, f"{worker} {number}", key)
                if number % 20 == 0:
                    with pytest.raises(StaleToken):
                        note(engine, token - 1, "stale", key)

        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(work, worker) for worker in range(8)]:
                done.result(120)
        assert ways.count("along") > 100
        assert len(texts(engine)) == 8 * 60
        engine.dispose()
    postgres_server.execute("DROP TABLE notes, fencegate_fences, fencegate_resources")
