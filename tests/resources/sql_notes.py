"""A table of notes for the tests of `fenced`, in a database of each kind, and who else may look at it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Engine, String, create_engine, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencegate.sql import fenced
from tests.resources.databases import Database

KEY = "job:rebuild"

_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql"}
_ASYNC_DRIVERS = _DRIVERS | {"sqlite": "sqlite+aiosqlite", "mariadb": "mysql+aiomysql"}
_WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%fencegate%'",
    "mariadb": "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
}


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(100), unique=True)
    token: Mapped[int | None] = mapped_column(BigInteger)


class Lease(NamedTuple):
    token: int
    lock_key: str = KEY


def engine_of(database: Database, **options: Any) -> Engine:
    arguments = {"sqlite": {"timeout": 60}, "mariadb": {"ssl_disabled": True}}.get(database.kind, {})
    arguments |= options.pop("connect_args", {})
    url = make_url(database.url).set(drivername=_DRIVERS[database.kind])
    return create_engine(url, connect_args=arguments, **options)


def async_engine_of(database: Database, **options: Any) -> AsyncEngine:
    url = make_url(database.url).set(drivername=_ASYNC_DRIVERS[database.kind])
    return create_async_engine(url, connect_args={"timeout": 60} if database.kind == "sqlite" else {}, **options)


@contextmanager
def notes_in(database: Database) -> Iterator[Engine]:
    engine = engine_of(database)
    Base.metadata.create_all(engine)
    try:
        yield engine
    finally:
        engine.dispose()


def note(engine: Engine, token: int, text_: str, key: str = KEY) -> None:
    with Session(engine) as session, fenced(session, Lease(token, key)):
        session.add(Note(text=text_))


def texts(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return list(session.scalars(select(Note.text).order_by(Note.id)))


def mark(engine: Engine, key: str = KEY) -> int:
    with engine.connect() as connection:
        query = text("SELECT token FROM fencegate_fences WHERE lock_key = :key AND mode = 'enforce'")
        return int(connection.execute(query, {"key": key.encode()}).scalar() or 0)


def somebody_waits(database: Database) -> bool:
    """Whether a transaction waits for the lock of another. (In a server that other tests don't use at this time.)"""
    return int(database.fetch(_WAITING[database.kind])[0][-1]) > 0
