"""What is said of a commit whose answer was lost."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fencegate.clock import SYSTEM
from fencegate.core.model import LockRecord
from fencegate.core.ports import Ambiguous, Change, Conflict, TooLate
from fencegate.engine.attempt import Attempt
from fencegate.engine.codec import encode
from fencegate.engine.fold import Fold
from fencegate.engine.known import ABSENT
from fencegate.engine.records import Records
from fencegate.engine.resolving import resolve
from fencegate.testing.faulty_store import FaultyStore
from fencegate_lockservice.stores.memory import MemoryStore

ENTRY = "lock/a"
FAR_US = 2**62


class HeldBack(FaultyStore):
    """The first commit is under way until it is let go. Without a clock it is the replica that judges whether one is
    too late, before it sends it, as etcd's does."""

    def __init__(self, store: MemoryStore, *, clock: bool) -> None:
        super().__init__(store)
        self.capabilities = replace(store.capabilities, clock=clock)
        self.held: list[tuple[Sequence[Change], Sequence[tuple[str, bytes]], int]] = []

    async def commit(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int) -> None:
        if not self.capabilities.clock:
            if self.held and SYSTEM.now_us() > not_after_us:
                raise TooLate
            not_after_us = FAR_US
        if not self.held:
            self.held.append((changes, log, not_after_us))
            raise Ambiguous("no answer")
        await self._store.commit(changes, log, not_after_us)

    async def let_go(self) -> None:
        await self._store.commit(*self.held[0])


@pytest.mark.parametrize("clock", [True, False])
async def test_what_is_said_of_a_lost_commit_stays_true_when_it_arrives_after_all(clock: bool) -> None:
    """A replica that judges by its own clock has not sent it again, that is all: the first, in a member that stood
    still, may land when that goes on. Whoever was told that it never will would have been told a lie."""
    memory = MemoryStore()
    store = HeldBack(memory, clock=clock)
    value = encode(LockRecord(last_token=7), ("one",), 0)
    changes = [Change(ENTRY, None, "one", value)]
    lost = Attempt(Fold({}), ENTRY, ABSENT, {}, "one", changes, [], SYSTEM.now_us() - 1, 0)
    with pytest.raises(Ambiguous):
        await store.commit(lost.changes, lost.log, lost.not_after_us)
    try:
        await resolve(lost, store, Records(store, SYSTEM), SYSTEM)
        landed = True
    except Conflict:
        landed = False
    assert (ENTRY in await memory.load([ENTRY])) == landed
    with pytest.raises((Conflict, TooLate)):  # it can't do anything any more
        await store.let_go()
