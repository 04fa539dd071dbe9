"""The lock calls as CONTRACT gives them, without HTTP: JSON-shaped in, JSON-shaped out, errors raised.

The HTTP layer and the clients that run without a server both come through here.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from fencegate.core.commands import (
    EndSession,
    ForceRelease,
    OpenSession,
    Release,
    Released,
    ReleasedAll,
    Renew,
    Renewed,
    RenewedAll,
    RenewSession,
    Revoking,
    SessionIs,
)
from fencegate.core.errors import InvalidInput, NotSupported, OutcomeUnknown
from fencegate.core.machine import free, live_holds, live_session
from fencegate.core.model import LockRecord, Session, members_of
from fencegate.core.names import check_lock_key, check_text, namespace
from fencegate.engine import Engine
from fencegate.web.json import convert_value
from fencegate_lockservice import answers, asking
from fencegate_lockservice.answers import Answer
from fencegate_lockservice.bodies import (
    AcquireBody,
    ForceReleaseBody,
    MultiAcquireBody,
    MultiReleaseBody,
    MultiRenewBody,
    OpenSessionBody,
    ReleaseBody,
    RenewBody,
    RenewSessionBody,
)
from fencegate_lockservice.straight import Straight

MAX_PAGE = 1000
SCAN_PAGE = 500
MAX_SCANNED = 20_000

T = TypeVar("T")
Given = Mapping[str, Any]


class LockApi:
    """Every lock call. Bodies may be dictionaries (checked here) or the structures of `bodies`."""

    def __init__(self, engine: Engine, lock_delay_us: int = 0) -> None:
        self._engine = engine
        self._clock = engine.clock
        self._asking = asking.Asking(engine.clock, engine.replica, lock_delay_us)
        self._straight = Straight(engine, self._asking)

    def straight(self, _lock_key: str) -> Straight:
        """The way to plain locks for clients of this process."""
        return self._straight

    # --- one lock ---

    async def acquire(self, lock_key: str, body: Given | AcquireBody) -> Answer:
        asked = _shaped(body, AcquireBody)
        wait_ms = asking.wait_ms_of(asked)
        command = self._asking.acquire(lock_key, asked, wait_ms > 0)
        if asked.hierarchical or asked.sessionId:
            self._several_keys("hierarchical" if asked.hierarchical else "sessionId")
        keep_us = asking.KEEP_PLACE_US if command.named else 0
        hold = await self._engine.acquire(command, wait_ms * 1000, keep_us)
        return answers.granted(lock_key, hold, self._engine.now())

    async def renew(self, lock_key: str, body: Given | RenewBody) -> Answer:
        asked = _shaped(body, RenewBody)
        ttl_us = asked.ttlMillis * 1000 if asked.ttlMillis is not None else None
        outcome = await self._engine.run(Renew(check_lock_key(lock_key), asked.lockToken, asked.ownerId, ttl_us))
        if not isinstance(outcome, Renewed):
            raise _unknown("renewal")
        return answers.renewed(lock_key, outcome, self._engine.now())

    async def release(self, lock_key: str, body: Given | ReleaseBody) -> Answer:
        asked = _shaped(body, ReleaseBody)
        outcome = await self._engine.run(Release(check_lock_key(lock_key), asked.lockToken, asked.ownerId))
        if not isinstance(outcome, Released):
            raise _unknown("release")
        return answers.released(lock_key, outcome.left)

    async def force_release(self, lock_key: str, body: Given | ForceReleaseBody) -> Answer:
        """Take the lock from its holders: at once, or (with a grace) after they were asked to let go."""
        asked = _shaped(body, ForceReleaseBody)
        check_text("reason", asked.reason, 2000)
        command = ForceRelease(check_lock_key(lock_key), asked.reason, asked.graceMillis * 1000)
        outcome = await self._engine.run(command)
        answer: Answer = {"status": "FORCE_RELEASED", "lockKey": lock_key}
        if isinstance(outcome, Revoking):
            answer["takenAt"] = outcome.at_us // 1000
        return answer

    # --- several at once ---

    async def multi_acquire(self, body: Given | MultiAcquireBody) -> Answer:
        asked = _shaped(body, MultiAcquireBody)
        wait_ms = asking.wait_ms_of(asked)
        command = self._asking.acquire_all(asked, wait_ms > 0)
        self._several_keys("multi")
        keep_us = asking.KEEP_PLACE_US if asked.requestId is not None else 0
        holds = await self._engine.acquire_all(command, wait_ms * 1000, keep_us)
        found = {part.lock_key: hold for part, hold in zip(command.parts, holds, strict=True)}
        now = self._engine.now()
        return {"locks": [answers.granted(lock.lockKey, found[lock.lockKey], now) for lock in asked.locks]}

    async def multi_renew(self, body: Given | MultiRenewBody) -> Answer:
        asked = _shaped(body, MultiRenewBody)
        self._several_keys("multi")
        command = asking.renew_all(asked)
        outcome = await self._engine.run(command)
        if not isinstance(outcome, RenewedAll):
            raise _unknown("renewal")
        found = {part.lock_key: renewed for part, renewed in zip(command.parts, outcome.parts, strict=True)}
        now = self._engine.now()
        return {"locks": [answers.renewed(lock.lockKey, found[lock.lockKey], now) for lock in asked.locks]}

    async def multi_release(self, body: Given | MultiReleaseBody) -> Answer:
        asked = _shaped(body, MultiReleaseBody)
        self._several_keys("multi")
        command = asking.release_all(asked)
        outcome = await self._engine.run(command)
        if not isinstance(outcome, ReleasedAll):
            raise _unknown("release")
        left = {part.lock_key: count for part, count in zip(command.parts, outcome.left, strict=True)}
        locks = [answers.released(lock.lockKey, left[lock.lockKey]) for lock in asked.locks]
        return {"status": "RELEASED", "locks": locks}

    # --- sessions ---

    async def open_session(self, body: Given | OpenSessionBody) -> Answer:
        asked = _shaped(body, OpenSessionBody)
        self._several_keys("sessions")
        owner_id = check_text("ownerId", asked.ownerId) if asked.ownerId else f"anonymous-{self._clock.random_id(6)}"
        session_id = self._clock.random_id(16)
        outcome = await self._engine.run(OpenSession(session_id, owner_id, asked.ttlMillis * 1000))
        return answers.session(session_id, _session(outcome), self._engine.now())

    async def renew_session(self, session_id: str, body: Given | RenewSessionBody) -> Answer:
        asked = _shaped(body, RenewSessionBody)
        ttl_us = asked.ttlMillis * 1000 if asked.ttlMillis is not None else None
        outcome = await self._engine.run(RenewSession(asking.check_session_id(session_id), asked.ownerId, ttl_us))
        session, now = _session(outcome), self._engine.now()
        return {**answers.session(session_id, session, now), **answers.session_revoked(session, now)}

    async def end_session(self, session_id: str) -> Answer:
        await self._engine.end_session(EndSession(asking.check_session_id(session_id)))
        return {"status": "ENDED", "sessionId": session_id}

    async def session(self, session_id: str) -> Answer:
        """The session as it is, with how many locks it holds or waits for."""
        now = self._engine.now()
        loaded = await self._engine.session(asking.check_session_id(session_id))
        found = live_session(session_id, loaded, now)
        return {**answers.session(session_id, found, now), "locks": await self._engine.count(members_of(session_id))}

    # --- looking ---

    async def status(self, lock_key: str) -> Answer:
        """The lock as it is; LockFree when nobody holds it."""
        seen = await self._engine.look(check_lock_key(lock_key))
        if seen.record is None or not seen.holds:
            raise free(lock_key, max(seen.floor, seen.record.last_token if seen.record else 0))
        return answers.described(lock_key, seen.record, seen.holds, seen.now)

    async def list_locks(
        self, *, prefix: str = "", namespace: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Answer:
        """Locks that are held, by key. A page may be short, or empty, and still have a `nextCursor`."""
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidInput("limit", f"must be 1 to {MAX_PAGE}")
        prefix = _narrowed(prefix, namespace)
        locks: list[Answer] = []
        after, scanned = cursor or "", 0
        while scanned < MAX_SCANNED:
            page = await self._engine.scan(prefix, after, SCAN_PAGE)
            wanted = [(key, record) for key, record in page if namespace is None or _in(key, namespace)]
            for lock_key, found in await self._describe(wanted):
                locks.append(found)
                if len(locks) == limit:
                    return {"locks": locks, "nextCursor": lock_key}
            if len(page) < SCAN_PAGE:
                return {"locks": locks, "nextCursor": None}
            scanned += len(page)
            after = page[-1][0]
        return {"locks": locks, "nextCursor": after}

    async def _describe(self, page: list[tuple[str, LockRecord]]) -> list[tuple[str, Answer]]:
        """Those of a page that somebody holds."""
        sessions = await self._engine.sessions([record for _, record in page])
        now = self._engine.now()
        found = []
        for lock_key, record in page:
            holds = live_holds(record, now, sessions)
            if holds:
                found.append((lock_key, answers.described(lock_key, record, holds, now)))
        return found

    async def close(self) -> None:
        await self._engine.close()

    def _several_keys(self, feature: str) -> None:
        """What rests on a commit over several entries can't be had from a store that has none."""
        store = self._engine.store
        if not store.capabilities.several_keys:
            raise NotSupported(
                f"{feature} is not supported on the store {store.name}", feature=feature, store=store.name
            )


def _shaped(body: Mapping[str, Any] | T, to: type[T]) -> T:
    return body if isinstance(body, to) else convert_value(body, to)


def _session(outcome: object) -> Session:
    if not isinstance(outcome, SessionIs):
        raise _unknown("call")
    return outcome.session


def _unknown(what: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"the {what} was neither done nor refused")


def _narrowed(prefix: str, wanted: str | None) -> str:
    """The longer of the prefix and what the namespace implies, so that less is scanned."""
    if wanted is None or prefix.startswith(wanted):
        return prefix
    return wanted if wanted.startswith(prefix) else prefix


def _in(lock_key: str, wanted: str) -> bool:
    return namespace(lock_key) == wanted
