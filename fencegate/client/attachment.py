"""A lease in another process's hands: what `export` writes, and taking it up by a renewal."""

import json

from fencegate.client.attempt import repeated, worth_repeating
from fencegate.client.grant import Grant, mode_of, renewed
from fencegate.client.patience import within
from fencegate.client.transport import Transport
from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, InvalidInput, LockExpired, LockLost, NotOwner
from fencegate.core.names import check_lock_key
from fencegate.core.token import Token

_FORM = "fencegate-lease-1"


def export_grant(grant: Grant) -> str:
    """What has to be known of a lease to go on with it.

    It holds the secret lockToken, so pass it on with care. It holds no deadline: the clocks of two processes need not
    compare, so whoever takes it up begins with a renewal.
    """
    return json.dumps(
        {
            "form": _FORM,
            "lockKey": grant.lock_key,
            "lockToken": grant.lock_token,
            "ownerId": grant.owner_id,
            "fencingToken": grant.token.wire,
            "sequencer": grant.sequencer,
            "ttlMillis": grant.ttl_ms,
            "mode": grant.mode,
            "slot": grant.slot,
            "fence": grant.fence,
        }
    )


def import_grant(exported: str) -> Grant:
    """The grant of an exported lease, already past its deadline: it is worth nothing until it was renewed."""
    try:
        data = json.loads(exported)
        if data["form"] != _FORM:
            raise ValueError(data["form"])
        return Grant(
            lock_key=check_lock_key(data["lockKey"]),
            lock_token=str(data["lockToken"]),
            owner_id=str(data["ownerId"]),
            token=Token.parse(data["fencingToken"]),
            sequencer=data["sequencer"],
            ttl_ms=int(data["ttlMillis"]),
            started_us=0,
            deadline_us=0,
            mode=mode_of(data.get("mode", "exclusive")),
            slot=data.get("slot"),
            fence=data.get("fence"),
        )
    except (ValueError, KeyError, TypeError, FencegateError):
        raise InvalidInput("exported", "is not what lease.export() wrote") from None


class Attachment:
    """Takes a lease up where another process left it. There is nothing to undo: it is still the other's."""

    doubtful = False

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
