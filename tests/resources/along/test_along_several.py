"""Several blocks over one connection of PostgreSQL: each passes its own fence, whoever of them begins (ADR 29)."""

import contextlib

import pytest
from sqlalchemy import Engine, insert
from sqlalchemy.orm import Session

from fencegate.core.errors import ResourceUnavailable, StaleToken
from fencegate.sql import fenced
from fencegate_adapters.sql.homes import home_of
from tests.resources.sql_notes import (
    KEY,
    Lease,
    Note,
    note,
    texts,
)

OTHER = "job:other"


@pytest.mark.filterwarnings("ignore:transaction already deassociated")  # the first of two sessions has rolled back both
@pytest.mark.parametrize("stale", [KEY, OTHER, None])
@pytest.mark.parametrize("of", ["connection", "session"])
@pytest.mark.parametrize("is_seen", [False, True])
def test_a_block_of_a_session_and_one_of_whoever_shares_its_connection_pass_both(
    warm: Engine, other: Engine, ways: list[str], stale: str | None, of: str, is_seen: bool
) -> None:
    """The first is still to pass with what comes first, when the second begins."""
    if is_seen:
        note(warm, 7, "seen", OTHER)
    if stale:
        note(other, 8, "of 8", stale)
    before = texts(other)
    ways.clear()
    with (
        pytest.raises(StaleToken) if stale else contextlib.nullcontext(),
        warm.connect() as connection,
        Session(connection) as one,
        Session(connection) as two,
        fenced(connection if of == "connection" else one, Lease(7)),
        fenced(two, Lease(7, OTHER)),
    ):
        if of == "session":
            one.connection()
        two.execute(insert(Note).values(text="written"))
    assert ways == ["alone"]
    assert texts(other) == (before if stale else [*before, "written"])


def test_a_refusal_that_is_swallowed_opens_no_way_past_the_other_block(warm: Engine, other: Engine) -> None:
    """The first is refused for a while, since no other connection is to be had, and passes when it is tried again."""
    note(other, 8, "of 8", OTHER)
    before = texts(other)
    with (
        pytest.raises(StaleToken),
        Session(warm) as session,
        fenced(session, Lease(7)),
        fenced(session, Lease(7, OTHER)),
    ):
        home_of(warm).prepared = False
        with pytest.raises(ResourceUnavailable, match="QueuePool"):
            session.connection()
        home_of(warm).prepared = True
        session.execute(insert(Note).values(text="written"))
    assert texts(other) == before
