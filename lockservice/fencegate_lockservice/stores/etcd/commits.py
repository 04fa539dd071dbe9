"""Commits on their way to etcd: gathered into groups, several groups under way at once.

A commit that has more comparisons than a transaction of etcd takes goes through the gate: while the key `gate` is
there, no commit of anybody lands. Its owner then compares at leisure and writes everything on condition that the gate
is still its own. Whoever finds the same gate closed for a second takes it away, and its owner begins again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from fencegate.clock import Clock
from fencegate.core.ports import Ambiguous, Change, Conflict, Entry, TooLate, Unavailable
from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.client import RANGE, TXN, Client
from fencegate_lockservice.stores.etcd.keys import Keys
from fencegate_lockservice.stores.etcd.txn import MAX_OPERATIONS, MAX_REQUEST, MAX_WRITES, Item
from fencegate_lockservice.stores.grouping import Groups, Waiting
from fencegate_lockservice.stores.landing import Fate

AT_ONCE = 2
GATE_STALE_US = 1_000_000
GATE_WITHIN_US = 5_000_000
GATE_PAUSE_S = 0.005
LOOK_AHEAD = 512

Load = Callable[[Sequence[str]], Awaitable[Mapping[str, Entry]]]
Group = list[Waiting[Item]]


class Commits:
    """See the head of this file."""

    def __init__(self, client: Client, keys: Keys, clock: Clock, load: Load) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock
        self._load = load
        self._groups: Groups[Item] = Groups(self._send, at_once=AT_ONCE, choose=self._choose)
        self._flying: set[Item] = set()
        self._gate_seen: tuple[bytes, int] = (b"", 0)

    def add(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int, future: Fate) -> None:
        try:
            item = Item(self._keys, changes, log, not_after_us)
            if item.size > MAX_REQUEST or len(item.operations) > MAX_WRITES:
                raise ValueError(f"it is larger than the 1.5 MiB, or the {MAX_WRITES} writes, that etcd takes at once")
        except ValueError as error:
            future.set_exception(Unavailable(f"the store can't take this: {error}"))
        else:
            self._groups.add_as(item, future)

    async def close(self) -> None:
        await self._groups.close()

    # --- groups ---

    def _choose(self, gathered: Group) -> tuple[Group, Group]:
        """What goes out together, in the order in which it came as far as it is about the same keys; and what stays."""
        group: Group = []
        stays: Group = []
        written: set[str] = set()
        touched: set[str] = set()
        for item in self._flying:
            written |= item.written
            touched |= item.touched
        widest = size = 0
        for number, waiting in enumerate(gathered):
            item = waiting.item
            if number == LOOK_AHEAD or len(group) + widest >= MAX_OPERATIONS:
                stays += gathered[number:]
                break
            wider, larger = max(widest, item.width), size + item.size
            fits = not group or (len(group) + 1 + wider <= MAX_OPERATIONS and larger <= MAX_REQUEST)
            if fits and item.written.isdisjoint(touched) and item.touched.isdisjoint(written):
                group.append(waiting)
                widest, size = wider, larger
            else:
                stays.append(waiting)
            written |= item.written
            touched |= item.touched
        self._flying.update(waiting.item for waiting in group)
        return group, stays

    async def _send(self, group: Sequence[Waiting[Item]]) -> None:
        try:
            now_us = self._clock.now_us()
            timely = [waiting for waiting in group if not self._is_late(waiting, now_us)]
            if len(timely) == 1 and timely[0].item.width >= MAX_OPERATIONS:
                await self._through_the_gate(timely[0].item)
                timely[0].done()
            elif timely:
                await self._together(timely)
        finally:
            self._flying.difference_update(waiting.item for waiting in group)

    @staticmethod
    def _is_late(waiting: Waiting[Item], now_us: int) -> bool:
        """It was not sent, so whatever this replica's clock says, it is no lie that it was not written."""
        if now_us <= waiting.item.not_after_us:
            return False
        waiting.failed(TooLate())
        return True

    async def _together(self, group: Sequence[Waiting[Item]]) -> None:
        nested = [waiting.item.nested(slot) for waiting, slot in zip(group, self._keys.slots, strict=False)]
        body = proto.txn([proto.absent(self._keys.gate)], nested)
        until_us = self._clock.monotonic_us() + GATE_WITHIN_US
        while True:
            passed, landed = await self._client.write(TXN, body, proto.verdicts)
            if passed:
                break
            await self._gate_opened(until_us)
        if len(landed) != len(group):
            raise Ambiguous("etcd answered in a way that can't be understood")
        for waiting, done in zip(group, landed, strict=True):
            if done:
                waiting.done()
            else:
                waiting.failed(Conflict())

    # --- the gate ---

    async def _gate_opened(self, until_us: int) -> None:
        """Return when the gate is open, as far as can be seen; one that is closed for too long is opened."""
        while True:
            found = await self._client.read(RANGE, proto.range_of(self._keys.gate), proto.range_answer)
            if not found.kvs:
                return
            owner, now_us = found.kvs[0].value, self._clock.monotonic_us()
            if owner != self._gate_seen[0]:
                self._gate_seen = (owner, now_us)
            elif now_us - self._gate_seen[1] > GATE_STALE_US:
                await self._open_gate(owner)
            if now_us > until_us:
                raise Unavailable("etcd is busy with a large commit of somebody else; nothing was written, try again")
            await asyncio.sleep(GATE_PAUSE_S * (1 + self._clock.jitter()))

    async def _open_gate(self, owner: bytes) -> None:
        gate = self._keys.gate
        body = proto.txn([proto.equals(gate, owner)], [proto.delete(gate)])
        with suppress(Unavailable, Ambiguous):
            await self._client.write(TXN, body, proto.txn_answer)

    async def _through_the_gate(self, item: Item) -> None:
        gate, until_us = self._keys.gate, self._clock.monotonic_us() + GATE_WITHIN_US
        writes = [proto.delete(gate), *item.writes(self._keys.slots[0])]
        while self._clock.monotonic_us() < until_us:
            owner = self._clock.random_id().encode()
            closing = proto.txn([proto.absent(gate)], [proto.put(gate, owner)])
            try:
                try:
                    closed = (await self._client.write(TXN, closing, proto.txn_answer)).succeeded
                except Ambiguous as error:
                    raise Unavailable(str(error)) from None
                if closed:
                    found = await self._load(list(item.versions))
                    now = {key: found[key].version if key in found else None for key in item.versions}
                    if now != item.versions:
                        raise Conflict
                    body = proto.txn([proto.equals(gate, owner)], writes)
                    if (await self._client.write(TXN, body, proto.txn_answer)).succeeded:
                        return
            except BaseException:
                await self._open_gate(owner)
                raise
            await self._gate_opened(until_us)
        raise Unavailable("etcd is too busy for a commit of this size; nothing was written, try again")
