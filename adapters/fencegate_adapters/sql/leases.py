"""What `fenced` reads from leases: which fences they stand for, and whether they are still held."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from fencegate_adapters.sql.passing import Claims
from fencegate_adapters.sql.passing.claims import claims


class Lease(Protocol):
    """What `fenced` needs to know of a lease. If it has `ensure_held()`, that is asked before the last commit."""

    @property
    def lock_key(self) -> str: ...
    @property
    def token(self) -> int: ...


Leases = Lease | Mapping[str, Any]
"""A lease, or what `hold_all` gives: leases by lock key."""


def claims_of(leases: Sequence[Leases], lock_key: str | None, token: int | None) -> Claims:
    """The fences of the leases, or the one that is named by hand."""
    if leases:
        if lock_key is not None or token is not None:
            raise TypeError("fenced() takes leases, or lock_key and token; not both")
        if len(leases) == 1 and not isinstance(leases[0], Mapping):
            return claim_of(leases[0])
        return claims(tuple((_fence_of(lease), lease.token) for lease in _each(leases)))
    if lock_key is None or token is None:
        raise TypeError("fenced() needs a lease, or both lock_key and token")
    return claims(((lock_key, token),))


def claim_of(lease: Lease) -> Claims:
    """The fence of this one alone."""
    return claims(((_fence_of(lease), lease.token),))


def ensure_held(leases: Sequence[Leases]) -> None:
    """LockLost when one of them is known to be over."""
    for lease in leases:
        ensure = getattr(lease, "ensure_held", None)
        if ensure is not None:
            ensure()


def _each(leases: Sequence[Leases]) -> Iterator[Lease]:
    for lease in leases:
        if isinstance(lease, Mapping):
            yield from lease.values()
        else:
            yield lease


def _fence_of(lease: Lease) -> str:
    """The lock key; of a permit, its own slot's. Readers share a token, which can't keep their writes apart."""
    if getattr(lease, "mode", None) == "shared":
        raise TypeError(
            f"fenced() is for writing, and {lease.lock_key!r} is held shared, which is for reading; hold the lock "
            "alone, or leave this lease out"
        )
    fence: str = getattr(lease, "fence", lease.lock_key)
    return fence
