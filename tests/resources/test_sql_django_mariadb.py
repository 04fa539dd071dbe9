"""`fenced` on a connection of Django to MariaDB, by PyMySQL: what ends a transaction there behind our back."""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pymysql
import pytest
from django.conf import settings
from sqlalchemy import Engine, insert, make_url, text

from fencegate.core.errors import ResourceUnavailable, StaleToken, UnsafeConfiguration
from fencegate.sql import fenced
from tests.eventually import eventually_sync
from tests.resources.databases import Database, make_database
from tests.resources.sql_notes import Lease, Note, note, notes_in, somebody_waits, texts

NAME = "fenced_mariadb"


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database("mariadb", request, tmp_path)


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    with notes_in(database) as engine:
        yield engine


@pytest.fixture
def connection(database: Database, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import django
    from django.db import connections

    monkeypatch.setattr(pymysql, "version_info", (2, 2, 1, "final", 0))  # Django asks for that of mysqlclient
    for name in ("constants", "converters", "err"):  # what it loads under this name are copies, put in their place
        monkeypatch.setattr(pymysql, name, getattr(pymysql, name))
    monkeypatch.setitem(sys.modules, "MySQLdb", pymysql)
    if not settings.configured:
        settings.configure(DATABASES={}, INSTALLED_APPS=[], USE_TZ=True)
        django.setup()
    url = make_url(database.url)
    of_mariadb: dict[str, Any] = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": url.database,
        "HOST": url.host,
        "PORT": url.port,
    }
    of_mariadb |= {"USER": url.username, "PASSWORD": url.password or "", "OPTIONS": {"ssl_disabled": True}}
    connections.settings[NAME] = connections.configure_settings({"default": {}, NAME: of_mariadb})[NAME]
    connection = connections[NAME]
    yield connection
    connection.close()
    del connections[NAME], connections.settings[NAME]


class Silent:
    """A connection of a driver that does not tell of transactions, as mysqlclient."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        if name == "server_status":
            raise AttributeError(name)
        return getattr(self._driver, name)


@pytest.fixture
def silent(connection: Any) -> Any:
    connection.ensure_connection()
    connection.connection = Silent(connection.connection)
    return connection


def execute(connection: Any, statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else None


def test_it_passes_and_is_refused_and_leaves_no_token_behind(connection: Any, engine: Engine) -> None:
    with fenced(connection, Lease(7)):
        execute(connection, "INSERT INTO notes (text) VALUES ('of 7')")
    note(engine, 8, "of 8")
    with pytest.raises(StaleToken), fenced(connection, Lease(3, "job:a"), Lease(7)):
        pytest.fail("a stale holder was let in")
    assert execute(connection, "SELECT @fencegate_token") == ((None,),)
    assert texts(engine) == ["of 7", "of 8"]


def test_a_transaction_that_django_marks_for_a_rollback_leaves_no_token_behind(connection: Any) -> None:
    """As an error of `save()` does: no statement of the application is executed from there on."""
    from django.db import transaction

    with pytest.raises(ResourceUnavailable) as undone, fenced(connection, Lease(7)):
        transaction.set_rollback(True, using=NAME)
    assert undone.value.outcome == "not-written"
    with pytest.raises(ZeroDivisionError), fenced(connection, Lease(7)):
        transaction.set_rollback(True, using=NAME)
        _ = 1 // 0
    assert execute(connection, "SELECT @fencegate_token, @fencegate_lock") == ((None, None),)


@pytest.mark.parametrize(
    "said", ["COMMIT", "COMMIT AND CHAIN", "BEGIN", "CREATE TABLE implicit (id INT)", "ANALYZE TABLE notes"]
)
def test_what_ends_the_transaction_ends_the_block(connection: Any, engine: Engine, said: str) -> None:
    with pytest.raises(ResourceUnavailable) as ended, fenced(connection, Lease(7)):
        execute(connection, said)
        note(engine, 8, "of 8")
        execute(connection, "INSERT INTO notes (text) VALUES ('stale')")
    assert ended.value.outcome == "unknown"
    assert texts(engine) == ["of 8"]


def test_locks_of_tables_which_would_stay_in_the_connection_are_refused(connection: Any, engine: Engine) -> None:
    with pytest.raises(UnsafeConfiguration), fenced(connection, Lease(7)):
        execute(connection, "LOCK TABLES notes WRITE")
    note(engine, 7, "of 7")


@pytest.mark.parametrize("said", ["COMMIT AND CHAIN", "CREATE TABLE implicit (id INT)", "CALL commits()"])
def test_where_the_driver_does_not_tell_the_end_of_the_block_finds_out(silent: Any, engine: Engine, said: str) -> None:
    with engine.begin() as procedures:
        procedures.execute(text("CREATE PROCEDURE commits() COMMIT"))
    with fenced(silent, Lease(7)):
        execute(silent, "INSERT INTO notes (text) VALUES ('of 7')")
    with pytest.raises(ResourceUnavailable) as ended, fenced(silent, Lease(7)):
        execute(silent, said)
        note(engine, 8, "of 8")
        execute(silent, "INSERT INTO notes (text) VALUES ('stale')")
    assert ended.value.outcome == "unknown"
    assert texts(engine) == ["of 7", "of 8"]


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_deadlock_that_is_swallowed_ends_the_block(
    database: Database, connection: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """Also where the question what it undid is not answered."""
    from django.db import OperationalError

    def unanswered(*_: object, **__: object) -> None:
        raise pymysql.err.InterfaceError("no answer")

    def rival() -> None:
        with engine.begin() as other:
            other.execute(insert(Note), [{"text": f"rival {number}"} for number in range(30)])
            other.execute(text("UPDATE notes SET token = 1 WHERE text = 'b'"))
            has_b.set()
            other.execute(text("UPDATE notes SET token = 1 WHERE text = 'a'"))

    has_b = threading.Event()
    note(engine, 7, "a")
    note(engine, 7, "b")
    with (
        ThreadPoolExecutor(1) as threads,
        pytest.raises(ResourceUnavailable),
        fenced(connection, Lease(7)),
    ):
        execute(connection, "UPDATE notes SET token = 2 WHERE text = 'a'")
        winning = threads.submit(rival)
        assert has_b.wait(30)
        eventually_sync(lambda: somebody_waits(database))
        with monkeypatch.context() as meanwhile, pytest.raises(OperationalError, match="Deadlock"):
            if not is_answered:
                meanwhile.setattr(pymysql.Connection, "ping", unanswered)
            execute(connection, "UPDATE notes SET token = 2 WHERE text = 'b'")
        winning.result(30)
        note(engine, 8, "of 8")
        execute(connection, "INSERT INTO notes (text) VALUES ('stale')")
    assert "stale" not in texts(engine)
