"""Fencegate: distributed locks whose stale holders are refused by the resource itself.

    from fencegate import connect

    locks = connect()
    async with locks.hold("rebuild:eu", ttl=30, wait=10) as lease:
        await http.put(url, json=row, headers=lease.headers())

Without `await`: `from fencegate.sync import connect`. In your own transactions: `from fencegate.sql import fenced`.
"""

from fencegate.client import Hold, Lease, LeaseState, Locks, TryHold, connect
from fencegate.core.errors import (
    BadSequencer,
    FencegateError,
    InvalidInput,
    InvalidToken,
    LockExpired,
    LockFree,
    LockHeld,
    LockLost,
    NotFound,
    NotOwner,
    NotSupported,
    OutcomeUnknown,
    PreconditionFailed,
    RateLimited,
    RequestIdReused,
    ResourceUnavailable,
    ShuttingDown,
    StaleToken,
    StoreUnavailable,
    TokenNotForThisKey,
    TokenRequired,
    TooLarge,
    TooManyWaiters,
    UnsafeConfiguration,
)
from fencegate.core.token import Token

__all__ = [
    "BadSequencer",
    "FencegateError",
    "Hold",
    "InvalidInput",
    "InvalidToken",
    "Lease",
    "LeaseState",
    "LockExpired",
    "LockFree",
    "LockHeld",
    "LockLost",
    "Locks",
    "NotFound",
    "NotOwner",
    "NotSupported",
    "OutcomeUnknown",
    "PreconditionFailed",
    "RateLimited",
    "RequestIdReused",
    "ResourceUnavailable",
    "ShuttingDown",
    "StaleToken",
    "StoreUnavailable",
    "Token",
    "TokenNotForThisKey",
    "TokenRequired",
    "TooLarge",
    "TooManyWaiters",
    "TryHold",
    "UnsafeConfiguration",
    "connect",
]
