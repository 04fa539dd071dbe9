"""What a store said of commits while its line failed, and whether it is true."""

import asyncio

from fencegate.clock import SYSTEM
from fencegate.core.ports import Ambiguous, Change, Conflict, Entry, Store, TooLate, Unavailable
from fencegate.testing.committing import by, put

BACK_WITHIN_S = 20.0


class Said:
    """Each commit is of a key of its own, which nobody else writes: a Conflict can only be a lie."""

    def __init__(self) -> None:
        self._prefix = f"said/{SYSTEM.random_id(4)}"
        self._said: dict[str, tuple[Change, str]] = {}

    async def commit(self, store: Store, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        change = put(f"{self._prefix}-{len(self._said)}")
        self._said[change.key] = (change, "")
        try:
            await store.commit([change], [(change.key, b"{}")], by(store))
            said = "done"
        except (Conflict, TooLate, Ambiguous, Unavailable) as error:
            said = type(error).__name__
        self._said[change.key] = (change, said)

    async def is_back(self, store: Store) -> None:
        """Return when the store is reached again."""
        await self._load_in_the_end(store, [self._prefix])

    def count(self, *said: str) -> int:
        """How many commits were said to be one of these: `done`, `Ambiguous`, `Unavailable`."""
        return sum(one in said for _, one in self._said.values())

    async def judge(self, store: Store) -> None:
        found = await self._load_in_the_end(store, list(self._said))
        for key, (change, said) in self._said.items():
            there = found[key].version == change.version if key in found else False
            assert said in ("done", "Ambiguous", "Unavailable"), f"nobody else writes {key}, and its commit was {said}"
            if said != "Ambiguous":
                assert there == (said == "done"), f"a commit was {said}, and is {'' if there else 'not '}there: {key}"

    async def _load_in_the_end(self, store: Store, keys: list[str]) -> dict[str, Entry]:
        """A fault may have hit a line that nobody has used since: so every load may be the one that notices."""
        async with asyncio.timeout(BACK_WITHIN_S):
            while True:
                try:
                    return dict(await store.load(keys))
                except Unavailable:
                    await asyncio.sleep(0.02)
