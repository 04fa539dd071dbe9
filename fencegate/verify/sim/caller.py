"""A process that works under locks with the real client, and remembers what it was told."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from fencegate.client.hold_all import Leases
from fencegate.client.leader import Term
from fencegate.client.locks import Locks
from fencegate.core.errors import FencegateError, LockHeld, ResourceUnavailable, StaleToken
from fencegate.verify.history import History, Hold, InVain, Read, Write
from fencegate.verify.sim.clock import SimClock
from fencegate.verify.sim.connection import SimConnection
from fencegate.verify.sim.resource import ResourceLink, Updates
from fencegate.verify.sim.world import Process, World

if TYPE_CHECKING:
    from fencegate.client.life import Life

REST_S = 0.4


class Manner(Protocol):
    """How a plan has its callers work."""

    @property
    def rounds(self) -> int: ...
    @property
    def fenced_reads(self) -> bool: ...
    @property
    def claims(self) -> bool: ...


class Held:
    """What a caller holds: the keys with their tokens, and how long it may believe in them."""

    def __init__(self, got: Any, keys: Sequence[str]) -> None:
        self.life: Life = got.lease if isinstance(got, Term) else got
        self.tokens: dict[str, int] = {
            key: got[key].token if isinstance(got, Leases) else self.life.token for key in keys
        }


Body = Callable[[Held], Awaitable[None]]
Snare = Callable[["Caller"], bool]
"""Strikes or not, and says so."""
Work = Callable[["Caller", int], Awaitable[None]]
"""One round of a workload; the number tells it from the others."""


class Caller:
    """See the head of this file. What it does under which locks is for its workload to say."""

    def __init__(
        self,
        world: World,
        process: Process,
        connection: SimConnection,
        resource: ResourceLink,
        clock: SimClock,
        history: History,
    ) -> None:
        self.name = process.name
        self.chance = world.chance
        self.process = process
        self.history = history
        self.resource = resource
        self.keys: list[str] = []
        self.locks = Locks(connection)
        self._world = world
        self._clock = clock
        self.waiting_since_us: int | None = None
        self.holding: list[Hold] = []
        self.done = False
        self.is_direct = False
        """Whether its engine is in its own process."""
        self.snares: list[Snare] = []
        """Faults that lie in wait for somebody who has read, and will write: shared by all callers."""
        self.manner: Manner

    async def work(self, rounds: Work, manner: Manner, on_done: Callable[[], None]) -> None:
        self.manner = manner
        for number in range(manner.rounds):
            await asyncio.sleep(self.chance.random() * REST_S)
            try:
                await rounds(self, number)
            except FencegateError:  # lost, stale, unknown: it was written down, and the next round is another one
                continue
        self.done = True
        on_done()

    def crash(self) -> None:
        """The dead believe in nothing."""
        self.process.crash()
        for hold in self.holding:
            hold.believed_until_us = min(hold.believed_until_us, self._world.now_us)

    # --- locks ---

    def terms(self) -> dict[str, Any]:
        return {"ttl": self.chance.choice((1.0, 1.5, 3.0)), "wait": self.chance.choice((0, 2, 8, 8))}

    async def under(
        self, keys: Sequence[str], handle: AbstractAsyncContextManager[Any], body: Body, *, shared: bool = False
    ) -> None:
        """Do something while these are held, and note for how long it was believed that they are."""
        asked_us = self.waiting_since_us = self._world.now_us
        try:
            async with handle as got:
                self.waiting_since_us = None
                held = Held(got, keys)
                now_us = self._world.now_us
                until_us = now_us + self._left_us(held)
                self.holding = [
                    Hold(self.name, key, token, asked_us, now_us, until_us, shared)
                    for key, token in held.tokens.items()
                ]
                self.history.holds += self.holding
                try:
                    await body(held)
                finally:
                    for hold in self.holding:
                        hold.believed_until_us = self._world.now_us + min(0, self._left_us(held))
                    self.holding = []
        except LockHeld:
            self.history.in_vain += [InVain(self.name, key, asked_us, self._world.now_us) for key in keys]
        finally:
            self.waiting_since_us = None

    def _left_us(self, held: Held) -> int:
        return held.life._deadline_us() - self._clock.monotonic_us()

    # --- the resource ---

    async def read(self, key: str, token: int) -> Updates:
        """What is there; with the token unless the plan says that it is claimed first."""
        if self.manner.claims:
            await self._noted(Read(self.name, key, token, self._world.now_us), self.resource.claim(key, token))
        fenced = self.manner.fenced_reads
        read = Read(self.name, key, token if fenced else None, self._world.now_us)
        await self._noted(read, self.resource.read(key, read.token))
        assert read.updates is not None
        return read.updates

    async def _noted(self, read: Read, answer: Awaitable[Updates | None]) -> None:
        self.history.reads.append(read)
        read.updates = await answer
        read.ended_us = self._world.now_us

    async def think(self, held: Held) -> None:
        """Between reading and writing: nothing, a while, or a look at the clock. Here what lies in wait strikes."""
        for snare in self.snares:
            if snare(self):
                self.snares.remove(snare)
                await asyncio.sleep(0)
                break
        if self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.random() * 2.0)
        if self.chance.random() < 0.25:
            held.life.ensure_held()

    async def append(self, key: str, token: int, seen: Updates, update: str) -> Updates:
        """Add to what was seen."""
        updates = (*seen, update)
        write = Write(self.name, key, token, update, self._world.now_us)
        await self._told([write], self.resource.write(key, updates, token))
        return updates

    async def put(self, key: str, token: int, update: str, value: Updates) -> None:
        """Write this, whatever is there."""
        write = Write(self.name, key, token, update, self._world.now_us, value=value)
        await self._told([write], self.resource.write(key, value, token))

    async def delete(self, key: str, token: int, update: str) -> None:
        write = Write(self.name, key, token, update, self._world.now_us, value=())
        await self._told([write], self.resource.delete(key, token))

    async def append_all(self, seen: Mapping[str, Updates], tokens: Mapping[str, int], update: str) -> None:
        """Add to what was seen of each, in one step."""
        now_us, group = self._world.now_us, tuple(seen)
        writes = [Write(self.name, key, tokens[key], update, now_us, group=group) for key in seen]
        values = {key: ((*updates, update), tokens[key]) for key, updates in seen.items()}
        await self._told(writes, self.resource.write_all(values))

    async def _told(self, writes: list[Write], answer: Awaitable[None]) -> None:
        self.history.writes += writes
        told = writes[0].told
        try:
            await answer
            told = "done"
        except StaleToken:
            told = "refused"
            raise
        except ResourceUnavailable:
            raise
        finally:
            for write in writes:
                write.told, write.ended_us = told, self._world.now_us
