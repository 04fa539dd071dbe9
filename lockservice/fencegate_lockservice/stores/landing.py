"""Where a store puts what became of a commit: a future, or a call to whoever asked, which saves a turn of the loop."""

from asyncio import Future

from fencegate.core.ports import Landed


class Landing:
    """Stands in for the future of a commit, as far as a store settles it."""

    __slots__ = ("_landed",)

    def __init__(self, landed: Landed) -> None:
        self._landed: Landed | None = landed

    def done(self) -> bool:
        return self._landed is None

    def set_result(self, _nothing: None) -> None:
        self._settle(None)

    def set_exception(self, error: BaseException) -> None:
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        landed, self._landed = self._landed, None
        if landed is not None:
            landed(error)


Fate = Future[None] | Landing


def settle(future: "Future[None]", error: BaseException | None) -> None:
    """The other way round: a future, told by a call."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
