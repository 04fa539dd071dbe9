"""What is said of a commit whose answer was lost."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.errors import OutcomeUnknown
from fencegate.core.ports import Capabilities, Conflict, TooLate
from fencegate.engine.known import Known
from fencegate.engine.resolving import resolve


@pytest.mark.parametrize(("clock", "said"), [(True, Conflict), (False, OutcomeUnknown)])
async def test_too_late_is_the_end_of_a_lost_commit_only_where_the_store_judges_it(
    clock: bool, said: type[Exception]
) -> None:
    """A replica that judges by its own clock has not sent it again; the first, in a member that stands still, may
    land when that goes on. Whoever was told that it never will would have been told a lie."""
    before = Known("v1", None, ("v1",))

    class Late:
        capabilities = Capabilities(clock=clock)

        async def commit(self, *_given: object) -> None:
            raise TooLate

        async def load(self, entries: list[str]) -> dict[str, Known]:
            return dict.fromkeys(entries, before)

    lost: Any = SimpleNamespace(
        entry="lock/a", before=before, commit_id="v2", changes=[], log=[], not_after_us=SYSTEM.now_us() - 1
    )
    store = cast(Any, Late())
    with pytest.raises(said):
        await resolve(lost, store, store, SYSTEM)
