"""A connection to PostgreSQL that is warm enough to take the fence along; and how each transaction passed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from fencegate_adapters.sql.straight import Straight
from tests.resources.along.ways import WARM
from tests.resources.databases import Database, make_database
from tests.resources.sql_notes import (
    engine_of,
    note,
    notes_in,
)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return make_database("postgresql", request, tmp_path)


@pytest.fixture
def warm(database: Database) -> Iterator[Engine]:
    """An engine with one connection, which has passed with token 7 often enough to be quick."""
    with notes_in(database):
        engine = engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1)
        for number in range(WARM):
            note(engine, 7, f"{number}")
        yield engine
        engine.dispose()


@pytest.fixture
def other(database: Database, warm: Engine) -> Iterator[Engine]:
    engine = engine_of(database)
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each transaction passed, of those that did not go the usual way: a test in which none did shows nothing."""
    found: list[str] = []
    take_along, alone = Straight.take_along, Straight.alone

    def taken_along(self: Straight, driver: Any) -> None:
        found.append("along")
        take_along(self, driver)

    def passed_alone(self: Straight, driver: Any) -> Any:
        found.append("alone")
        return alone(self, driver)

    monkeypatch.setattr(Straight, "take_along", taken_along)
    monkeypatch.setattr(Straight, "alone", passed_alone)
    return found
