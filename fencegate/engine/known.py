"""What this replica last saw of the store's entries, so that a commit can rest on it without a load."""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from fencegate.core.model import DONE, Record

MAX_KNOWN = 100_000


class Known(NamedTuple):
    """An entry as it was last seen: its version (None: absent), what it says, and the commits before it."""

    version: str | None
    record: Record | None
    commits: tuple[str, ...] = ()


ABSENT = Known(None, None)


class Knowledge:
    """Entries by name, as they were written or loaded last. It may be old: the commit finds out."""

    def __init__(self) -> None:
        self._entries: dict[str, Known] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, entry: str) -> Known | None:
        return self._entries.get(entry)

    def guess(self, entry: str) -> Known:
        return self._entries.get(entry, ABSENT)

    def learn(self, entry: str, known: Known) -> None:
        """What is remembered of settled requests is never asked for twice, and what is absent is guessed anyway."""
        if known.record is None or entry.startswith(DONE):
            self._entries.pop(entry, None)
            return
        self._entries[entry] = known
        if len(self._entries) > MAX_KNOWN:  # those known for longest; many at once, for one by one is quadratic
            self.forget(list(islice(self._entries, MAX_KNOWN // 4)))

    def forget(self, entries: Iterable[str]) -> None:
        for entry in entries:
            self._entries.pop(entry, None)
