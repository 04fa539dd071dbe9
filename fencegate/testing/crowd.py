"""A crowd of callers who take, renew, forget and release a few locks through several replicas, whatever happens."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from fencegate.clock import SYSTEM
from fencegate.core.errors import LockExpired, LockHeld, OutcomeUnknown, StoreUnavailable
from fencegate.core.model import Hold
from fencegate.core.ports import Unavailable
from fencegate.engine import Engine
from fencegate.testing.caller import Caller
from fencegate.testing.told import Grant, Told

POLL_S = 0.4
TTL_S = 1.0
ANSWER_WITHIN_S = 15.0
"""How long a call may take in the worst of outages, beside the time that it was asked to wait."""
RECOVER_WITHIN_S = TTL_S + 20.0
BREATHE_S = 0.02
"""Between two calls of one caller: it is faults that are to be tried, and not how much a machine can bear."""

FAILED = (StoreUnavailable, OutcomeUnknown)


class Crowd:
    """Use it as a context: the callers begin, and in the end what they were told is judged."""

    def __init__(self, replicas: Sequence[Engine], *, size: int = 6, locks: int = 2) -> None:
        self.replicas = replicas
        self.lock_keys = [f"crowd:{SYSTEM.random_id(4)}" for _ in range(locks)]
        self.told = Told()
        self.failures = 0
        self.slowest_s = 0.0
        self.stopping = False
        self._size = size
        self._work: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._work = [asyncio.ensure_future(_Member(self, number).live()) for number in range(self._size)]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stopping = True
        if kind is not None:
            for work in self._work:
                work.cancel()
        await asyncio.gather(*self._work, return_exceptions=kind is not None)
        if kind is None:
            self.told.judge()
            assert self.slowest_s < ANSWER_WITHIN_S + POLL_S, f"a call took {self.slowest_s:.1f} s"

    # --- what a test waits for ---

    async def is_served(self, each: int = 2, through: Engine | None = None) -> None:
        """Return when every lock was granted so many times from now on (by this replica)."""
        since_us = SYSTEM.monotonic_us()

        def served() -> bool:
            found = Counter(
                grant.lock_key
                for grant in reversed(self.told.grants)
                if grant.told_us >= since_us and (through is None or grant.through == through.replica)
            )
            return all(found[lock_key] >= each for lock_key in self.lock_keys)

        while not served():
            late = SYSTEM.monotonic_us() - since_us > RECOVER_WITHIN_S * 1_000_000
            assert not late, f"nobody got a lock for {RECOVER_WITHIN_S} s"
            await self._watch()

    async def fails(self, times: int = 1) -> None:
        """Return when so many calls have failed from now on."""
        since_us, before = SYSTEM.monotonic_us(), self.failures
        while self.failures < before + times:
            late = SYSTEM.monotonic_us() - since_us > (ANSWER_WITHIN_S + POLL_S) * 1_000_000
            assert not late, f"{self.failures - before} calls failed in {ANSWER_WITHIN_S} s, and {times} should have"
            await self._watch()

    async def _watch(self) -> None:
        """What went wrong with a caller is told at once."""
        for work in self._work:
            if work.done():
                work.result()
        await asyncio.sleep(0.02)


class _Member:
    """One caller. It turns to another replica when one fails, with the same request."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd = crowd
        self._number = number
        self._owner = f"member-{number}-{SYSTEM.random_id(4)}"
        self._at = number

    async def live(self) -> None:
        keys = self._crowd.lock_keys
        for turn in itertools.count(self._number):
            if self._crowd.stopping:
                return
            lock_key, request = keys[turn % len(keys)], f"{self._owner}-{turn}"
            grant = await self._acquire(lock_key, request)
            if grant is not None:
                await self._use(grant, turn)
            await asyncio.sleep(BREATHE_S)

    async def _acquire(self, lock_key: str, request: str) -> Grant | None:
        first_us = SYSTEM.monotonic_us()
        while not self._crowd.stopping:
            try:
                return await self._ask(lock_key, request, first_us)
            except LockHeld:
                pass
            except LockExpired:  # it was granted, nobody heard of it, and it is over
                return None
            except FAILED:
                self._at += 1
            await asyncio.sleep(BREATHE_S)
        return None

    async def _use(self, grant: Grant, turn: int) -> None:
        """Hold it in one of the ways that callers have."""
        if turn % 11 == 3:  # forget it: it has to run out
            return
        if turn % 3 == 1:  # ask another replica for the same once more
            self._at += 1
            with suppress(*FAILED, LockHeld, LockExpired):
                await self._ask(grant.lock_key, grant.request, grant.asked_us)
        if turn % 3 == 2:
            await asyncio.sleep(0.05)
            await self._renew(grant)
        await self._release(grant)

    async def _ask(self, lock_key: str, request: str, first_us: int) -> Grant:
        caller, asked_us = self._caller(), SYSTEM.monotonic_us()
        try:
            hold = await caller.acquire(lock_key, wait_s=POLL_S, ttl_s=TTL_S, name=request)
            until_us = _until_us(caller.engine, hold, asked_us)
        except FAILED:
            self._crowd.failures += 1
            raise
        finally:
            self._took(asked_us)
        replica = caller.engine.replica
        grant = Grant(lock_key, request, hold, first_us, SYSTEM.monotonic_us(), until_us, replica)
        self._crowd.told.granted(grant)
        return grant

    async def _renew(self, grant: Grant) -> None:
        caller, asked_us = self._caller(), SYSTEM.monotonic_us()
        try:
            hold = await caller.renew(grant.lock_key, grant.hold)
            until_us = _until_us(caller.engine, hold, asked_us)
        except LockExpired:
            return
        except FAILED:
            self._crowd.failures += 1
            self._at += 1
            return
        finally:
            self._took(asked_us)
        assert hold.token == grant.hold.token, f"a renewal changed the token: {grant}, then {hold.token}"
        if grant.until_us > SYSTEM.monotonic_us():  # else it was thought lost before the answer came
            grant.until_us = max(grant.until_us, until_us)

    async def _release(self, grant: Grant) -> None:
        """Let go of it, and say so until it is heard or the lease is over."""
        grant.until_us = min(grant.until_us, SYSTEM.monotonic_us())
        while not self._crowd.stopping:
            asked_us = SYSTEM.monotonic_us()
            try:
                await self._caller().release(grant.lock_key, grant.hold)
                return
            except LockExpired:
                return
            except FAILED:
                self._crowd.failures += 1
                self._at += 1
            finally:
                self._took(asked_us)
            await asyncio.sleep(BREATHE_S)

    def _caller(self) -> Caller:
        replicas = self._crowd.replicas
        return Caller(replicas[self._at % len(replicas)], self._owner)

    def _took(self, asked_us: int) -> None:
        self._crowd.slowest_s = max(self._crowd.slowest_s, (SYSTEM.monotonic_us() - asked_us) / 1_000_000)


def _until_us(engine: Engine, hold: Hold, asked_us: int) -> int:
    """When a caller that asked then has to stop: what is left of the lease counts from before it asked."""
    try:
        return asked_us + hold.expires_us - engine.now().latest
    except Unavailable as error:
        raise StoreUnavailable(str(error)) from None
