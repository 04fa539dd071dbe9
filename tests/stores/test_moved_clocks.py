"""Servers whose clock is moved: of each store that leases go by the clock of."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fencegate.clock import Clock
from fencegate.core.ports import Store
from fencegate.testing.clock_suite import ClockSuite, MoveClock
from fencegate.testing.faulty_replicas import OpenThrough
from fencegate_lockservice.stores import open_store
from tests.real import mariadb, moved_clock, postgres, redis
from tests.real.mariadb import MariadbServer
from tests.real.moved_clock import MovedClock
from tests.real.postgres import PostgresServer
from tests.real.redis import RedisServer


@pytest.fixture(scope="module")
def moved() -> Iterator[MovedClock]:
    _need(moved_clock.missing())
    with tempfile.TemporaryDirectory(prefix="fencegate-clock-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user, who reads what is in it
        yield MovedClock(Path(folder))


@contextmanager
def around(moved: MovedClock) -> Iterator[None]:
    """Servers that are started meanwhile have this clock."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in moved.environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def move_clock(moved: MovedClock) -> MoveClock:
    return moved.move


def _need(missing: str | None) -> None:
    if missing is not None:
        pytest.skip(missing)


def opens(url: str) -> OpenThrough:
    """`url` has `ADDRESS` in it."""

    async def open_(address: str, clock: Clock) -> Store:
        return await open_store(url.replace("ADDRESS", address), clock)

    return open_


class TestRedisWithAMovedClock(ClockSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, moved: MovedClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
        _need(redis.missing())
        server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendonly", "yes", environment=moved.environment)
        server.start()
        yield server
        server.terminate()

    @pytest.fixture
    def open_through(self) -> OpenThrough:
        return opens("redis://ADDRESS/0")


class TestPostgresWithAMovedClock(ClockSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, moved: MovedClock) -> Iterator[PostgresServer]:
        _need(postgres.missing())
        server = PostgresServer()
        with around(moved):
            server.start()
        yield server
        server.terminate()

    @pytest.fixture
    def open_through(self) -> OpenThrough:
        return opens(f"postgresql://{postgres.USER}@ADDRESS/{postgres.DATABASE}")


class TestMysqlWithAMovedClock(ClockSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, moved: MovedClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariadbServer]:
        _need(mariadb.missing())
        server = MariadbServer(tmp_path_factory.mktemp("mariadb"))
        with around(moved):
            server.start()
        server.ask("CREATE DATABASE locks")
        yield server
        server.terminate()

    @pytest.fixture
    def open_through(self) -> OpenThrough:
        return opens("mysql://root@ADDRESS/locks")
