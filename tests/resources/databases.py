"""Databases of each kind for the tests of rows: each test has one of its own, in a server that they share."""

import itertools
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from tests.real.mariadb import MariadbServer
from tests.real.postgres import PostgresServer

_numbers = itertools.count()

KINDS = ("sqlite", "postgresql", "mariadb")


class Cursor(Protocol):
    def execute(self, statement: str, /) -> object: ...
    def fetchall(self) -> Any: ...


class Database:
    """Where rows are kept. `session` is a client that knows nothing of us."""

    kind: str
    url: str
    is_mysql = False
    """Of the kind "mariadb": whether it is MySQL itself."""

    @contextmanager
    def session(self) -> Iterator[Cursor]:
        raise NotImplementedError
        yield

    def execute(self, *statements: str) -> None:
        with self.session() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        with self.session() as cursor:
            cursor.execute(query)
            return [tuple(row) for row in cursor.fetchall()]


class Sqlite(Database):
    kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "data.db"
        self.url = f"sqlite:///{self._path}"

    @contextmanager
    def session(self) -> Iterator[Cursor]:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=30)) as connection:
            yield connection.cursor()


class Postgresql(Database):
    kind = "postgresql"

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.schema = f"rows{os.getpid()}_{next(_numbers)}"
        server.execute(f"CREATE SCHEMA {self.schema}")
        self.url = f"{server.url}?options=-csearch_path%3D{self.schema}"

    @contextmanager
    def session(self) -> Iterator[Cursor]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield connection.cursor()


class Mariadb(Database):
    kind = "mariadb"

    def __init__(self, server: MariadbServer) -> None:
        self.server = server
        self.is_mysql = server.is_mysql
        self.name = f"rows{os.getpid()}_{next(_numbers)}"
        server.ask(f"CREATE DATABASE {self.name} CHARACTER SET utf8mb4 COLLATE {server.bytewise}")
        self.url = server.url(self.name)

    @contextmanager
    def session(self) -> Iterator[Cursor]:
        with closing(self.server.connect(self.name)) as connection, connection.cursor() as cursor:
            yield cursor


def make_database(kind: str, request: pytest.FixtureRequest, folder: Path) -> Database:
    if kind == "sqlite":
        return Sqlite(folder)
    if kind == "postgresql":
        return Postgresql(request.getfixturevalue("postgres_server"))
    return Mariadb(request.getfixturevalue("mysql_server"))
