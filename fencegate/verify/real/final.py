"""What a resource holds when an episode is over, read from the resource itself: no gateway is asked."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fencegate.core.errors import FencegateError
from fencegate.gateway.resources import ResourceSettings
from fencegate.web.json import loads
from fencegate_demo.contents import read_kept, read_object, read_row

TRIES = 20
AGAIN_S = 0.5


async def read_final(
    settings: ResourceSettings, keys: Sequence[str], database: Path | None
) -> dict[str, tuple[str, ...]]:
    """The updates under each key."""
    return {key: await _updates(settings, key, database) for key in keys}


async def _updates(settings: ResourceSettings, key: str, database: Path | None) -> tuple[str, ...]:
    for tried in range(TRIES):
        try:
            value = await _value(settings, key, database)
        except FencegateError:  # a server that is just coming back
            if tried == TRIES - 1:
                raise
            await asyncio.sleep(AGAIN_S)
        else:
            return () if value is None else tuple(str(value["updates"]).split())
    raise AssertionError("unreachable")


async def _value(settings: ResourceSettings, key: str, database: Path | None) -> dict[str, Any] | None:
    if settings.kind == "rows":
        return await read_row(settings, (key,))
    if settings.kind == "objects":
        body = await read_object(settings, (key,))
    else:
        assert database is not None, "a service of our own has one"
        body = await read_kept(database, f"{settings.name}/{key}")
    return None if body is None else dict(loads(body))
