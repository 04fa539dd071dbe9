"""The bodies of the lock calls: what may be asked, within which bounds. The OpenAPI document is made from them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_LOCKS = 64

Text = Annotated[str, Meta(min_length=1, max_length=256)]
LockKey = Annotated[str, Meta(min_length=1, max_length=1024, description="The name that is locked: inventory:sku:123")]
LockToken = Annotated[str, Meta(min_length=1, max_length=256, description="The secret that proves ownership")]
Ttl = Annotated[int, Meta(ge=1000, le=3_600_000)]
Wait = Annotated[int, Meta(ge=0, le=60_000)]
Priority = Annotated[int, Meta(ge=-1000, le=1000)]
LockDelay = Annotated[int, Meta(ge=0, le=3_600_000)]
MaxHold = Annotated[int, Meta(ge=1000, le=86_400_000)]
Mode = Literal["exclusive", "shared"]


class AcquireBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    ownerId: Text | None = None
    ttlMillis: Ttl = 30_000
    wait: bool | None = None
    waitMillis: Wait | None = None
    requestId: Text | None = None
    mode: Mode = "exclusive"
    reentrant: bool = False
    priority: Priority = 0
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    hierarchical: bool = False
    sessionId: Text | None = None
    lockDelayMillis: LockDelay | None = None
    maxHoldMillis: MaxHold | None = None
    metadata: dict[str, Any] | None = None


class RenewBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    lockToken: LockToken
    ownerId: Text | None = None
    ttlMillis: Ttl | None = None


class ReleaseBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    lockToken: LockToken
    ownerId: Text | None = None


class ForceReleaseBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    reason: Annotated[str, Meta(min_length=1, max_length=500)]
    graceMillis: Annotated[int, Meta(ge=0, le=3_600_000)] = 0


class StatusBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    pass


# --- several locks at once -------------------------------------------------------------------------------------------


class WantedLock(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    lockKey: LockKey
    mode: Mode = "exclusive"


class HeldLock(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    lockKey: LockKey
    lockToken: LockToken | None = None
    ownerId: Text | None = None
    # What else an acquire asks or answers is not needed here; taken, so that its list can be sent back as it is.
    mode: Mode | None = None
    fencingToken: Any = None
    sequencer: Any = None
    expiresAt: Any = None
    remainingMillis: Any = None
    ttlMillis: Any = None
    sessionId: Any = None


class MultiAcquireBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    locks: Annotated[list[WantedLock], Meta(min_length=1, max_length=MAX_LOCKS)]
    ownerId: Text | None = None
    ttlMillis: Ttl = 30_000
    wait: bool | None = None
    waitMillis: Wait | None = None
    requestId: Text | None = None
    priority: Priority = 0
    sessionId: Text | None = None
    lockDelayMillis: LockDelay | None = None
    maxHoldMillis: MaxHold | None = None
    metadata: dict[str, Any] | None = None


class MultiRenewBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    locks: Annotated[list[HeldLock], Meta(min_length=1, max_length=MAX_LOCKS)]
    lockToken: LockToken | None = None
    ownerId: Text | None = None
    ttlMillis: Ttl | None = None


class MultiReleaseBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    locks: Annotated[list[HeldLock], Meta(min_length=1, max_length=MAX_LOCKS)]
    lockToken: LockToken | None = None
    ownerId: Text | None = None


# --- sessions --------------------------------------------------------------------------------------------------------


class OpenSessionBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    ownerId: Text | None = None
    ttlMillis: Ttl = 30_000


class RenewSessionBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    ownerId: Text | None = None
    ttlMillis: Ttl | None = None


Body = AcquireBody | RenewBody | ReleaseBody | ForceReleaseBody | StatusBody
MultiBody = MultiAcquireBody | MultiRenewBody | MultiReleaseBody
