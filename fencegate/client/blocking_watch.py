"""Watching locks without `await`: the background thread follows, and this thread waits for it."""

from types import TracebackType
from typing import Self

from fencegate.client.background import background
from fencegate.client.watch import Watcher as AsyncWatcher
from fencegate.client.watch import WatchEvent


class Watcher:
    """An iterator of WatchEvent, by the rules of `fencegate.client.watch.Watcher`. `close` it from any thread."""

    def __init__(self, watcher: AsyncWatcher) -> None:
        self._watcher = watcher

    @property
    def id(self) -> int | None:
        """Where it stands: what another watcher gives as `since` to go on from here. None before it has begun."""
        return self._watcher.id

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WatchEvent:
        event = background().run(self._watcher.next_event())
        if event is None:
            raise StopIteration
        return event

    def begin(self) -> Self:
        """Follow from now on: returns when nothing that happens can be missed any more."""
        background().run(self._watcher.begin())
        return self

    def close(self) -> None:
        """Stop watching; whoever waits for an event gets the end of the iteration."""
        background().run(self._watcher.aclose())

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
