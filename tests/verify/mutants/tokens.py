"""Planted where tokens come from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from fencegate.core.commands import Granted, Pending
from fencegate.core.machine import lock
from fencegate.core.model import Claimant, Hold, LockRecord, lock_entry
from fencegate.engine.codec import decode
from fencegate.verify.sim.resource import ResourceLink, Updates
from fencegate.verify.sim.store import StoreServer

Mutant = Callable[[], Any]


def _token_repeats() -> Any:
    """A grant gets the token of the last one."""
    return patch.object(lock.LockTurn, "lowest_token", lambda self: max(self.record.last_token, 1))


def _token_without_clock() -> Any:
    """A counter beside the lock: it goes back with the store."""
    return patch.object(lock.LockTurn, "lowest_token", lambda self: self.record.last_token + 1)


@contextmanager
def _token_of_the_counter() -> Iterator[None]:
    """Whoever writes asks the lock for its token now, instead of keeping the one that it was granted."""
    stores: list[StoreServer] = []
    begin, write = StoreServer.__init__, ResourceLink.write

    def begin_and_remember(self: StoreServer, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        stores[:] = [self]

    async def write_with_the_last(self: ResourceLink, key: str, updates: Updates, token: int) -> None:
        entry = stores[0].entries.get(lock_entry(key))
        record = decode(lock_entry(key), entry.value).record if entry is not None else None
        await write(self, key, updates, record.last_token if isinstance(record, LockRecord) else token)

    with (
        patch.object(StoreServer, "__init__", begin_and_remember),
        patch.object(ResourceLink, "write", write_with_the_last),
    ):
        yield


def _minted_before_the_commit() -> Any:
    """A request keeps the token that was minted at its first try, though another's commit came before its own."""
    minted: dict[str, int] = {}
    grant = lock.LockTurn.grant

    def grant_minted(
        self: lock.LockTurn, who: Claimant, shared_with: Hold | None = None, token: int = 0
    ) -> Granted | Pending:
        token = minted.setdefault(who.request, token or self.lowest_token())
        return grant(self, who, shared_with, token)

    return patch.object(lock.LockTurn, "grant", grant_minted)


TOKENS: dict[str, Mutant] = {
    "token of the last grant": _token_repeats,
    "token from a counter beside the lock": _token_without_clock,
    "token read from the shared counter": _token_of_the_counter,
    "minted before the commit": _minted_before_the_commit,
}
