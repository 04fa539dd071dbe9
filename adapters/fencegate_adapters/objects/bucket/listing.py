"""The objects of a bucket, a page at a time: keys as the server lists them, then the header of each."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from fencegate.core.names import check_path
from fencegate.core.ports import ObjectInfo
from fencegate_adapters.objects.bucket.blobs import Blobs
from fencegate_adapters.objects.bucket.frames import Frames
from fencegate_adapters.objects.bucket.keys import Place, just_below, name_of, name_prefix, object_place
from fencegate_adapters.objects.bucket.standing import info_of

HEADER_BYTES = 4096
"""What is fetched of each object: the common header is a tenth of that."""
AT_ONCE = 16


async def page(blobs: Blobs, frames: Frames, prefix: str, after: str, limit: int) -> Sequence[tuple[str, ObjectInfo]]:
    """At most `limit` objects whose names begin with `prefix`, behind `after`; deleted ones are left out."""
    key_prefix = name_prefix(prefix)
    start = _start(key_prefix, after)
    if start is None or "//" in key_prefix:  # no name has an empty segment
        return []
    told: list[tuple[str, ObjectInfo]] = []
    batch: list[Place] = []
    async with aclosing(blobs.keys(key_prefix.rpartition("/")[0], start or None)) as keys:
        async for key in keys:
            if not key.startswith(key_prefix):
                if key < key_prefix:
                    continue
                break
            name = name_of(key)
            if name is not None and name.startswith(prefix):  # the ending of a key may look like part of a prefix
                batch.append(Place(key, name))
            if len(batch) >= min(AT_ONCE, limit - len(told)):
                told += await _described(frames, batch)
                batch = []
                if len(told) >= limit:
                    return told[:limit]
    told += await _described(frames, batch)
    return told[:limit]


def _start(key_prefix: str, after: str) -> str | None:
    """The key behind which the page begins; empty for the first one, None when there is nothing behind `after`."""
    below = "" if key_prefix.endswith("/") else just_below(key_prefix)
    if not after:
        return below
    behind = object_place(check_path("cursor", after)).key
    if behind.startswith(key_prefix):
        return behind
    return below if behind < key_prefix else None


async def _described(frames: Frames, batch: Sequence[Place]) -> list[tuple[str, ObjectInfo]]:
    found = await asyncio.gather(*(frames.load(place, HEADER_BYTES) for place in batch))
    return [
        (place.name, info_of(each.header))
        for place, each in zip(batch, found, strict=True)
        if each is not None and not each.header.tombstone
    ]
