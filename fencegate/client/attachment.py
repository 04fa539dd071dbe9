"""A lease in another process's hands: what `export` writes, and taking it up by a renewal."""

from typing import Literal

import msgspec

from fencegate.client.attempt import repeated, worth_repeating
from fencegate.client.grant import Grant, Mode, renewed
from fencegate.client.patience import within
from fencegate.client.transport import Transport
from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, InvalidInput, LockExpired, LockLost, NotOwner
from fencegate.core.names import check_lock_key
from fencegate.core.token import Token


class _Exported(msgspec.Struct, rename="camel"):
    form: Literal["fencegate-lease-1"]
    lock_key: str
    lock_token: str
    owner_id: str
    fencing_token: str
    sequencer: str | None
    ttl_millis: int
    mode: Mode = "exclusive"
    slot: int | None = None
    fence: str | None = None


def export_grant(grant: Grant) -> str:
    """What has to be known of a lease to go on with it.

    It holds the secret lockToken, so pass it on with care. It holds no deadline: the clocks of two processes need not
    compare, so whoever takes it up begins with a renewal.
    """
    exported = _Exported(
        "fencegate-lease-1",
        grant.lock_key,
        grant.lock_token,
        grant.owner_id,
        grant.token.wire,
        grant.sequencer,
        grant.ttl_ms,
        grant.mode,
        grant.slot,
        grant.fence,
    )
    return msgspec.json.encode(exported).decode()


def import_grant(exported: str) -> Grant:
    """The grant of an exported lease, already past its deadline: it is worth nothing until it was renewed."""
    try:
        data = msgspec.json.decode(exported, type=_Exported)
        return Grant(
            lock_key=check_lock_key(data.lock_key),
            lock_token=data.lock_token,
            owner_id=data.owner_id,
            token=Token.parse(data.fencing_token),
            sequencer=data.sequencer,
            ttl_ms=data.ttl_millis,
            started_us=0,
            deadline_us=0,
            mode=data.mode,
            slot=data.slot,
            fence=data.fence,
        )
    except (ValueError, TypeError, RecursionError, FencegateError):
        raise InvalidInput("exported", "is not what lease.export() wrote") from None


class Attachment:
    """Takes a lease up where another process left it. There is nothing to undo: it is still the other's."""

    doubtful = False
    wait_until_us = 0

    def __init__(self, exported: Grant, clock: Clock, timeout_s: float) -> None:
        self._grant = exported
        self._clock = clock
        self._timeout_s = timeout_s

    async def run(self, transport: Transport) -> Grant:
        grant, clock = self._grant, self._clock
        until_us = clock.monotonic_us() + self._timeout_s * 1e6

        async def renew() -> Grant:
            started_us = clock.monotonic_us()
            reply = await within(transport.renew(grant.lock_key, grant.renewal_body()), self._timeout_s)
            return renewed(grant, reply, started_us)

        try:
            return await repeated(renew, lambda error: worth_repeating(error) and clock.monotonic_us() < until_us)
        except (LockExpired, NotOwner) as error:
            raise LockLost(f"the lease of {grant.lock_key!r} is over: {error.detail}") from error

    async def undo(self, transport: Transport) -> None:
        return None
