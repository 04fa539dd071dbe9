"""A store that is slow and does not say what it did."""

import asyncio
from collections.abc import Sequence

from fencegate.core.ports import Ambiguous, Change
from fencegate.testing.faulty_store import FaultyStore


class SlowAndUnsure(FaultyStore):
    """Every call takes long, and says nothing in the end."""

    slow = False

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        if self.slow:
            await asyncio.sleep(0.15)
            raise Ambiguous("no answer")
        await super().commit(changes, log, not_after_us)
