"""What this replica last saw of the store's entries, so that a commit can rest on it without a load."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import msgspec

from fencegate.core.model import Done, Record

MAX_KNOWN = 100_000


class Known(msgspec.Struct, frozen=True, gc=False):
    """An entry as it was last seen: its version (None: absent), what it says, and the commits before it."""

    version: str | None
    record: Record | None
    commits: tuple[str, ...] = ()


ABSENT = Known(None, None)


class _Entries(dict[str, Known]):
    def __missing__(self, _entry: str) -> Known:
        return ABSENT


class Knowledge:
    """Entries by name, as they were written or loaded last. It may be old: the commit finds out."""

    def __init__(self) -> None:
        self._entries = _Entries()
        self.guess: Callable[[str], Known] = self._entries.__getitem__
        """An entry as it was last seen, or ABSENT."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, entry: str) -> Known | None:
        return self._entries.get(entry)

    def learn(self, seen: Mapping[str, Known]) -> None:
        """What is remembered of settled requests is never asked for twice, and what is absent is guessed anyway."""
        entries = self._entries
        for entry, known in seen.items():
            if known.record is None or type(known.record) is Done:
                entries.pop(entry, None)
            else:
                entries[entry] = known
        if len(entries) > MAX_KNOWN:  # those known for longest; many at once, for one by one is quadratic
            self.forget(list(islice(entries, MAX_KNOWN // 4)))

    def forget(self, entries: Iterable[str]) -> None:
        for entry in entries:
            self._entries.pop(entry, None)
