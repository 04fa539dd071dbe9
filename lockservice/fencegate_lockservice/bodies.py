"""The bodies of the lock calls: what may be asked, within which bounds. The OpenAPI document is made from them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Text = Annotated[str, Meta(min_length=1, max_length=256)]
LockKey = Annotated[str, Meta(min_length=1, max_length=1024, description="The name that is locked: inventory:sku:123")]
LockToken = Annotated[str, Meta(min_length=1, max_length=256, description="The secret that proves ownership")]
Ttl = Annotated[int, Meta(ge=1000, le=3_600_000)]


class AcquireBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    ownerId: Text | None = None
    ttlMillis: Ttl = 30_000
    wait: bool | None = None
    waitMillis: Annotated[int, Meta(ge=0, le=60_000)] | None = None
    requestId: Text | None = None
    mode: Literal["exclusive", "shared"] = "exclusive"
    reentrant: bool = False
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    hierarchical: bool = False
    sessionId: Text | None = None
    lockDelayMillis: Annotated[int, Meta(ge=0, le=3_600_000)] | None = None
    maxHoldMillis: Annotated[int, Meta(ge=1000, le=86_400_000)] | None = None
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


Body = AcquireBody | RenewBody | ReleaseBody | ForceReleaseBody | StatusBody
