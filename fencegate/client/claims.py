"""Claims on acquire: the fences of what a lock protects are raised before its holder reads anything.

A holder that has read and not yet written is unknown to the resource, and an old token still passes there: what it
read may change under it. After a claim it can't.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from fencegate.client.lease import LeaseCore
from fencegate.core.errors import InvalidInput, ResourceUnavailable

MAX_CLAIMS = 100


@runtime_checkable
class Claimable(Protocol):
    """What can be claimed: keys behind a gateway (`fencegate.httpx.GatewayKey`), databases
    (`fencegate.sql.claimable(engine)`), adapters, and whatever else has this method."""

    def claim(self, lock_key: str, token: int, /) -> Awaitable[object] | object:
        """Raise the fence to `token`, durably; StaleToken when it has seen a higher one.

        May be a coroutine function. A plain function is called in a thread where it would hold up an event loop.
        """


class Claims:
    """What a hold claims as soon as the lock is granted."""

    def __init__(self, claimed: Sequence[Claimable | str] | None) -> None:
        # Not any iterable: a generator is empty when a decorated function is called for the second time.
        if claimed is not None and (isinstance(claimed, str) or not isinstance(claimed, Sequence)):
            raise InvalidInput("claim", "must be a list of what to claim")
        self._claimed = tuple(_claimable(each) for each in claimed or ())
        if len(self._claimed) > MAX_CLAIMS:
            raise InvalidInput("claim", f"must be at most {MAX_CLAIMS}; claim a lock that guards them all")

    def __bool__(self) -> bool:
        return bool(self._claimed)

    async def make(self, lease: LeaseCore, timeout_s: float) -> None:
        """One after the other, in the order of the caller; the first that fails ends it, and so does a lost lease."""
        for each in self._claimed:
            lease.ensure_held()
            try:
                async with asyncio.timeout(timeout_s):
                    await _claim(each, lease)
            except TimeoutError:
                detail = f"the claim on {each!r} took longer than {timeout_s:g} s"
                raise ResourceUnavailable(detail, outcome="unknown") from None
        lease.ensure_held()


GroupClaim = Mapping[str, Sequence[Claimable | str]]
"""What to claim with which lock of several."""


def claim_of(
    claimed: Sequence[Claimable | str] | None, timeout_s: float
) -> Callable[[LeaseCore], Awaitable[None]] | None:
    """What a hold does once its lock is granted; None when it claims nothing."""
    claims = Claims(claimed)
    return (lambda lease: claims.make(lease, timeout_s)) if claims else None


def group_claim_of(
    claimed: GroupClaim | None, locks: Iterable[str | tuple[str, str]], timeout_s: float
) -> Callable[[Mapping[str, LeaseCore]], Awaitable[None]] | None:
    """The same for several locks that are held as one."""
    if claimed is not None and not isinstance(claimed, Mapping):
        raise InvalidInput("claim", "must say what is claimed with which lock, as in {'a': [account]}")
    wanted = {lock_key: Claims(each) for lock_key, each in (claimed or {}).items()}
    unknown = wanted.keys() - {lock if isinstance(lock, str) else lock[0] for lock in locks}
    if unknown:
        raise InvalidInput("claim", f"names {min(unknown)!r}, which is none of the locks")
    if not wanted:
        return None

    async def claim(leases: Mapping[str, LeaseCore]) -> None:
        for lock_key, claims in wanted.items():
            await claims.make(leases[lock_key], timeout_s)

    return claim


async def _claim(claimable: Claimable, lease: LeaseCore) -> None:
    if inspect.iscoroutinefunction(claimable.claim):
        await claimable.claim(lease.fence, lease.token)
        return
    told = await asyncio.to_thread(claimable.claim, lease.fence, lease.token)
    if inspect.isawaitable(told):
        await told


def _claimable(given: Claimable | str) -> Claimable:
    if isinstance(given, str):
        from fencegate.httpx import GatewayKey  # only here: who claims nothing need not load it

        return GatewayKey(given)
    if not isinstance(given, Claimable):
        raise TypeError(
            f"{given!r} can't be claimed: it has no claim(lock_key, token). For a database: "
            "fencegate.sql.claimable(engine); for a key behind a gateway: its URL, or fencegate.httpx.GatewayKey"
        )
    return given
