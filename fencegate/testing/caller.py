"""Somebody who asks a lock engine for locks, as the lock service does for its clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from fencegate.clock import SYSTEM
from fencegate.core.commands import (
    Acquire,
    AcquireAll,
    EndSession,
    OpenSession,
    Release,
    ReleaseAll,
    Released,
    Renew,
    Renewed,
    RenewSession,
    SessionIs,
)
from fencegate.core.model import PLAIN, Claimant, Hold, Limits, Session, Terms
from fencegate.core.ports import Store
from fencegate.engine import Engine

KEEP_US = 15_000_000
QUICK = Limits(offer_us=300_000, suspect_us=3_000_000)
"""Offers that lapse soon, so that a test of dead replicas need not wait long."""


class Caller:
    """One owner, served by one engine."""

    def __init__(self, engine: Engine, owner_id: str) -> None:
        self.engine = engine
        self.owner_id = owner_id

    def asks(
        self,
        lock_key: str,
        *,
        ttl_s: float = 10.0,
        wait: bool = False,
        name: str = "",
        reentrant: bool = False,
        terms: Terms | None = None,
    ) -> Acquire:
        """The command of one acquire; `name` stands for its `requestId`."""
        request = name or SYSTEM.random_id(9)
        lock_token = f"{request}.{SYSTEM.random_id()}"
        what = f"{self.owner_id} {ttl_s}"
        who = Claimant(request, lock_token, self.owner_id, int(ttl_s * 1_000_000), what, special=terms)
        attempt = SYSTEM.random_id(4)
        return Acquire(lock_key, who, self.engine.replica, attempt, wait, bool(name), reentrant)

    async def acquire(
        self,
        lock_key: str,
        *,
        wait_s: float = 0,
        ttl_s: float = 10.0,
        name: str = "",
        reentrant: bool = False,
        terms: Terms | None = None,
    ) -> Hold:
        command = self.asks(lock_key, ttl_s=ttl_s, wait=wait_s > 0, name=name, reentrant=reentrant, terms=terms)
        return await self.engine.acquire(command, int(wait_s * 1_000_000), KEEP_US if name else 0)

    async def acquire_all(
        self, *lock_keys: str, wait_s: float = 0, ttl_s: float = 10.0, name: str = "", terms: Terms = PLAIN
    ) -> dict[str, Hold]:
        """All of these, or none."""
        keys = tuple(sorted(lock_keys))
        special = replace(terms, group=keys)
        first = self.asks(keys[0], ttl_s=ttl_s, wait=wait_s > 0, name=name, terms=special)
        command = AcquireAll(tuple(replace(first, lock_key=key) for key in keys))
        holds = await self.engine.acquire_all(command, int(wait_s * 1_000_000), KEEP_US if name else 0)
        return dict(zip(keys, holds, strict=True))

    async def release_all(self, holds: Mapping[str, Hold]) -> None:
        parts = [Release(key, hold.who.lock_token, self.owner_id) for key, hold in sorted(holds.items())]
        await self.engine.run(ReleaseAll(tuple(parts)))

    async def open_session(self, ttl_s: float = 10.0) -> str:
        session_id = SYSTEM.random_id(16)
        await self.engine.run(OpenSession(session_id, self.owner_id, int(ttl_s * 1_000_000)))
        return session_id

    async def renew_session(self, session_id: str) -> Session:
        outcome = await self.engine.run(RenewSession(session_id, self.owner_id))
        assert isinstance(outcome, SessionIs)
        return outcome.session

    async def end_session(self, session_id: str) -> None:
        await self.engine.end_session(EndSession(session_id))

    async def release(self, lock_key: str, hold: Hold) -> int:
        """Gives how many holds of this owner are left."""
        outcome = await self.engine.run(Release(lock_key, hold.who.lock_token, self.owner_id))
        assert isinstance(outcome, Released)
        return outcome.left

    async def renew(self, lock_key: str, hold: Hold, ttl_s: float | None = None) -> Hold:
        ttl_us = None if ttl_s is None else int(ttl_s * 1_000_000)
        outcome = await self.engine.run(Renew(lock_key, hold.who.lock_token, self.owner_id, ttl_us))
        assert isinstance(outcome, Renewed)
        return outcome.hold

    async def waiters(self, lock_key: str) -> list[str]:
        """Who waits for this lock, in order, and who it is offered to before them."""
        record = (await self.engine.look(lock_key)).record
        if record is None:
            return []
        offered = [record.offer.waiter] if record.offer is not None else []
        return [waiter.who.owner_id for waiter in [*offered, *record.queue]]

    async def until_waiting(self, lock_key: str, *owners: str) -> None:
        """Return as soon as exactly these wait, in this order."""
        async with asyncio.timeout(30):
            while True:
                if await self.waiters(lock_key) == list(owners):
                    return
                await asyncio.sleep(0.002)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return as soon as this is so."""
    async with asyncio.timeout(30):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def engines(*stores: Store, limits: Limits = QUICK) -> AsyncIterator[list[Engine]]:
    """A running engine over each of these stores: replicas, when they are the same one or share their data."""
    async with AsyncExitStack() as stack:
        found = []
        for number, store in enumerate(stores):
            engine = Engine(store, limits=limits, replica=f"replica-{number}")
            await engine.start()
            stack.push_async_callback(engine.close)
            found.append(engine)
        yield found
