"""The answers to the lock calls, JSON-shaped."""

from typing import Any

from fencegate.core.commands import Renewed
from fencegate.core.machine import waiting
from fencegate.core.model import Hold, LockRecord, Revocation, Session
from fencegate.core.ports import Interval

Answer = dict[str, Any]


def remaining_ms(end_us: int, now: Interval) -> int:
    return max(0, (end_us - now.latest) // 1000)


def granted(lock_key: str, hold: Hold, now: Interval) -> Answer:
    terms = hold.who.special
    answer = {
        "lockKey": lock_key,
        "lockToken": hold.who.lock_token,
        "fencingToken": str(hold.token),
        "sequencer": None,
        "ownerId": hold.who.owner_id,
        "mode": "exclusive",
        "expiresAt": hold.expires_us // 1000,
        "remainingMillis": remaining_ms(hold.expires_us, now),
        "ttlMillis": hold.who.ttl_us // 1000,
    }
    if terms is not None:
        answer |= _special(lock_key, hold)
        if terms.session:
            answer |= {"sessionId": terms.session}
    return answer


def _special(lock_key: str, hold: Hold) -> Answer:
    """What is said of a hold that is not a plain one. A permit has a slot, and a fence of its own; a `#` that belongs
    to the lock key is escaped there."""
    found: Answer = {"mode": "shared" if hold.who.terms.shared else "exclusive"}
    if hold.slot is not None:
        found |= {"slot": hold.slot, "fence": f"{lock_key.replace('%', '%25').replace('#', '%23')}#{hold.slot}"}
    if hold.who.terms.hierarchical:
        found["hierarchical"] = True
    return found


def renewed(lock_key: str, outcome: Renewed, now: Interval) -> Answer:
    hold = outcome.hold
    answer: Answer = {
        "lockKey": lock_key,
        "fencingToken": str(hold.token),
        "sequencer": None,
        "expiresAt": hold.expires_us // 1000,
        "remainingMillis": remaining_ms(hold.expires_us, now),
    }
    if outcome.revoked is not None:
        answer["revoked"] = revoked(outcome.revoked, now)
    return answer


def revoked(asked: Revocation, now: Interval) -> Answer:
    return {
        "reason": asked.reason,
        "takenAt": asked.at_us // 1000,
        "remainingMillis": remaining_ms(asked.at_us, now),
    }


def released(lock_key: str, left: int) -> Answer:
    return {"status": "RELEASED", "lockKey": lock_key, "reentrancyCount": left}


def described(lock_key: str, record: LockRecord, holds: list[Hold], now: Interval) -> Answer:
    """A lock that somebody holds: `holds` are those that count now."""
    hold = max(holds, key=lambda hold: hold.expires_us)  # re-entrant ones: the lock is free when the last is over
    holders = [
        {
            "ownerId": other.who.owner_id,
            "fencingToken": str(other.token),
            "expiresAt": other.expires_us // 1000,
            "metadata": other.who.metadata,
            **_special(lock_key, other),
        }
        for other in holds
    ]
    answer: Answer = {
        "lockKey": lock_key,
        "locked": True,
        "ownerId": hold.who.owner_id,
        "mode": "exclusive",
        **_special(lock_key, hold),
        "fencingToken": str(hold.token),
        "expiresAt": hold.expires_us // 1000,
        "remainingMillis": remaining_ms(hold.expires_us, now),
        "reentrancyCount": len([other for other in holds if other.who.owner_id == hold.who.owner_id]),
        "holders": holders,
        "waiters": waiting(record, now),
    }
    for name in ("slot", "fence"):  # of one permit; each holder has its own
        answer.pop(name, None)
    if record.revoked is not None:
        answer["revoked"] = revoked(record.revoked, now)
    return answer


def session(session_id: str, found: Session, now: Interval) -> Answer:
    return {
        "sessionId": session_id,
        "ownerId": found.owner_id,
        "ttlMillis": found.ttl_us // 1000,
        "expiresAt": found.expires_us // 1000,
        "remainingMillis": remaining_ms(found.expires_us, now),
    }


def session_revoked(found: Session, now: Interval) -> Answer:
    return {
        "revoked": [
            {"lockKey": lock.lock_key, "fencingToken": str(lock.token), **revoked(lock.revoked, now)}
            for lock in found.revoked
        ]
    }
