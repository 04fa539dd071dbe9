"""A lease as its holder sees it, whichever face shows it: what was granted, for as long as it may be believed."""

from collections.abc import Awaitable, Iterator

from fencegate.client.attachment import export_grant
from fencegate.client.grant import Grant, Mode, renewed
from fencegate.client.life import LeaseState, Life
from fencegate.client.transport import Transport
from fencegate.clock import Clock
from fencegate.core.errors import FencegateError
from fencegate.core.token import Token, token_headers

__all__ = ["LeaseCore", "LeaseState"]


class LeaseCore(Life):
    """What both faces of a lease share. Renewed by itself, or by the session or group that it hangs on."""

    def __init__(self, grant: Grant, clock: Clock, parent: Life | None = None) -> None:
        self._grant = grant
        Life.__init__(self, clock, grant.started_us, grant.deadline_us, parent, grant.last_us)

    def __repr__(self) -> str:  # without the lockToken, which is a secret
        return f"<{type(self).__name__} {self.lock_key!r} token={self.token} {self.state.value}>"

    @property
    def lock_key(self) -> str:
        return self._grant.lock_key

    @property
    def token(self) -> Token:
        """The fencing token: send it with every write."""
        return self._grant.token

    @property
    def mode(self) -> Mode:
        """`exclusive` or `shared`. The token of a shared hold is one for all who overlap: it serves for reads only."""
        return self._grant.mode

    @property
    def slot(self) -> int | None:
        """Which of the `limit` permits this is, from 0; None where there is no limit."""
        return self._grant.slot

    @property
    def fence(self) -> str:
        """The name of the fence that the token belongs to: the lock key, and of a permit `lockKey#slot`."""
        return self._grant.fence or self._grant.lock_key

    @property
    def sequencer(self) -> str | None:
        """The signed fencing token; None where the lock service doesn't sign."""
        return self._grant.sequencer

    @property
    def lock_token(self) -> str:
        """The secret that proves ownership to the lock service."""
        return self._grant.lock_token

    @property
    def owner_id(self) -> str:
        return self._grant.owner_id

    @property
    def ttl(self) -> float:
        """Seconds that each renewal brings."""
        return self._grant.ttl_ms / 1000

    def headers(self) -> dict[str, str]:
        """The headers that a write carries to a protected resource; LockLost when it would come too late.

        With a shared lease they are for fenced reads. Its token is no proof of being the only one, so it must not
        write with it, and a resource that can tell (by a sequencer) refuses.
        """
        self.ensure_held()
        return token_headers(self.sequencer or self.token.wire, self.fence)

    def export(self) -> str:
        """The lease as text, for `locks.attach` in another process. It holds the secret lockToken.

        This process goes on renewing until it releases the lease, which ends it for the other one as well. A lease
        that hangs on a session or a group can't be renewed by itself, so it stays in its process.
        """
        self.ensure_held()
        if self._parent is not None:
            raise FencegateError(f"{self.lock_key!r} lives by its session or group; hold it by itself to export it")
        return export_grant(self._grant)

    def _describe(self) -> str:
        return f"the lease of {self.lock_key!r} (token {self.token})"

    def _leases(self) -> Iterator[Life]:
        yield self

    async def _send_renewal(self, transport: Transport) -> None:
        grant, started_us = self._grant, self._clock.monotonic_us()
        reply = await transport.renew(grant.lock_key, grant.renewal_body())
        self._extend(renewed(grant, reply, started_us))

    def _send_release(self, transport: Transport) -> Awaitable[object]:
        return transport.release(self.lock_key, self._grant.release_body())

    def _release_within(self, transport: Transport, limit_s: float) -> Awaitable[object]:
        grant = self._grant
        straight = transport.straight(grant.lock_key)
        if straight is None:
            return super()._release_within(transport, limit_s)
        return straight.release(grant.lock_key, grant.lock_token, grant.owner_id, limit_s)

    def _extend(self, grant: Grant) -> None:
        """Take in a renewal; one that comes after the deadline comes too late."""
        if self._live_on(grant.started_us, grant.deadline_us):
            self._grant = grant
            if grant.revoked is not None:
                self._revoke(grant.revoked)
