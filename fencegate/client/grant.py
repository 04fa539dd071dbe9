"""A grant as the lock service gave it, with the deadline up to which this process may believe in it."""

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from fencegate.client.transport import Json
from fencegate.core.errors import FencegateError, LockLost, OutcomeUnknown
from fencegate.core.model import Hold
from fencegate.core.token import Token

Mode = Literal["exclusive", "shared"]


@dataclass(frozen=True, slots=True)
class Revocation:
    """Somebody is taking the lock away, and asked politely first: finish, and release."""

    reason: str
    taken_at: float
    """Unix seconds on the lock service's clock: then it is taken at the latest."""
    until_us: int = field(repr=False)
    """The same on this process's own clock, and a little earlier: the lease ends there."""


class Grant(msgspec.Struct, frozen=True, gc=False):
    """What an acquire or a renewal brought. `started_us` and `deadline_us` are on this process's monotonic clock."""

    lock_key: str
    lock_token: str
    owner_id: str
    token: Token
    sequencer: str | None
    ttl_ms: int
    started_us: int
    deadline_us: int
    mode: Mode = "exclusive"
    slot: int | None = None
    fence: str | None = None
    revoked: Revocation | None = None
    last_us: int | None = None
    """Where it ends whatever its session does, if its terms say so."""

    def release_body(self) -> Json:
        return {"lockToken": self.lock_token, "ownerId": self.owner_id}

    def renewal_body(self) -> Json:
        return {**self.release_body(), "ttlMillis": self.ttl_ms}


def margin_us(ttl_ms: int) -> int:
    """How much earlier than the lock service a client gives up: 1 % of the TTL, and at least 50 ms.

    It covers two clocks that don't run at quite the same rate, and the moment between asking `held` and acting.
    """
    return max(50_000, ttl_ms * 10)


def granted(lock_key: str, body: Json, reply: Json, started_us: int, since_us: int | None = None) -> Grant:
    """Read the answer to an acquire that left at `started_us`; it may repeat that of one that left at `since_us`."""
    grant = _read(lock_key, {**body, **reply}, started_us)
    if "sessionId" not in body or "maxHoldMillis" not in body:
        return grant
    # A session's renewals say nothing of a single lock, so the holder has to count for itself.
    begun_us = started_us if since_us is None else since_us
    return msgspec.structs.replace(
        grant, last_us=begun_us + int(body["maxHoldMillis"]) * 1000 - margin_us(grant.ttl_ms)
    )


def granted_here(lock_key: str, hold: Hold, remaining_ms: int, started_us: int) -> Grant:
    """What a plain acquire brought that left at `started_us` and never left this process."""
    who = hold.who
    ttl_ms = who.ttl_us // 1000
    deadline_us = started_us + remaining_ms * 1000 - margin_us(ttl_ms)
    return Grant(lock_key, who.lock_token, who.owner_id, Token(hold.token), None, ttl_ms, started_us, deadline_us)


def renewed(grant: Grant, reply: Json, started_us: int) -> Grant:
    """Read the answer to a renewal of `grant` that left at `started_us`."""
    known = {**grant.renewal_body(), "mode": grant.mode, "slot": grant.slot, "fence": grant.fence}
    again = _read(grant.lock_key, {**known, **reply}, started_us)
    if again.token != grant.token:  # another lease than ours was lengthened: fail closed
        raise LockLost(f"the renewal of {grant.lock_key!r} brought token {again.token}, not {grant.token}")
    return again


def revocation(told: Json, started_us: int, remaining_ms: int, ttl_ms: int) -> Revocation:
    """Read that a lock will be taken in `remaining_ms`, from an answer to what left at `started_us`."""
    until_us = started_us + remaining_ms * 1000 - margin_us(ttl_ms)
    return Revocation(str(told["reason"]), int(told["takenAt"]) / 1000, until_us)


def unreadable(what: str, error: Exception) -> OutcomeUnknown:
    return OutcomeUnknown(f"the lock service's answer about {what} can't be read ({error!r})")


def _read(lock_key: str, answer: Json, started_us: int) -> Grant:
    try:
        ttl_ms = int(answer["ttlMillis"])
        # From before the request left: the lease can't have begun earlier than that.
        deadline_us = started_us + int(answer["remainingMillis"]) * 1000 - margin_us(ttl_ms)
        told = answer.get("revoked")
        return Grant(
            lock_key=lock_key,
            lock_token=str(answer["lockToken"]),
            owner_id=str(answer["ownerId"]),
            token=Token.parse(str(answer["fencingToken"])),
            sequencer=answer.get("sequencer"),
            ttl_ms=ttl_ms,
            started_us=started_us,
            deadline_us=deadline_us,
            mode=mode_of(answer.get("mode", "exclusive")),
            slot=answer.get("slot"),
            fence=answer.get("fence"),
            revoked=revocation(told, started_us, int(told["remainingMillis"]), ttl_ms) if told else None,
        )
    except (KeyError, TypeError, ValueError, FencegateError) as error:
        raise unreadable(repr(lock_key), error) from error


def mode_of(value: Any) -> Mode:
    if value == "exclusive":
        return "exclusive"
    if value == "shared":
        return "shared"
    raise ValueError(f"{value!r} is neither exclusive nor shared")
