"""The probe at the start: a server that ignores conditions is refused.

Some do answer 200 to a condition that does not hold. Others look first and write later, and what happens in between
goes unnoticed: of several who replace one version at once, more than one is told so. (SeaweedFS was like that up to
4.16, and Versity's gateway over a file system until August 2026, as their issues tell.) Over either kind every
promise of this adapter would be empty.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from fencegate.clock import Clock
from fencegate.core.errors import FencegateError, ResourceUnavailable, UnsafeConfiguration
from fencegate_adapters.objects.bucket.blobs import Blobs, Version
from fencegate_adapters.objects.bucket.keys import PROBES
from fencegate_adapters.objects.bucket.outcomes import NotSent, Refused, Throttled, Unsettled

ROUNDS = 4
"""So often two go at one version at once: a server that looks first lets both in, unless by luck (by a look that is
0.2 ms old, 35 and 40 of 40 times in one round). Not more than two: SeaweedFS lets a third one wait for a second."""
PAUSES_S = (1.0, 2.0, 4.0)
"""Google Cloud Storage takes about one write a second to one name."""


async def probe(resource: str, blobs: Blobs, clock: Clock, rounds: int = ROUNDS) -> None:
    """Try every condition that we rest on, on an object of our own; UnsafeConfiguration when one is not kept."""
    key = f"{PROBES}{clock.random_id(16)}"
    absent = [f"{key}-{number}" for number in range(rounds)]
    try:
        broken = await _broken(blobs, key, absent[0], clock) or await _raced(blobs, absent, clock)
    except (NotSent, Unsettled):
        raise ResourceUnavailable(
            f"resource {resource!r}: the bucket's server can't be reached or broke off, or there are no credentials"
        ) from None
    finally:
        # All at once: a silent server would be waited for as often as there are names.
        await asyncio.gather(*(_remove(blobs, name) for name in (key, *absent)))
    if broken is not None:
        raise UnsafeConfiguration(
            f"resource {resource!r}: the bucket's server {broken}, so a stale write could not be stopped there. Use "
            "one that keeps If-Match and If-None-Match on writes, and shows and lists what was written."
        )


async def _broken(blobs: Blobs, key: str, absent: str, clock: Clock) -> str | None:
    """What the server does wrong; None when all is well."""

    async def put(name: str, expected: Version | None) -> Version | None:
        for pause_s in PAUSES_S:
            try:
                return await _put(blobs, name, expected, clock)
            except Throttled:
                await asyncio.sleep(pause_s)
        return await _put(blobs, name, expected, clock)

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


async def _raced(blobs: Blobs, absent: Sequence[str], clock: Clock) -> str | None:
    """What it does wrong when two come at once, to create each of the `absent`, and then to replace it."""
    for name in (*absent, *absent):
        found = await blobs.get(name)
        expected = found.version if found is not None else None
        rivals = [_put(blobs, name, expected, clock) for _ in range(2)]
        told = await asyncio.gather(*rivals, return_exceptions=True)
        if all(isinstance(each, Version) for each in told):  # one who was not answered proves nothing
            return "looks at conditions first and writes later: two at once were told to have replaced one version"
    return None


async def _put(blobs: Blobs, name: str, expected: Version | None, clock: Clock) -> Version | None:
    """The version that it is now at; None when the condition was refused."""
    try:
        return await blobs.put(name, clock.random_id(16).encode(), expected, "text/plain")
    except Refused:
        return None


async def _remove(blobs: Blobs, name: str) -> None:
    with suppress(FencegateError):
        await blobs.delete(name)
