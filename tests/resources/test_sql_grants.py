"""The rights that the pages tell to grant are enough, and no mark can be taken away with them."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from fencegate.clock import SYSTEM
from fencegate.core.errors import StaleToken
from fencegate.core.ports import RowWrite
from fencegate.sql import fenced
from fencegate_adapters.http.fence.durable import DurableFence
from fencegate_adapters.http.fence.record import Record
from fencegate_adapters.sql import RowsResource
from tests.resources.databases import Database, Postgresql, make_database
from tests.resources.sql_notes import Lease

DRIVERS = {"postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql"}
OF_AN_UPSTREAM = {  # as `http.md` has them
    "fencegate_http_marks": "SELECT, INSERT, UPDATE",
    "fencegate_http_intents": "SELECT, INSERT, DELETE",
    "fencegate_http_resources": "SELECT, INSERT, UPDATE",
}


@pytest.fixture(params=DRIVERS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    database = make_database(request.param, request, tmp_path)
    database.execute("CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT)")
    return database


def rows(url: str) -> RowsResource:
    return RowsResource("accounts", url, table="accounts", key=("id",), guard_template="{resource}:{key}")


async def restricted(database: Database) -> str:
    """The URL of a user who has what `rows.md` says, after somebody else has had the tables made."""
    made = rows(database.url)
    await made.open()
    await made.close()
    of_fences = "SELECT, INSERT, UPDATE"
    rights = {"accounts": f"{of_fences}, DELETE", "fencegate_fences": of_fences, "fencegate_resources": of_fences}
    return granted(database, rights)


def granted(database: Database, rights: dict[str, str]) -> str:
    """The URL of a new user who has these rights on these tables."""
    name = f"gateway_{SYSTEM.random_id(6)}"
    user = name if isinstance(database, Postgresql) else f"{name}@'%'"
    if isinstance(database, Postgresql):
        database.execute(f"CREATE ROLE {name} LOGIN", f"GRANT USAGE ON SCHEMA {database.schema} TO {name}")
    else:
        database.execute(f"CREATE USER {user}")
    database.execute(*(f"GRANT {what} ON {table} TO {user}" for table, what in rights.items()))
    return make_url(database.url).set(username=name, password=None).render_as_string()


async def test_the_rights_of_the_page_are_enough_for_the_gateway_and_for_fenced(database: Database) -> None:
    url = await restricted(database)
    accounts = rows(url)
    await accounts.open()
    await accounts.write("accounts:1", 7, [RowWrite("put", ("1",), {"balance": "5"})])
    await accounts.claim("accounts:1", 8)
    await accounts.delete(("1",), "accounts:1", 8)
    with pytest.raises(StaleToken):
        await accounts.write("accounts:1", 7, [RowWrite("put", ("1",), {"balance": "6"})])
    await accounts.close()
    engine = create_engine(make_url(url).set(drivername=DRIVERS[database.kind]))
    for token in (9, 9, 10):
        with Session(engine) as session, fenced(session, Lease(token, "accounts:1")):
            session.execute(text("UPDATE accounts SET balance = 0"))
    with pytest.raises(StaleToken), Session(engine) as session, fenced(session, Lease(9, "accounts:1")):
        session.execute(text("UPDATE accounts SET balance = 1"))
    with engine.begin() as connection, pytest.raises(DBAPIError, match="denied"):
        connection.execute(text("DELETE FROM fencegate_fences"))
    engine.dispose()


async def test_the_rights_of_the_page_are_enough_for_the_fence_of_a_service(database: Database) -> None:
    record = Record("api", "{resource}:{key}", "[]", "enforce")
    first = DurableFence(database.url, record, SYSTEM)
    await first.open()
    await first.close()
    url = granted(database, OF_AN_UPSTREAM)
    fence = DurableFence(url, record, SYSTEM)
    await fence.open()
    older = await fence.announce("k", 7, 60_000_000, drained=True)
    assert older.intent is not None
    assert (await fence.claim("k", 8)).blocked_us > 0
    fence.end("k", older.intent)
    await fence.raise_floor(9)
    with pytest.raises(StaleToken):
        await fence.claim("k", 8)
    assert (await fence.announce("k", 9, 60_000_000, drained=True)).intent is not None
    await fence.close()
    engine = create_engine(make_url(url).set(drivername=DRIVERS[database.kind]))
    with engine.begin() as connection, pytest.raises(DBAPIError, match="denied"):
        connection.execute(text("DELETE FROM fencegate_http_marks"))
    engine.dispose()
