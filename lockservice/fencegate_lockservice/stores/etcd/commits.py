"""Commits on their way to etcd: gathered into groups, several groups under way at once.

A group is sent as if it were one commit, which is the least work for etcd. When that fails, since one of them met
another's change or the gate, nothing was written: it is sent again as transactions of their own within one, of which
each has its verdict, and so are some groups after it, for where two meet there are more.

A commit that has more comparisons than a transaction of etcd takes goes through the gate: while the key `gate` is
there, no commit of anybody lands. Its owner then compares at leisure and writes everything on condition that the gate
is still its own. Whoever finds the same gate closed for a second takes it away, and its owner begins again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fencegate.clock import Clock
from fencegate.core.ports import Ambiguous, Change, Conflict, Entry, TooLate, Unavailable
from fencegate_lockservice.stores.etcd import proto
from fencegate_lockservice.stores.etcd.client import RANGE, TXN, Client
from fencegate_lockservice.stores.etcd.keys import Keys
from fencegate_lockservice.stores.etcd.lines import Lines
from fencegate_lockservice.stores.etcd.txn import MAX_OPERATIONS, MAX_REQUEST, MAX_WRITES, Bodies, Item
from fencegate_lockservice.stores.grouping import Groups, Waiting
from fencegate_lockservice.stores.landing import Fate

AT_ONCE = 2
ENOUGH = 16
"""So many go out without waiting for more: etcd flushes them, while we make the others."""
SINGLY = 8
"""So many groups are sent as commits of their own, after one in which not all went well."""
GATE_STALE_US = 1_000_000
GATE_WITHIN_US = 5_000_000
GATE_PAUSE_S = 0.005
LOOK_AHEAD = 512

Load = Callable[[Sequence[str]], Awaitable[Mapping[str, Entry]]]
Kept = Callable[[int], None]
"""Hears that something will be past its time then."""
Group = list[Waiting[Item]]


class Touched(NamedTuple):
    """The entries that some commits are about, and those of them that they write."""

    all: set[str]
    written: set[str]

    def leaves_alone(self, item: Item) -> bool:
        """Whether none of the two writes what the other is about."""
        return self.all.isdisjoint(item.written) and self.written.isdisjoint(item.versions)

    def add(self, item: Item) -> None:
        self.all.update(item.versions)
        self.written.update(item.written)


class Commits:
    """See the head of this file."""

    def __init__(self, client: Client, keys: Keys, lines: Lines, clock: Clock, load: Load, kept: Kept) -> None:
        self._client = client
        self._keys = keys
        self._bodies = Bodies(keys, lines)
        self._clock = clock
        self._load = load
        self._kept = kept
        self._groups: Groups[Item] = Groups(self._send, at_once=AT_ONCE, enough=ENOUGH, choose=self._choose)
        self._singly = 0
        self._chosen = Touched(set(), set())
        self._flying: list[Touched] = []
        self._gate_seen: tuple[bytes, int] = (b"", 0)

    def add(self, changes: Sequence[Change], log: Sequence[tuple[str, bytes]], not_after_us: int, future: Fate) -> None:
        try:
            item = Item(self._keys, changes, log, not_after_us)
            if item.size > MAX_REQUEST or item.writes > MAX_WRITES:
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
        chosen = self._chosen = Touched(set(), set())
        before = Touched(set(), set())  # what is under way, or stands before it here
        for touched in self._flying:
            before.all.update(touched.all)
            before.written.update(touched.written)
        widest = size = 0
        for number, waiting in enumerate(gathered):
            item = waiting.item
            if number == LOOK_AHEAD or len(group) + widest >= MAX_OPERATIONS:
                stays += gathered[number:]
                break
            wider, larger = max(widest, item.width), size + item.size
            fits = not group or (len(group) + 1 + wider <= MAX_OPERATIONS and larger <= MAX_REQUEST)
            if fits and before.leaves_alone(item):
                group.append(waiting)
                chosen.add(item)
                widest, size = wider, larger
            else:
                stays.append(waiting)
            before.add(item)
        return group, stays

    def _send(self, group: Sequence[Waiting[Item]]) -> Coroutine[Any, Any, None]:
        touched = self._chosen
        carried = self._begun(self._timely(group))
        self._flying.append(touched)
        return self._landed(touched, carried)

    async def _landed(self, touched: Touched, carried: Coroutine[Any, Any, None] | None) -> None:
        try:
            if carried is not None:
                await carried
        finally:
            self._flying.remove(touched)

    def _timely(self, group: Sequence[Waiting[Item]]) -> Sequence[Waiting[Item]]:
        """The others were not written, whatever this replica's clock says, so it is no lie to say that."""
        now_us = self._clock.now_us()
        late = [waiting for waiting in group if waiting.item.not_after_us < now_us]
        for waiting in late:
            waiting.failed(TooLate())
        return [waiting for waiting in group if waiting not in late] if late else group

    def _begun(self, group: Sequence[Waiting[Item]]) -> Coroutine[Any, Any, None] | None:
        """Send it; what is given ends when etcd has answered."""
        if not group:
            return None
        if len(group) == 1 and group[0].item.width >= MAX_OPERATIONS:
            return self._through_the_gate(group[0])
        if len(group) > 1 and not self._singly:
            body = self._bodies.all_or_none([waiting.item for waiting in group])
            if body is not None:
                return self._all(group, self._client.write(TXN, body, proto.succeeded))
        self._singly = max(0, self._singly - 1)
        return self._each(group)

    async def _all(self, group: Sequence[Waiting[Item]], written: Coroutine[Any, Any, bool]) -> None:
        if await written:
            for waiting in group:
                self._done(waiting)
            return
        self._singly = SINGLY
        if timely := self._timely(group):
            await self._each(timely)

    def _each(self, group: Sequence[Waiting[Item]]) -> Coroutine[Any, Any, None]:
        body = self._bodies.each([waiting.item for waiting in group])
        return self._told_each(group, body, self._client.write(TXN, body, proto.verdicts))

    async def _told_each(
        self, group: Sequence[Waiting[Item]], body: bytes, written: Coroutine[Any, Any, tuple[bool, list[bool]]]
    ) -> None:
        until_us = self._clock.monotonic_us() + GATE_WITHIN_US
        passed, landed = await written
        while not passed:
            await self._gate_opened(until_us)
            passed, landed = await self._client.write(TXN, body, proto.verdicts)
        if len(landed) != len(group):
            raise Ambiguous("etcd answered in a way that can't be understood")
        for waiting, done in zip(group, landed, strict=True):
            if done:
                self._done(waiting)
            else:
                waiting.failed(Conflict())

    def _done(self, waiting: Waiting[Item]) -> None:
        for until_us in waiting.item.kept:
            self._kept(until_us)
        waiting.done()

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
            await self._client.write(TXN, body, proto.succeeded)

    async def _through_the_gate(self, waiting: Waiting[Item]) -> None:
        item = waiting.item
        gate, until_us = self._keys.gate, self._clock.monotonic_us() + GATE_WITHIN_US
        writes = [proto.delete(gate), *self._bodies.writes(item, self._keys.slots[0])]
        while self._clock.monotonic_us() < until_us:
            owner = self._clock.random_id().encode()
            closing = proto.txn([proto.absent(gate)], [proto.put(gate, owner)])
            try:
                try:
                    closed = await self._client.write(TXN, closing, proto.succeeded)
                except Ambiguous as error:
                    raise Unavailable(str(error)) from None
                if closed:
                    found = await self._load(list(item.versions))
                    now = {key: found[key].version if key in found else None for key in item.versions}
                    if now != item.versions:
                        raise Conflict
                    body = proto.txn([proto.equals(gate, owner)], writes)
                    if await self._client.write(TXN, body, proto.succeeded):
                        self._done(waiting)
                        return
            except BaseException:
                await self._open_gate(owner)
                raise
            await self._gate_opened(until_us)
        raise Unavailable("etcd is too busy for a commit of this size; nothing was written, try again")
