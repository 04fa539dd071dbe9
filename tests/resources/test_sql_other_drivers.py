"""`fenced` with drivers that it knows nothing of: statements go by SQLAlchemy, and nobody tells what became of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from sqlalchemy import Engine, create_engine, event, insert, make_url, text
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from fencegate.core.errors import ResourceUnavailable, UnsafeConfiguration
from fencegate.sql import fenced
from tests.resources.databases import Database, make_database
from tests.resources.sql_notes import Lease, Note, mark, note, notes_in, texts


class OtherPostgresql(PGDialect_psycopg):
    driver = "other"
    supports_statement_cache = True


class OtherMysql(MySQLDialect_pymysql):
    driver = "other"
    supports_statement_cache = True


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database(request.param, request, tmp_path)


@pytest.fixture
def known(database: Database) -> Iterator[Engine]:
    with notes_in(database) as engine:
        yield engine


@pytest.fixture
def engine(database: Database, other: Engine) -> Engine:
    if database.is_mysql:
        pytest.skip("MySQL can't be asked whether there is a transaction, so that such a driver is refused")
    return other


@pytest.fixture
def other(database: Database, known: Engine) -> Iterator[Engine]:
    registry.register("postgresql.other", __name__, "OtherPostgresql")
    registry.register("mysql.other", __name__, "OtherMysql")
    url = make_url(database.url)
    arguments = {"ssl_disabled": True} if database.kind == "mariadb" else {}
    engine = create_engine(url.set(drivername=f"{url.get_backend_name()}+other"), connect_args=arguments)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_on_mysql_itself_such_a_driver_is_refused(database: Database, known: Engine, other: Engine) -> None:
    if not database.is_mysql:
        pytest.skip("MariaDB is asked: name a MySQL server by FENCEGATE_MYSQLD")
    with pytest.raises(UnsafeConfiguration, match="PyMySQL"), Session(other) as session, fenced(session, Lease(7)):
        session.execute(insert(Note).values(text="undone"))
    assert texts(known) == []


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_what_an_unknown_driver_says_of_the_transaction_is_not_believed(known: Engine, engine: Engine) -> None:
    """It knows of a transaction, and never hears of its end, as asyncmy after some statements."""
    of_a_transaction = property(lambda _: 3, lambda _, __: None)

    @event.listens_for(engine, "connect")
    def connect(driver: Any, _record: object) -> None:
        driver.__class__ = type("Outdated", (pymysql.Connection,), {"server_status": of_a_transaction})

    with pytest.raises(ResourceUnavailable) as ended, Session(engine) as session, fenced(session, Lease(7)):
        session.execute(text("CREATE TABLE implicit (id INT)"))
        note(known, 8, "of 8")
        session.execute(insert(Note).values(text="stale"))
    assert ended.value.outcome == "unknown"
    assert texts(known) == ["of 8"]


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_savepoint_of_which_a_statement_failed_does_not_end_the_block(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The `ping` of mysqlclient takes nothing, and tells nothing."""
    monkeypatch.setattr(pymysql.Connection, "ping", lambda _: None)
    with Session(engine) as session, fenced(session, Lease(7)):
        session.execute(insert(Note).values(text="first"))
        with pytest.raises(DBAPIError, match="Duplicate"), session.begin_nested():
            session.execute(insert(Note).values(text="first"))
        session.execute(insert(Note).values(text="second"))
    assert texts(engine) == ["first", "second"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_transaction_in_which_a_swallowed_error_undid_everything_is_not_called_written(engine: Engine) -> None:
    for _ in range(2):
        with pytest.raises(ResourceUnavailable) as undone, Session(engine) as session, fenced(session, Lease(7)):
            session.execute(insert(Note).values(text="undone"))
            with pytest.raises(DBAPIError):
                session.connection().execute(text("SELECT * FROM nowhere"))
        assert undone.value.outcome == "not-written"
    assert texts(engine) == []


def test_a_transaction_that_was_ended_is_not_told_as_refused(known: Engine, engine: Engine) -> None:
    """To take the token away from the connection is not to pass once more."""
    with pytest.raises(ResourceUnavailable) as ended, Session(engine) as session, fenced(session, Lease(7)):
        session.execute(insert(Note).values(text="of 7"))
        session.execute(text("COMMIT"))
        note(known, 8, "of 8")
        session.execute(insert(Note).values(text="stale"))
    assert ended.value.outcome == "unknown"
    assert texts(engine) == ["of 7", "of 8"]


def test_it_passes_and_leaves_no_token_behind(database: Database, engine: Engine) -> None:
    names = "@fencegate_token" if database.kind == "mariadb" else "current_setting('fencegate.token', true)"
    for number in range(2):
        with Session(engine) as session, fenced(session, Lease(7), Lease(3, "job:other")):
            session.execute(insert(Note).values(text=f"{number}"))
            assert session.scalar(text(f"SELECT {names}")) == "3\n7"
    with engine.connect() as connection:
        assert not connection.scalar(text(f"SELECT {names}"))
    assert (texts(engine), mark(engine)) == (["0", "1"], 7)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_two_phases_of_which_the_second_would_be_refused_are_refused_at_once(engine: Engine) -> None:
    """With asyncpg, what was prepared stayed there for ever, with the lock of the fence."""
    with pytest.raises(UnsafeConfiguration), Session(engine, twophase=True) as session, fenced(session, Lease(7)):
        session.add(Note(text="undone"))
    assert texts(engine) == []
