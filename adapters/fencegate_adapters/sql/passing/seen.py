"""Which marks were met lately: a guess that decides which statement is tried first, and nothing else."""

import weakref
from typing import Generic, TypeVar

from fencegate_adapters.sql.passing.claims import Claims

_MOST = 1024

Home = TypeVar("Home")


class Seen(Generic[Home]):
    """By database (an engine, or a connection): lock keys, and the token that their mark was at."""

    def __init__(self) -> None:
        self._marks: weakref.WeakKeyDictionary[Home, dict[str, int]] = weakref.WeakKeyDictionary()
        self.careful: weakref.WeakSet[Home] = weakref.WeakSet()
        """Where transactions were found to keep their first snapshot."""

    def all_of(self, home: Home, claims: Claims) -> bool:
        marks = self._marks.get(home)
        return marks is not None and claims.tokens.items() <= marks.items()

    def add(self, home: Home, claims: Claims) -> None:
        marks = self._marks.setdefault(home, {})
        if len(marks) > _MOST:
            marks.clear()
        marks.update(claims.tokens)
