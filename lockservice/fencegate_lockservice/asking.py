"""From the bodies of the calls to the commands of the state machine."""

from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from fencegate.clock import Clock
from fencegate.core.commands import Acquire, AcquireAll, Release, ReleaseAll, Renew, RenewAll
from fencegate.core.errors import InvalidInput, SessionNotFound
from fencegate.core.model import MAX_DEPTH, Claimant, Terms
from fencegate.core.names import check_lock_key, check_text
from fencegate_lockservice.bodies import (
    AcquireBody,
    MultiAcquireBody,
    MultiReleaseBody,
    MultiRenewBody,
)

DEFAULT_WAIT_MS = 30_000
KEEP_PLACE_US = 15_000_000
MAX_METADATA_BYTES = 4096
MAX_METADATA_DEPTH = 32

_encode = msgspec.json.Encoder(order="sorted").encode


def wait_ms_of(asked: AcquireBody | MultiAcquireBody) -> int:
    """How long to wait; 0: not at all."""
    wait = asked.wait if asked.wait is not None else asked.waitMillis is not None
    if not wait:
        return 0
    return DEFAULT_WAIT_MS if asked.waitMillis is None else asked.waitMillis


class Asking:
    """Makes commands, each with ids of its own, in the name of one replica."""

    def __init__(self, clock: Clock, replica: str, lock_delay_us: int) -> None:
        self._clock = clock
        self._replica = replica
        self._lock_delay_us = lock_delay_us

    def acquire(self, lock_key: str, asked: AcquireBody, wait: bool) -> Acquire:
        check_lock_key(lock_key)
        _check(asked)
        who = self._claimant(asked, self._terms(lock_key, asked))
        attempt = self._clock.random_id(4) if wait else ""
        return Acquire(lock_key, who, self._replica, attempt, wait, asked.requestId is not None, asked.reentrant)

    def plain(self, lock_key: str, owner_id: str, ttl_ms: int, request_id: str, wait_ms: int, fresh: bool) -> Acquire:
        """What `acquire` makes of a body that says no more than this."""
        request, chance = _digest(request_id.encode()), self._clock.random_id(20)
        fingerprint = _plain_fingerprint(owner_id, ttl_ms)
        terms = Terms(lock_delay_us=self._lock_delay_us) if self._lock_delay_us else None
        lock_token = f"{request}.{chance[:32]}"
        who = Claimant(request, lock_token, owner_id, ttl_ms * 1000, fingerprint, None, terms)
        attempt = chance[32:] if wait_ms else ""
        return Acquire(lock_key, who, self._replica, attempt, wait_ms > 0, True, False, wait_ms * 1000, fresh)

    def acquire_all(self, asked: MultiAcquireBody, wait: bool) -> AcquireAll:
        for lock in asked.locks:
            check_lock_key(lock.lockKey)
        modes = {lock.lockKey: lock.mode for lock in asked.locks}
        if len(modes) < len(asked.locks):
            raise InvalidInput("locks", "each lock key may be named once")
        _check(asked)
        keys = tuple(sorted(modes))
        attempt = self._clock.random_id(4) if wait else ""
        who = self._claimant(asked, None)
        common = Terms(
            priority=asked.priority,
            lock_delay_us=self._lock_delay(asked),
            max_hold_us=(asked.maxHoldMillis or 0) * 1000,
            group=keys,
            session=asked.sessionId or "",
        )
        named = asked.requestId is not None
        parts = []
        for key in keys:
            special = replace(common, shared=modes[key] == "shared")
            parts.append(Acquire(key, replace(who, special=special), self._replica, attempt, wait, named))
        return AcquireAll(tuple(parts))

    def _claimant(self, asked: AcquireBody | MultiAcquireBody, terms: Terms | None) -> Claimant:
        clock = self._clock
        if asked.requestId is None:
            # In the order of time, so that what stores keep of them lies side by side on the disk.
            request, fingerprint = f"{clock.now_us():014x}{clock.random_id(6)}", ""
        else:
            request, fingerprint = _digest(asked.requestId.encode()), _fingerprint(asked)
        nameless = "" if asked.sessionId else f"anonymous-{clock.random_id(6)}"  # a session has an owner
        return Claimant(
            request=request,
            lock_token=f"{request}.{clock.random_id(16)}",
            owner_id=asked.ownerId or nameless,
            ttl_us=asked.ttlMillis * 1000,
            fingerprint=fingerprint,
            metadata=asked.metadata,
            special=terms,
        )

    def _lock_delay(self, asked: AcquireBody | MultiAcquireBody) -> int:
        return self._lock_delay_us if asked.lockDelayMillis is None else asked.lockDelayMillis * 1000

    def _terms(self, lock_key: str, asked: AcquireBody) -> Terms | None:
        """What is special about this acquire; None for a plain one, which is most of them."""
        shared, lock_delay_us = asked.mode == "shared", self._lock_delay(asked)
        if not (
            shared or asked.limit or asked.priority or lock_delay_us or asked.maxHoldMillis or asked.sessionId
            or asked.hierarchical
        ):  # fmt: skip
            return None
        terms = Terms(
            shared=shared,
            limit=asked.limit or 0,
            priority=asked.priority,
            lock_delay_us=lock_delay_us,
            max_hold_us=(asked.maxHoldMillis or 0) * 1000,
            session=asked.sessionId or "",
            hierarchical=asked.hierarchical,
        )
        if terms.limit and terms.shared:
            raise InvalidInput("limit", "goes with mode exclusive: a permit is held by one")
        if terms.hierarchical and (terms.shared or terms.limit):
            raise InvalidInput("hierarchical", "goes with mode exclusive, and without a limit")
        if terms.hierarchical and lock_key.count("/") >= MAX_DEPTH:
            raise InvalidInput("hierarchical", f"goes with keys of at most {MAX_DEPTH} parts between slashes")
        return terms


def renew_all(asked: MultiRenewBody) -> RenewAll:
    ttl_us = asked.ttlMillis * 1000 if asked.ttlMillis is not None else None
    return RenewAll(tuple(Renew(*held, ttl_us) for held in _held(asked)))


def release_all(asked: MultiReleaseBody) -> ReleaseAll:
    return ReleaseAll(tuple(Release(*held) for held in _held(asked)))


def _held(asked: MultiRenewBody | MultiReleaseBody) -> list[tuple[str, str, str | None]]:
    """Each lock with its token and its owner, in the order of the keys."""
    found: dict[str, tuple[str, str, str | None]] = {}
    for lock in asked.locks:
        token = lock.lockToken or asked.lockToken
        if token is None:
            raise InvalidInput("lockToken", "must be given, for each lock or for all")
        if check_lock_key(lock.lockKey) in found:
            raise InvalidInput("locks", "each lock key may be named once")
        found[lock.lockKey] = (lock.lockKey, token, lock.ownerId or asked.ownerId)
    return [held for _, held in sorted(found.items())]


def check_session_id(session_id: str) -> str:
    """Ids are ours, of letters and digits: nothing else is a session."""
    if not (session_id.isascii() and session_id.isalnum() and len(session_id) <= 64):
        raise SessionNotFound("there is no such session; open one")
    return session_id


def _check(asked: AcquireBody | MultiAcquireBody) -> None:
    if asked.ownerId is not None:
        check_text("ownerId", asked.ownerId)
    if asked.requestId is not None:
        check_text("requestId", asked.requestId)
    if asked.sessionId is not None:
        check_session_id(asked.sessionId)
    if asked.metadata is not None:
        _check_metadata(asked.metadata)


def _check_metadata(metadata: dict[str, Any]) -> None:
    """What is kept has to be readable again, from wherever it is read: a decoder can go less deep than an encoder."""
    if _is_deeper(metadata, MAX_METADATA_DEPTH):
        raise InvalidInput("metadata", f"must be nested at most {MAX_METADATA_DEPTH} deep")
    try:
        size = len(_encode(metadata))
    except (UnicodeEncodeError, TypeError):
        raise InvalidInput("metadata", "must be a JSON object") from None
    if size > MAX_METADATA_BYTES:
        raise InvalidInput("metadata", f"must be at most {MAX_METADATA_BYTES} bytes of JSON")


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list | tuple):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in parts)


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=12).hexdigest()


def _fingerprint(asked: AcquireBody | MultiAcquireBody) -> str:
    """Tells a repeat from another request; how long one is willing to wait is not part of it."""
    values = msgspec.structs.astuple(asked)
    told = tuple([value for place, value in enumerate(values) if place not in _UNTOLD[type(asked)]])
    try:
        return _known_digest(type(asked), told)
    except TypeError:  # what holds a list or metadata has no hash
        return _digest_of(type(asked), told)


@lru_cache(maxsize=1024)
def _plain_fingerprint(owner_id: str, ttl_ms: int) -> str:
    return _fingerprint(AcquireBody(ownerId=check_text("ownerId", owner_id), ttlMillis=ttl_ms))


def _digest_of(kind: type[msgspec.Struct], told: tuple[Any, ...]) -> str:
    names = [name for place, name in enumerate(kind.__struct_fields__) if place not in _UNTOLD[kind]]
    return _digest(_encode(dict(zip(names, told, strict=True))))


_known_digest = lru_cache(maxsize=4096)(_digest_of)
_UNTOLD: dict[type[msgspec.Struct], frozenset[int]] = {
    kind: frozenset(kind.__struct_fields__.index(name) for name in ("wait", "waitMillis", "requestId"))
    for kind in (AcquireBody, MultiAcquireBody)
}
