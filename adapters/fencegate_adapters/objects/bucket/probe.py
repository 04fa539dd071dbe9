"""The probe at the start: a server that ignores conditions is refused.

Some do answer 200 to a condition that does not hold. Over such a server every promise of this adapter would be empty.
"""

from contextlib import suppress

from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.objects.bucket.blobs import Blobs, Version
from fencegate_adapters.objects.bucket.keys import PROBES
from fencegate_adapters.objects.bucket.outcomes import NotSent, Refused, Unsettled


async def probe(resource: str, blobs: Blobs, clock: Clock) -> None:
    """Try every condition that we rest on, on an object of our own; UnsafeConfiguration when one is not kept."""
    key = f"{PROBES}{clock.random_id(16)}"
    absent = f"{key}-absent"
    try:
        broken = await _broken(blobs, key, absent, clock)
    except (NotSent, Unsettled):
        raise ResourceUnavailable(
            f"resource {resource!r}: the bucket's server can't be reached or broke off, or there are no credentials"
        ) from None
    finally:
        for name in (key, absent):
            with suppress(FencegateError):
                await blobs.delete(name)
    if broken is not None:
        raise UnsafeConfiguration(
            f"resource {resource!r}: the bucket's server {broken}, so a stale write could not be stopped there. Use "
            "one that keeps If-Match and If-None-Match on writes, and shows and lists what was written."
        )


async def _broken(blobs: Blobs, key: str, absent: str, clock: Clock) -> str | None:
    """What the server does wrong; None when all is well."""

    async def put(name: str, expected: Version | None) -> Version | None:
        try:
            return await blobs.put(name, clock.random_id(16).encode(), expected, "text/plain")
        except Refused:
            return None

    first = await put(key, None)
    if first is None:
        return "refuses to create an object where there is none"
    if await put(key, None) is not None:
        return "ignores If-None-Match: it replaced an object that was only to be created"
    second = await put(key, first)
    if second is None:
        return "does not know If-Match: it refused to replace the version that was there"
    if await put(key, first) is not None:
        return "ignores If-Match: it replaced a version that was no longer there"
    if await put(absent, first) is not None:
        return "ignores If-Match: it created an object that was only to be replaced"
    found = await blobs.get(key)
    if found is None or found.version.e_tag != second.e_tag:
        return "does not show an object as it was last written"
    if key not in [each async for each in blobs.keys(PROBES)]:
        return "does not list an object that was just written"
    return None
