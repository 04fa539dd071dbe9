"""`fenced` among real processes on database servers: a holder that is stopped at the worst line, or never goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from fencegate.core.errors import ResourceUnavailable
from tests.child import Child
from tests.resources.databases import Database, make_database
from tests.resources.sql_notes import engine_of, mark, note, notes_in, texts

HOLDER = """
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from fencegate.core.errors import FencegateError, StaleToken
from fencegate.sql import fenced
from tests.resources.databases import Database
from tests.resources.sql_notes import engine_of

database = Database()
database.kind, database.url, where, idle_s = sys.argv[1:]
engine = engine_of(database)

def stop(at):
    if at == where:
        signal.raise_signal(signal.SIGSTOP)

@event.listens_for(engine, "connect")
def limit(driver, _):
    if int(idle_s):
        is_mysql = database.kind == "mariadb" and "MariaDB" not in driver.get_server_info()
        kind = "mysql" if is_mysql else database.kind
        with driver.cursor() as cursor:
            cursor.execute({
                "postgresql": "SET idle_in_transaction_session_timeout = '%ss'",
                "mariadb": "SET SESSION idle_transaction_timeout = %s",
                "mysql": "SET SESSION wait_timeout = %s",
            }[kind] % idle_s)
        driver.commit()

with Session(engine) as session:
    try:
        session.execute(text("SELECT text FROM notes")).all()
        session.rollback()
        stop("before")
        with fenced(session, lock_key="job:rebuild", token=7):
            seen = session.execute(text("SELECT text FROM notes WHERE id = 1")).scalar_one()
            if where == "between":
                session.commit()
                stop("between")
            session.execute(text("UPDATE notes SET text = :new WHERE id = 1"), {"new": seen + "+7"})
            stop("inside")
        say("written")
    except StaleToken as stale:
        say("stale %d %d" % (stale.token, stale.highest))
    except FencegateError as error:
        say("failed: " + error.members.get("outcome", error.code))
    except DBAPIError as error:
        say("failed: not-written")
"""


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database(request.param, request, tmp_path)


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    with notes_in(database) as engine:
        note(engine, 1, "start")
        yield engine


def holder(database: Database, where: str, idle_s: int = 0) -> Child:
    return Child(HOLDER, database.kind, database.url, where, idle_s)


def bump(engine: Engine, token: int) -> None:
    from sqlalchemy import text
    from sqlalchemy.orm import Session

    from fencegate.sql import fenced

    with Session(engine) as session, fenced(session, lock_key="job:rebuild", token=token):
        seen = session.execute(text("SELECT text FROM notes WHERE id = 1")).scalar_one()
        session.execute(text("UPDATE notes SET text = :new WHERE id = 1"), {"new": f"{seen}+{token}"})


@pytest.mark.parametrize(
    ("database", "where"), [("postgresql", "before"), ("mariadb", "between")], indirect=["database"]
)
def test_a_holder_stopped_between_its_read_and_its_write_is_refused(
    database: Database, engine: Engine, where: str
) -> None:
    with holder(database, where) as stale:
        stale.wait_until_stopped()
        bump(engine, 8)
        stale.proceed()
        assert stale.line() == "stale 7 8"
    assert texts(engine) == ["start+8"]


def test_a_holder_stopped_inside_its_transaction_blocks_its_successor_but_never_overtakes_it(
    database: Database, engine: Engine
) -> None:
    with holder(database, "inside") as stopped:
        stopped.wait_until_stopped()
        limits = {
            "postgresql": {"connect_args": {"options": f"-csearch_path={_schema(database)} -clock_timeout=300ms"}},
            "mariadb": {"connect_args": {"init_command": "SET SESSION innodb_lock_wait_timeout = 1"}},
        }
        impatient = engine_of(database, **limits[database.kind])
        with pytest.raises(ResourceUnavailable) as busy:
            bump(impatient, 8)
        assert busy.value.outcome == "not-written"
        impatient.dispose()
        stopped.proceed()
        assert stopped.line() == "written"
    bump(engine, 8)
    assert texts(engine) == ["start+7+8"]


def _schema(database: Database) -> str:
    return database.url.rpartition("%3D")[2]


def test_a_holder_that_stands_still_inside_its_transaction_is_ended_by_the_database(
    database: Database, engine: Engine
) -> None:
    with holder(database, "inside", idle_s=1) as stopped:
        stopped.wait_until_stopped()
        bump(engine, 8)  # waits until the database has ended the other's transaction, and no longer
        stopped.proceed()
        assert stopped.line().startswith("failed: ")
    assert texts(engine) == ["start+8"]
    assert mark(engine) == 8


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_holder_killed_inside_its_transaction_leaves_nothing_behind(database: Database, engine: Engine) -> None:
    with holder(database, "inside") as killed:
        killed.wait_until_stopped()
        killed.kill()
    bump(engine, 8)
    assert texts(engine) == ["start+8"]
