"""What a holder brings: a lease, or whatever looks like one."""

from typing import Protocol, runtime_checkable

from fencegate.core.names import check_lock_key
from fencegate.core.token import Token


class Lease(Protocol):
    """What `FencedRedis` needs to know of a lease. If it has `ensure_held()`, that is asked before each command."""

    @property
    def lock_key(self) -> str: ...
    @property
    def token(self) -> int: ...


@runtime_checkable
class _Held(Protocol):
    def ensure_held(self) -> object: ...


@runtime_checkable
class _OfAKind(Protocol):
    """A lease that may be shared, or one of several permits."""

    @property
    def mode(self) -> str: ...
    @property
    def fence(self) -> str: ...


def fence_of(lease: Lease) -> tuple[str, Token]:
    """The name of the fence, and the token. Readers share a token, which can't keep their writes apart."""
    if isinstance(lease, _OfAKind):
        if lease.mode == "shared":
            raise TypeError("FencedRedis is for writing, and a shared lease is for reading; hold the lock alone")
        return check_lock_key(lease.fence), Token(lease.token)
    return check_lock_key(lease.lock_key), Token(lease.token)


def ensure_held(lease: Lease) -> None:
    if isinstance(lease, _Held):
        lease.ensure_held()
