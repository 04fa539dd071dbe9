"""What a transaction may begin with."""

from collections.abc import Callable
from typing import Any

from psycopg import pq
from sqlalchemy import Engine, Sequence, select, text
from sqlalchemy.orm import Session

from tests.resources.databases import Database
from tests.resources.sql_notes import (
    Note,
)

WARM = 5
ADD = "INSERT INTO notes (text) VALUES (%s)"


def backend(engine: Engine) -> int:
    """Which connection the pool has; nothing of the last transaction is left in it."""
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        assert driver.pgconn.transaction_status == pq.TransactionStatus.IDLE
        assert driver.pgconn.pipeline_status == pq.PipelineStatus.OFF
        assert "wait" not in vars(driver)
        return int(driver.info.backend_pid)


def a_lock_is_waited_for(database: Database) -> bool:
    return bool(database.fetch("SELECT 1 FROM pg_locks WHERE NOT granted"))


def by_sequence(session: Session) -> object:
    return session.scalar(Sequence("notes_id_seq"))  # SQLAlchemy tells nobody before it executes this


def by_driver(session: Session) -> object:
    return session.connection().connection.cursor().execute(ADD, ["written"])


def by_copy(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    with driver.cursor().copy("COPY notes (text) FROM STDIN") as copy:
        copy.write_row(["written"])


def by_savepoint(session: Session) -> None:
    with session.begin_nested():
        session.add(Note(text="written"))


def by_drivers_savepoint(session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    with driver.transaction():
        driver.execute(ADD, ["written"])


def by_flush(session: Session) -> None:
    session.add(Note(text="written"))


def by_several_at_once(session: Session) -> None:
    session.add_all([Note(text="written"), Note(text="written too")])


def by_condition(session: Session) -> object:
    return session.scalars(select(Note.text).where(Note.text == "0")).all()


def by_stream(session: Session) -> object:
    """With a cursor of the server."""
    wanted = select(Note.text).where(Note.text == "0").execution_options(stream_results=True)
    return session.scalars(wanted).all()


def by_large_value(session: Session) -> object:
    """More than goes out at once."""
    return session.scalar(text("SELECT length(:value)"), {"value": "x" * 20_000_000})


def by_many(session: Session) -> None:
    session.execute(text("INSERT INTO notes (text) VALUES (:text)"), [{"text": "written"}, {"text": "written too"}])


def by_look(session: Session) -> object:
    return session.scalars(select(Note.text)).all()


WAYS: list[Callable[[Session], object]] = [
    by_sequence, by_driver, by_copy, by_savepoint, by_drivers_savepoint, by_flush, by_several_at_once, by_condition,
    by_stream, by_large_value, by_many, by_look,
]  # fmt: skip
TAKE_ALONG = [by_flush, by_several_at_once, by_condition, by_large_value]
