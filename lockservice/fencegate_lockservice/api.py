"""The lock calls as CONTRACT gives them, without HTTP: JSON-shaped in, JSON-shaped out, errors raised.

The HTTP layer and the clients that run without a server both come through here.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from fencegate.core.errors import InvalidInput, NotSupported, OutcomeUnknown
from fencegate.core.machine import free, live_holds
from fencegate.core.model import (
    Acquire,
    Claimant,
    ForceRelease,
    Hold,
    LockRecord,
    Release,
    Released,
    Renew,
    Renewed,
    Terms,
)
from fencegate.core.names import check_lock_key, check_text, namespace
from fencegate.core.ports import Interval
from fencegate.engine import Engine
from fencegate.web.json import convert_value
from fencegate_lockservice.bodies import AcquireBody, ForceReleaseBody, ReleaseBody, RenewBody

KEEP_PLACE_US = 15_000_000
DEFAULT_WAIT_MS = 30_000
MAX_METADATA_BYTES = 4096
MAX_PAGE = 1000
SCAN_PAGE = 500
MAX_SCANNED = 20_000

_NOT_YET = (("hierarchical", False), ("sessionId", None))
"""What is understood, and refused unless it says what is so anyway."""

Answer = dict[str, Any]
T = TypeVar("T")

_encode = msgspec.json.Encoder(order="sorted").encode


class LockApi:
    """Every lock call. Bodies may be dictionaries (checked here) or the structures of `bodies`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clock = engine.clock

    async def acquire(self, lock_key: str, body: Mapping[str, Any] | AcquireBody) -> Answer:
        asked = _shaped(body, AcquireBody)
        check_lock_key(lock_key)
        self._check_acquire(asked)
        wait = asked.wait if asked.wait is not None else asked.waitMillis is not None
        wait_ms = DEFAULT_WAIT_MS if asked.waitMillis is None else asked.waitMillis
        command = self._command(lock_key, asked, wait and wait_ms > 0)
        keep_us = KEEP_PLACE_US if command.named else 0
        hold = await self._engine.acquire(command, wait_ms * 1000, keep_us)
        now = self._engine.now()
        return {
            "lockKey": lock_key,
            "lockToken": hold.who.lock_token,
            "fencingToken": str(hold.token),
            "sequencer": None,
            "ownerId": hold.who.owner_id,
            "mode": _mode(hold),
            **_slot(lock_key, hold),
            "expiresAt": hold.expires_us // 1000,
            "remainingMillis": _remaining_ms(hold, now),
            "ttlMillis": hold.who.ttl_us // 1000,
        }

    def _check_acquire(self, asked: AcquireBody) -> None:
        if asked.ownerId is not None:
            check_text("ownerId", asked.ownerId)
        if asked.requestId is not None:
            check_text("requestId", asked.requestId)
        if asked.metadata is not None and len(_encode(asked.metadata)) > MAX_METADATA_BYTES:
            raise InvalidInput("metadata", f"must be at most {MAX_METADATA_BYTES} bytes of JSON")
        for feature, plain in _NOT_YET:
            if getattr(asked, feature) != plain:
                self._refuse(feature)

    def _refuse(self, feature: str) -> None:
        store = self._engine.store.name
        raise NotSupported(f"{feature} is not supported on the store {store}", feature=feature, store=store)

    def _command(self, lock_key: str, asked: AcquireBody, wait: bool) -> Acquire:
        clock = self._clock
        if asked.requestId is None:
            # In the order of time, so that what stores keep of them lies side by side on the disk.
            request, fingerprint = f"{clock.now_us():014x}{clock.random_id(6)}", ""
        else:
            request, fingerprint = _digest(asked.requestId.encode()), _fingerprint(asked)
        who = Claimant(
            request=request,
            lock_token=f"{request}.{clock.random_id(16)}",
            owner_id=asked.ownerId or f"anonymous-{clock.random_id(6)}",
            ttl_us=asked.ttlMillis * 1000,
            fingerprint=fingerprint,
            metadata=asked.metadata,
            special=_terms(asked),
        )
        attempt = clock.random_id(4) if wait else ""
        named = asked.requestId is not None
        return Acquire(lock_key, who, self._engine.replica, attempt, wait, named, asked.reentrant)

    async def renew(self, lock_key: str, body: Mapping[str, Any] | RenewBody) -> Answer:
        asked = _shaped(body, RenewBody)
        ttl_us = asked.ttlMillis * 1000 if asked.ttlMillis is not None else None
        outcome = await self._engine.run(Renew(check_lock_key(lock_key), asked.lockToken, asked.ownerId, ttl_us))
        if not isinstance(outcome, Renewed):
            raise OutcomeUnknown("the renewal was neither done nor refused")
        return {
            "lockKey": lock_key,
            "fencingToken": str(outcome.hold.token),
            "sequencer": None,
            "expiresAt": outcome.hold.expires_us // 1000,
            "remainingMillis": _remaining_ms(outcome.hold, self._engine.now()),
        }

    async def release(self, lock_key: str, body: Mapping[str, Any] | ReleaseBody) -> Answer:
        asked = _shaped(body, ReleaseBody)
        outcome = await self._engine.run(Release(check_lock_key(lock_key), asked.lockToken, asked.ownerId))
        if not isinstance(outcome, Released):
            raise OutcomeUnknown("the release was neither done nor refused")
        return {"status": "RELEASED", "lockKey": lock_key, "reentrancyCount": outcome.left}

    async def force_release(self, lock_key: str, body: Mapping[str, Any] | ForceReleaseBody) -> Answer:
        asked = _shaped(body, ForceReleaseBody)
        check_text("reason", asked.reason, 2000)
        if asked.graceMillis:
            self._refuse("graceMillis")
        await self._engine.run(ForceRelease(check_lock_key(lock_key), asked.reason))
        return {"status": "FORCE_RELEASED", "lockKey": lock_key}

    async def status(self, lock_key: str) -> Answer:
        """The lock as it is; LockFree when nobody holds it."""
        seen = await self._engine.look(check_lock_key(lock_key))
        found = _describe(lock_key, seen.record, seen.now) if seen.record is not None else None
        if found is None:
            raise free(lock_key, max(seen.floor, seen.record.last_token if seen.record else 0))
        return found

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
            now = self._engine.now()
            page = await self._engine.scan(prefix, after, SCAN_PAGE)
            for lock_key, record in page:
                after = lock_key
                found = _describe(lock_key, record, now) if namespace is None or _in(lock_key, namespace) else None
                if found is not None:
                    locks.append(found)
                    if len(locks) == limit:
                        return {"locks": locks, "nextCursor": after}
            scanned += len(page)
            if len(page) < SCAN_PAGE:
                return {"locks": locks, "nextCursor": None}
        return {"locks": locks, "nextCursor": after}

    async def close(self) -> None:
        await self._engine.close()


def _shaped(body: Mapping[str, Any] | T, to: type[T]) -> T:
    return body if isinstance(body, to) else convert_value(body, to)


def _narrowed(prefix: str, wanted: str | None) -> str:
    """The longer of the prefix and what the namespace implies, so that less is scanned."""
    if wanted is None or prefix.startswith(wanted):
        return prefix
    return wanted if wanted.startswith(prefix) else prefix


def _in(lock_key: str, wanted: str) -> bool:
    return namespace(lock_key) == wanted


def _describe(lock_key: str, record: LockRecord, now: Interval) -> Answer | None:
    holds = live_holds(record, now)
    if not holds:
        return None
    hold = max(holds, key=lambda hold: hold.expires_us)  # re-entrant ones: the lock is free when the last is over
    holders = [
        {
            "ownerId": other.who.owner_id,
            "fencingToken": str(other.token),
            "expiresAt": other.expires_us // 1000,
            "metadata": other.who.metadata,
            **_slot(lock_key, other),
        }
        for other in holds
    ]
    return {
        "lockKey": lock_key,
        "locked": True,
        "ownerId": hold.who.owner_id,
        "mode": _mode(hold),
        "fencingToken": str(hold.token),
        "expiresAt": hold.expires_us // 1000,
        "remainingMillis": _remaining_ms(hold, now),
        "reentrancyCount": len([other for other in holds if other.who.owner_id == hold.who.owner_id]),
        "holders": holders,
        "waiters": len(record.queue) + (record.offer is not None),
    }


def _terms(asked: AcquireBody) -> Terms | None:
    """What is special about this acquire; None for a plain one, which is most of them."""
    shared = asked.mode == "shared"
    if not (shared or asked.limit or asked.priority or asked.lockDelayMillis or asked.maxHoldMillis):
        return None
    if shared and asked.limit:
        raise InvalidInput("limit", "goes with mode exclusive: a permit is held by one")
    return Terms(
        shared=shared,
        limit=asked.limit or 0,
        priority=asked.priority,
        lock_delay_us=(asked.lockDelayMillis or 0) * 1000,
        max_hold_us=(asked.maxHoldMillis or 0) * 1000,
    )


def _mode(hold: Hold) -> str:
    return "shared" if hold.who.terms.shared else "exclusive"


def _slot(lock_key: str, hold: Hold) -> Answer:
    """A permit has a slot, and a fence of its own; a `#` that belongs to the lock key is escaped there."""
    if hold.slot is None:
        return {}
    return {"slot": hold.slot, "fence": f"{lock_key.replace('%', '%25').replace('#', '%23')}#{hold.slot}"}


def _remaining_ms(hold: Hold, now: Interval) -> int:
    return max(0, (hold.expires_us - now.latest) // 1000)


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=12).hexdigest()


def _fingerprint(asked: AcquireBody) -> str:
    """Tells a repeat from another request; how long one is willing to wait is not part of it."""
    body = msgspec.structs.asdict(asked)
    for waiting in ("wait", "waitMillis", "requestId"):
        del body[waiting]
    return _digest(_encode(body))
