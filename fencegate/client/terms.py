"""The terms of a hold: every keyword that `hold` and its likes take, named and judged once for both faces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypedDict

from fencegate.client.claims import Claimable
from fencegate.client.duration import millis, ttl_millis, wait_seconds
from fencegate.client.grant import Mode
from fencegate.client.session import SessionCore
from fencegate.client.transport import Json
from fencegate.core.errors import InvalidInput
from fencegate.core.names import check_text

DEFAULT_TTL_S = 30.0
_MAX_LIMIT = 1_000_000
_MAX_PRIORITY = 1000
_MAX_DELAY_S = 3600.0
_MAX_HOLD_S = 86_400.0


class GroupTerms(TypedDict, total=False):
    """What may be said of one lock, or of several that are held as one. Durations are seconds."""

    ttl: float
    """How long the lease lasts without a renewal: 30 unless said otherwise; 1 to 3600."""
    wait: float | None
    """How long to wait for a lock that is held; not at all by default, `math.inf` for as long as it takes."""
    priority: int
    """The higher goes first among those who wait: -1000 to 1000, 0 by default."""
    lock_delay: float | None
    """How long nobody gets the lock after it was lost (not after it was released), for what can't check tokens."""
    max_hold: float | None
    """How long it may be held in all; renewals beyond that are refused."""
    metadata: Mapping[str, Any] | None
    """Whatever others should see in the lock's status."""
    owner: str | None
    """Another owner than the client's own. Re-entrancy goes by it, so it must not outlive a process."""
    session: SessionCore | None
    """The session that keeps this hold alive; it has the TTL, and the owner."""
    request_id: str | None
    """Makes the acquire repeatable by the caller: the same id gives the same lease, and never a second one."""


class Terms(GroupTerms, total=False):
    """What may be said of one lock."""

    mode: Mode
    """`exclusive`, or `shared` with other readers."""
    shared: bool
    """The same as `mode="shared"`."""
    limit: int | None
    """How many may hold it at once: a permit with a `slot`, its own token and its own `fence`."""
    reentrant: bool
    """Whether this owner is let in where it holds the lock already."""
    hierarchical: bool
    """Whether a lock on `a/b` excludes what is below it, and is excluded by a lock on `a`."""
    claim: Sequence[Claimable | str] | None
    """What to claim before the lock is handed out: URLs of keys behind a gateway, `fencegate.sql.claimable(engine)`,
    or whatever has `claim(lock_key, token)`. When a claim fails, the lock is given back, and its error is raised."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The terms as the lock service is told of them."""

    ttl_ms: int
    wait_s: float
    owner_id: str | None
    request_id: str | None
    session: SessionCore | None
    fields: Json

    @property
    def is_plain(self) -> bool:
        """Whether it says no more than how long, for whom, and how patiently."""
        return not self.fields and self.session is None

    def body(self, owner_id: str) -> Json:
        """All of an acquire but its requestId and how long it waits; `owner_id` unless the terms name another."""
        if self.session is None:
            return {"ownerId": self.owner_id or owner_id, "ttlMillis": self.ttl_ms, **self.fields}
        owner_id = self.owner_id or self.session.owner_id
        return {"ownerId": owner_id, "sessionId": self.session.session_id, **self.fields}


def check_names(given: Mapping[str, object], known: type[Any]) -> None:
    """Refuse a keyword that the typed dictionary `known` doesn't have, as a function with such arguments would."""
    for name in given:
        if name not in known.__optional_keys__:
            raise TypeError(f"got an unexpected keyword argument {name!r}")


def wish_for_several(terms: GroupTerms) -> Wish:
    return _wish(terms, _common(terms))


def wish_for_one(terms: Terms) -> Wish:
    """The same few terms are named again and again, so the last ones are remembered."""
    if terms.keys() - _SIMPLE:
        return _wish_for_one(terms)
    ttl, wait = terms.get("ttl", DEFAULT_TTL_S), terms.get("wait", 0)
    if {type(ttl), type(wait)} - {int, float}:  # such as True, which would be taken for the number that it equals
        return _wish_for_one(terms)
    return _simple_wish(ttl, wait)


@lru_cache(maxsize=256)
def _simple_wish(ttl: float, wait: float | None) -> Wish:
    return _wish_for_one({"ttl": ttl, "wait": wait})


_SIMPLE = frozenset({"ttl", "wait"})


def _wish_for_one(terms: Terms) -> Wish:
    fields = _common(terms)
    mode, shared, limit = terms.get("mode"), terms.get("shared"), terms.get("limit")
    if mode not in (None, "exclusive", "shared"):
        raise InvalidInput("mode", "must be exclusive or shared")
    if shared is not None and mode is not None and shared != (mode == "shared"):
        raise InvalidInput("shared", f"contradicts mode={mode!r}")
    is_shared = bool(shared) or mode == "shared"
    if is_shared:
        fields["mode"] = "shared"
    if limit is not None:
        if is_shared:
            raise InvalidInput("limit", "goes with mode exclusive: a permit is held by one")
        fields["limit"] = _whole("limit", limit, 1, _MAX_LIMIT)
    if terms.get("reentrant"):
        fields["reentrant"] = True
    if terms.get("hierarchical"):
        fields["hierarchical"] = True
    return _wish(terms, fields)


def _wish(terms: GroupTerms, fields: Json) -> Wish:
    session, owner, request_id = terms.get("session"), terms.get("owner"), terms.get("request_id")
    if session is not None and "ttl" in terms:
        raise InvalidInput("ttl", "is the session's; leave it out of a hold under a session")
    if owner is not None:
        check_text("owner", owner)
    if request_id is not None:
        check_text("request_id", request_id)
    ttl_ms = ttl_millis(terms.get("ttl", DEFAULT_TTL_S) if session is None else session.ttl)
    return Wish(ttl_ms, wait_seconds(terms.get("wait")), owner, request_id, session, fields)


def _common(terms: GroupTerms) -> Json:
    """What is not said is not sent: a plain acquire stays a short one."""
    fields: Json = {}
    priority, metadata = terms.get("priority"), terms.get("metadata")
    lock_delay, max_hold = terms.get("lock_delay"), terms.get("max_hold")
    if priority:
        fields["priority"] = _whole("priority", priority, -_MAX_PRIORITY, _MAX_PRIORITY)
    if lock_delay is not None:
        fields["lockDelayMillis"] = millis("lock_delay", lock_delay, 0.0, _MAX_DELAY_S)
    if max_hold is not None:
        fields["maxHoldMillis"] = millis("max_hold", max_hold, 1.0, _MAX_HOLD_S)
    if metadata is not None:
        fields["metadata"] = dict(metadata)
    return fields


def _whole(name: str, value: int, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(name, f"must be a whole number from {low} to {high}")
    return value
