"""A MariaDB server for the tests of one worker, and databases in it that no other test uses."""

from collections.abc import Iterator

import pytest

from fencegate.clock import SYSTEM
from tests.real import mariadb
from tests.real.mariadb import MariadbServer


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariadbServer]:
    """Running; a test that kills it starts it again."""
    if reason := mariadb.missing():
        pytest.skip(reason)
    server = MariadbServer(tmp_path_factory.mktemp("mariadb")).start()
    yield server
    server.terminate()


@pytest.fixture(scope="session")
def mysql_database(mysql_server: MariadbServer) -> str:
    """One whose tables are made once: that takes longer than most tests."""
    name = "locks"
    mysql_server.ask(f"CREATE DATABASE {name}")
    return name


@pytest.fixture
def mysql_url(mysql_server: MariadbServer, mysql_database: str) -> str:
    """Without entries: those of the last test are gone."""
    tables = {name for (name,) in mysql_server.ask("SHOW TABLES", mysql_database)}
    for table in tables & {"distributed_locks", "fencegate_entries"}:
        mysql_server.ask(f"DELETE FROM {table}", mysql_database)
    return mysql_server.url(mysql_database)


@pytest.fixture
def new_mysql_database(mysql_server: MariadbServer) -> Iterator[str]:
    """Empty, without any tables."""
    name = f"locks_{SYSTEM.random_id(6)}"
    mysql_server.ask(f"CREATE DATABASE {name}")
    yield name
    mysql_server.ask(f"DROP DATABASE {name}")
