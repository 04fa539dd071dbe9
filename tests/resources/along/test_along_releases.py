"""The fence is taken along by the releases of psycopg whose inside is known, and by no other (ADR 29)."""

from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.orm import Session

from fencegate.core.errors import StaleToken
from fencegate.sql import fenced
from tests.resources.along.ways import WARM, WAYS, backend
from tests.resources.databases import Database
from tests.resources.sql_notes import Lease, Note, engine_of, note, texts

KNOWN = ["3.3.0", "3.3.8", "3.3.99"]
UNKNOWN = ["3.2.9", "3.4.0", "3.4.0.dev1", "3.30.1", "4.3.3", "33.3", ""]


@pytest.fixture
def engine(
    database: Database, warm: Engine, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """Warm enough, with one connection that was made with this release."""
    monkeypatch.setattr(psycopg, "__version__", request.param)
    engine = engine_of(database, pool_size=1, max_overflow=0, pool_timeout=1)
    for number in range(WARM):
        note(engine, 7, f"of this release {number}")
    yield engine
    engine.dispose()


@pytest.mark.parametrize("engine", KNOWN, indirect=True)
def test_a_release_that_is_known_takes_the_fence_along(engine: Engine, ways: list[str]) -> None:
    ways.clear()
    with Session(engine) as session, fenced(session, Lease(7)):
        session.execute(insert(Note).values(text="written"))
    assert ways == ["along"]


@pytest.mark.parametrize("engine", UNKNOWN, indirect=True)
def test_another_release_passes_alone_before_the_first_statement(engine: Engine, ways: list[str]) -> None:
    ways.clear()
    with Session(engine) as session, fenced(session, Lease(7)):
        connection = session.connection()
        assert ways == ["alone"]
        assert "wait" not in vars(connection.connection.driver_connection)
        session.execute(insert(Note).values(text="written"))
    assert ways == ["alone"]
    assert "written" in texts(engine)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", UNKNOWN[1:2], indirect=True)
def test_with_another_release_whatever_comes_first_passes_or_is_refused_as_stale(
    engine: Engine, other: Engine, ways: list[str], way: Callable[[Session], object]
) -> None:
    connection = backend(engine)
    ways.clear()
    with Session(engine) as session, fenced(session, Lease(7)):
        way(session)
    assert ways == ["alone"]
    written = texts(engine)
    note(other, 8, "of 8")
    with pytest.raises(StaleToken) as refused, Session(engine) as session, fenced(session, Lease(7)):
        way(session)
    assert "along" not in ways
    assert refused.value.highest == 8
    assert texts(engine) == [*written, "of 8"]
    assert backend(engine) == connection
