"""Leaving nothing behind in a user's own Redis or bucket."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fencegate.core.ports import Key
from fencegate.gateway.resources import BucketSettings, HashSettings, ResourceSettings, StringSettings

Keys = Callable[[], Sequence[Key]]


@asynccontextmanager
async def traceless_resource(settings: ResourceSettings, keys: Keys) -> AsyncIterator[None]:
    """Around whatever writes `keys` of this resource, whose name is nobody else's."""
    if isinstance(settings, BucketSettings):
        async with _bucket(settings):
            yield
    elif isinstance(settings, StringSettings | HashSettings):
        async with _redis(settings, keys):
            yield
    else:
        yield


@asynccontextmanager
async def _bucket(settings: BucketSettings) -> AsyncIterator[None]:
    """The prefix is one of ours inside the user's."""
    with settings.needs(settings.extra):
        from fencegate_adapters.objects.bucket.blobs import Blobs
        from fencegate_adapters.objects.bucket.url import BucketUrl

    try:
        yield
    finally:
        blobs = Blobs(settings.name, BucketUrl.parse(settings.name, settings.url), settings.timeout_s)
        try:
            for found in [found async for found in blobs.keys("")]:
                await blobs.delete(found)
        finally:
            await blobs.close()


@asynccontextmanager
async def _redis(settings: StringSettings | HashSettings, keys: Keys) -> AsyncIterator[None]:
    with settings.needs("redis"):
        from fencegate_adapters.redis import names, url
        from fencegate_adapters.redis.link import link_to

    link = link_to(url.parse(settings.name, settings.url), settings.timeout_s)
    try:
        new = not await link.ask("EXISTS", names.BORN)
        try:
            yield
        finally:
            await link.ask("DEL", names.index_name(settings.name), names.record_name(settings.name))
            for key in keys():
                await link.ask("DEL", *_names(settings, key))
            if new:  # it was no resource of anybody's before
                await link.ask("DEL", names.BORN, names.FLOOR)
    finally:
        await link.close()


def _names(settings: StringSettings | HashSettings, key: Key) -> list[str]:
    """All that is kept about a key."""
    from fencegate_adapters.redis import names, url

    address = url.parse(settings.name, settings.url)
    value = names.value_name(address.at.prefix, names.name_of(key))
    lock = settings.guard_rule.lock_key(key)
    return [value, names.ABOUT + value, *(names.fence_name(lock, mode) for mode in ("enforce", "shadow"))]
