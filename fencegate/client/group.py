"""Several leases that are held as one: granted all or none, renewed by one call, and lost as one."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Generic, TypeVar

from fencegate.client.grant import Grant, Revocation, renewed, unreadable
from fencegate.client.lease import LeaseCore
from fencegate.client.life import ALIVE, Life
from fencegate.client.transport import Json, Transport
from fencegate.clock import Clock
from fencegate.core.errors import LockExpired, LockLost, NotOwner

L = TypeVar("L", bound=LeaseCore)

Grants = tuple[Grant, ...]

_GONE = (LockExpired, NotOwner)


class GroupCore(Life, Mapping[str, L], Generic[L]):
    """What both faces of a group share: `leases["a"].token`.

    All or none goes for holding, too: when one of them is lost, all are, and what is left is given back.
    """

    def __init__(self, grants: Grants, clock: Clock, lease: Callable[[Grant, Life], L], session: Life | None) -> None:
        self._owner_id, self._ttl_ms = grants[0].owner_id, grants[0].ttl_ms
        self._members: dict[str, L] = {}
        until_us = min(grant.deadline_us for grant in grants)
        super().__init__(clock, grants[0].started_us, until_us, session, grants[0].last_us)
        self._members = {grant.lock_key: lease(grant, self) for grant in grants}

    def __getitem__(self, lock_key: str) -> L:
        return self._members[lock_key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    # Two groups are equal if they are one: what they hold is not a value.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} {self.state.value}>"

    @property
    def ttl(self) -> float:
        """Seconds that each renewal brings."""
        return self._ttl_ms / 1000

    def _describe(self) -> str:
        first = next(iter(self._members), "")
        return f"the hold on {first!r} and {len(self._members) - 1} more"

    def _child_revoked(self, revoked: Revocation) -> None:
        self._revoke(revoked)

    async def _send_renewal(self, transport: Transport) -> None:
        grants = [lease._grant for lease in self.values() if lease._state in ALIVE]
        if not grants:  # each was released by itself
            self._give_up()
            return
        started_us = self._clock.monotonic_us()
        reply = await transport.multi_renew({**self._body(grants), "ttlMillis": self._ttl_ms})
        again = [_answer_for(grant, reply, started_us) for grant in grants]
        if self._live_on(started_us, min(grant.deadline_us for grant in again)):
            for grant in again:
                self._members[grant.lock_key]._extend(grant)

    async def _send_release(self, transport: Transport) -> None:
        grants = [lease._grant for lease in self.values()]
        try:
            await transport.multi_release(self._body(grants))
        except _GONE:
            # One of them is gone, so nothing was released. The others are still ours to give back.
            for grant in grants:
                with suppress(*_GONE):
                    await transport.release(grant.lock_key, grant.release_body())
            raise

    def _body(self, grants: list[Grant]) -> Json:
        locks = [{"lockKey": grant.lock_key, "lockToken": grant.lock_token} for grant in grants]
        return {"locks": locks, "ownerId": self._owner_id}


def _answer_for(grant: Grant, reply: Json, started_us: int) -> Grant:
    """The part of the answer that is about this lock."""
    try:
        part = next((part for part in reply["locks"] if part["lockKey"] == grant.lock_key), None)
    except (KeyError, TypeError) as error:
        raise unreadable("several locks", error) from error
    if part is None:
        raise LockLost(f"the renewal of several locks left {grant.lock_key!r} out")
    return renewed(grant, part, started_us)
