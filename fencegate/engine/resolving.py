"""What became of a commit whose answer was lost."""

import asyncio
from contextlib import suppress

from fencegate.clock import Clock
from fencegate.core.errors import OutcomeUnknown, StoreUnavailable
from fencegate.core.ports import Ambiguous, Conflict, Store, TooLate, Unavailable
from fencegate.engine.attempt import Attempt
from fencegate.engine.codec import RECENT
from fencegate.engine.records import Records

TRIES = 6
WITHIN_S = 8.0
HOWEVER_LATE_US = 2**63 - 1


async def resolve(trying: Attempt, store: Store, records: Records, clock: Clock) -> None:
    """Find it out. Returns when it landed; Conflict when it never will; OutcomeUnknown when nobody can say.

    While the entry is unchanged the lost commit can still land, so the same commit is sent again until the entry moved,
    one way or the other: also when it is too late, where only this replica's clock could say so (ADR 24). Whoever asked
    does not wait for that for ever.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            return await _follow_up(trying, store, records, clock)
    raise _unknown()


async def _follow_up(trying: Attempt, store: Store, records: Records, clock: Clock) -> None:
    entry, before = trying.entry, trying.before
    not_after_us = trying.not_after_us if store.capabilities.clock else HOWEVER_LATE_US
    for number in range(TRIES):
        await asyncio.sleep(clock.jitter() * 0.01 * 2**number)
        too_late = False
        with suppress(Unavailable, Ambiguous, Conflict):
            try:
                await store.commit(trying.changes, trying.log, not_after_us)
                return
            except TooLate:
                too_late = True
        with suppress(StoreUnavailable):
            found = (await records.load([entry]))[entry]
            if trying.commit_id in found.commits:
                return
            if found.version != before.version:
                whole = len(found.commits) < RECENT if before.version is None else before.version in found.commits
                if whole:  # its commits reach back to ours, and ours is not among them
                    raise Conflict
                break
            if too_late:  # by the clock of the store, which will say the same of the first when that arrives
                raise Conflict
    raise _unknown()


def _unknown() -> OutcomeUnknown:
    return OutcomeUnknown("the store did not say whether it was done; repeat with the same requestId to find out")
