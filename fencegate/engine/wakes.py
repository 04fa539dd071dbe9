"""Who has to hear of a lock above or below theirs: those who wait below it, and those who look below themselves."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from fencegate.core.model import ancestors


class Wakes:
    """The locks with a `/` in their key that somebody waits for here, by each lock above them."""

    def __init__(self) -> None:
        self._below: dict[str, dict[str, int]] = {}
        self._looking: dict[str, list[asyncio.Event]] = {}
        self.anybody = 0
        """How many there are."""

    @contextmanager
    def waiting(self, lock_key: str) -> Iterator[None]:
        """Somebody waits for this lock meanwhile."""
        above = ancestors(lock_key)
        self.anybody += 1
        for key in above:
            keys = self._below.setdefault(key, {})
            keys[lock_key] = keys.get(lock_key, 0) + 1
        try:
            yield
        finally:
            self.anybody -= 1
            for key in above:
                keys = self._below[key]
                keys[lock_key] -= 1
                if not keys[lock_key]:
                    del keys[lock_key]
                    if not keys:
                        del self._below[key]

    @contextmanager
    def looking_below(self, lock_key: str) -> Iterator[asyncio.Event]:
        """Gives an event that is set whenever something below this lock has changed."""
        event = asyncio.Event()
        self.anybody += 1
        self._looking.setdefault(lock_key, []).append(event)
        try:
            yield event
        finally:
            self.anybody -= 1
            events = self._looking[lock_key]
            events.remove(event)
            if not events:
                del self._looking[lock_key]

    def below(self, lock_key: str) -> list[str]:
        """The locks below this one that somebody waits for here."""
        return list(self._below.get(lock_key, ()))

    def changed(self, lock_key: str) -> None:
        """Tell those who look below themselves that this lock has changed."""
        if self._looking:
            for key in ancestors(lock_key):
                for event in self._looking.get(key, ()):
                    event.set()

    def everything_changed(self) -> None:
        for events in self._looking.values():
            for event in events:
                event.set()
