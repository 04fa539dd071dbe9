"""Gateway, `fenced` and the triggers of `fencegate protect` share one fence: what one has seen, all refuse below."""

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy.exc import DBAPIError

from fencegate.core.errors import StaleToken
from fencegate.core.ports import RowWrite
from fencegate.sql import fenced
from fencegate_adapters.sql import RowsResource
from fencegate_adapters.sql.dialect import dialect_of
from fencegate_adapters.sql.protect import install
from fencegate_adapters.sql.protect.naming import name_tokens
from fencegate_adapters.sql.protect.wanted import Wanted, table_name

_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = f"together_{os.getpid()}_{next(_numbers)}"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/data.db"
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_server")
        server.execute(f"CREATE DATABASE {name}")
        return str(server.url).rpartition("/")[0] + f"/{name}?options=-csearch_path%3Dpublic"
    mariadb = request.getfixturevalue("mysql_server")
    mariadb.ask(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE {mariadb.bytewise}")
    return str(mariadb.url(name))


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    parsed = make_url(url)
    engine = dialect_of(parsed.get_backend_name()).engine(parsed, 3)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (id VARCHAR(20) PRIMARY KEY, n INTEGER)"))
        connection.execute(text("INSERT INTO accounts VALUES ('a', 0), ('b', 0)"))
    install.protect(url, Wanted(table_name("accounts"), ("id",)))
    yield engine
    engine.dispose()


@pytest.fixture
async def rows(url: str, engine: Engine) -> AsyncIterator[RowsResource]:
    resource = RowsResource("accounts", url, table="accounts", key=("id",))
    await resource.open()
    yield resource
    await resource.close()


def write(connection: Connection, key: str, n: int) -> None:
    connection.execute(text("UPDATE accounts SET n = :n WHERE id = :key"), {"n": n, "key": key})


def write_with(engine: Engine, key: str, n: int, token: int) -> None:
    """A client that names its token by itself."""
    with engine.begin() as connection:
        name_tokens(connection, {f"accounts:{key}": token})
        try:
            write(connection, key, n)
        finally:
            if engine.dialect.name != "postgresql":
                name_tokens(connection, {})


def contents(engine: Engine) -> dict[str, int]:
    with engine.begin() as connection:
        return {row.id: row.n for row in connection.execute(text("SELECT id, n FROM accounts"))}


async def test_all_three_pass_a_protected_table_and_refuse_what_another_of_them_made_stale(
    engine: Engine, rows: RowsResource
) -> None:
    await rows.write("accounts:a", 10, [RowWrite("put", ("a",), {"n": 1})])
    with engine.connect() as connection, fenced(connection, lock_key="accounts:a", token=11):
        write(connection, "a", 2)
    with pytest.raises(StaleToken):
        await rows.write("accounts:a", 10, [RowWrite("put", ("a",), {"n": 3})])
    write_with(engine, "a", 4, 12)
    with pytest.raises(StaleToken), engine.connect() as connection, fenced(connection, lock_key="accounts:a", token=11):
        write(connection, "a", 5)
    await rows.write("accounts:a", 13, [RowWrite("patch", ("a",), {"n": 6})])
    with pytest.raises(DBAPIError, match="stale fencing token"):
        write_with(engine, "a", 7, 12)
    assert contents(engine) == {"a": 6, "b": 0}
    await rows.write("accounts:a", 13, [RowWrite("delete", ("a",))])
    with pytest.raises(DBAPIError, match="stale fencing token"), engine.begin() as connection:
        name_tokens(connection, {"accounts:a": 12})
        connection.execute(text("INSERT INTO accounts VALUES ('a', 8)"))


async def test_fenced_lets_no_row_of_another_lock_pass(engine: Engine) -> None:
    with (
        pytest.raises(DBAPIError, match="fencing token required"),
        engine.connect() as connection,
        fenced(connection, lock_key="accounts:a", token=11),
    ):
        write(connection, "b", 1)
    assert contents(engine) == {"a": 0, "b": 0}


async def test_tokens_are_forgotten_when_a_connection_goes_back(engine: Engine, rows: RowsResource) -> None:
    for _ in range(3):  # all connections of the pool have named one
        with engine.connect() as connection, fenced(connection, lock_key="accounts:a", token=11):
            write(connection, "a", 1)
    with pytest.raises(DBAPIError, match="fencing token required"), engine.begin() as connection:
        write(connection, "a", 2)
    await rows.write("accounts:b", 11, [RowWrite("put", ("b",), {"n": 1})])
    assert contents(engine) == {"a": 1, "b": 1}


async def test_a_floor_of_the_gateway_s_resource_counts_for_whoever_goes_round_it(
    engine: Engine, rows: RowsResource
) -> None:
    write_with(engine, "a", 1, 59)
    await rows.raise_floor(60)
    with pytest.raises(DBAPIError, match="stale fencing token"):
        write_with(engine, "a", 2, 59)
    write_with(engine, "a", 3, 60)
    assert contents(engine) == {"a": 3, "b": 0}
