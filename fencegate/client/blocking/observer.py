"""The sync face of an observer: the background thread follows the leader, and this thread waits for it."""

from types import TracebackType
from typing import Self

from fencegate.client.background import background
from fencegate.client.observer import Leader
from fencegate.client.observer import Observer as AsyncObserver


class Observer:
    """An iterator of Leader or None, by the rules of `fencegate.Observer`. `close` it from any thread."""

    def __init__(self, observer: AsyncObserver) -> None:
        self._observer = observer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Leader | None:
        try:
            return background().run(self._observer.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def begin(self) -> Self:
        """Follow from now on: returns when no leader can be missed any more."""
        background().run(self._observer.begin())
        return self

    def close(self) -> None:
        """Stop following; whoever waits for a change gets the end of the iteration."""
        background().run(self._observer.aclose())

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
