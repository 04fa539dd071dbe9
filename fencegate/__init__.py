"""Fencegate: distributed locks whose stale holders are refused by the resource itself.

    from fencegate import connect

    locks = connect()
    async with locks.hold("rebuild:eu", ttl=30, wait=10) as lease:
        await http.put(url, json=row, headers=lease.headers())

Without `await`: `from fencegate.sync import connect`. In your own transactions: `from fencegate.sql import fenced`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencegate.client import (
        Claimable,
        GroupTerms,
        Hold,
        HoldAll,
        Lead,
        Leader,
        Lease,
        Leases,
        LeaseState,
        LockHistory,
        Locks,
        Observer,
        OpenSession,
        PastHold,
        Revocation,
        Session,
        Term,
        Terms,
        TryHold,
        Watcher,
        WatchEvent,
        connect,
    )
    from fencegate.core.errors import (
        BadSequencer,
        FencegateError,
        InvalidInput,
        InvalidToken,
        LockExpired,
        LockFree,
        LockHeld,
        LockLost,
        MaxHoldReached,
        NotFound,
        NotOwner,
        NotSupported,
        OutcomeUnknown,
        PreconditionFailed,
        RateLimited,
        RequestIdReused,
        ResourceUnavailable,
        SessionExpired,
        SessionNotFound,
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
    "Claimable",
    "FencegateError",
    "GroupTerms",
    "Hold",
    "HoldAll",
    "InvalidInput",
    "InvalidToken",
    "Lead",
    "Leader",
    "Lease",
    "LeaseState",
    "Leases",
    "LockExpired",
    "LockFree",
    "LockHeld",
    "LockHistory",
    "LockLost",
    "Locks",
    "MaxHoldReached",
    "NotFound",
    "NotOwner",
    "NotSupported",
    "Observer",
    "OpenSession",
    "OutcomeUnknown",
    "PastHold",
    "PreconditionFailed",
    "RateLimited",
    "RequestIdReused",
    "ResourceUnavailable",
    "Revocation",
    "Session",
    "SessionExpired",
    "SessionNotFound",
    "ShuttingDown",
    "StaleToken",
    "StoreUnavailable",
    "Term",
    "Terms",
    "Token",
    "TokenNotForThisKey",
    "TokenRequired",
    "TooLarge",
    "TooManyWaiters",
    "TryHold",
    "UnsafeConfiguration",
    "WatchEvent",
    "Watcher",
    "connect",
]

_WHERE = ("fencegate.core.errors", "fencegate.core.token", "fencegate.client")

if not TYPE_CHECKING:  # to whom a module with this function would have every name

    def __getattr__(name: str) -> Any:
        """Import what is asked for, when it is: every process of ours imports this package, and few need the client."""
        if name in __all__:
            for module in map(import_module, _WHERE):
                if hasattr(module, name):
                    globals()[name] = found = getattr(module, name)
                    return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
