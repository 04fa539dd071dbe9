"""What is in a resource, read from the resource itself: no gateway is asked."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from fencegate.core.ports import Key
from fencegate.gateway.resources import ResourceSettings, build_objects, build_rows

_READERS = {"rows": "fencegate_adapters.sql", "objects": "fencegate_adapters.objects"}


def load(settings: ResourceSettings) -> None:
    """Import what it takes to read from it. Done in the midst of a play, that would hold up those who still play."""
    if settings.kind in _READERS:
        import_module(_READERS[settings.kind])


async def read_row(settings: ResourceSettings, key: Key) -> dict[str, Any] | None:
    rows = build_rows(settings)
    await rows.open()
    try:
        row, _ = await rows.read(key, settings.guard_rule.lock_key(key))
    finally:
        await rows.close()
    return dict(row) if row is not None else None


async def read_object(settings: ResourceSettings, key: Key) -> bytes | None:
    objects = build_objects(settings)
    await objects.open()
    try:
        info, body, _ = await objects.read(key, settings.guard_rule.lock_key(key))
        return None if info is None else await _whole(body)
    finally:
        await objects.close()


async def read_kept(database: Path, name: str) -> bytes | None:
    """What the demo's own service keeps under a name."""

    def read() -> bytes | None:
        with closing(sqlite3.connect(database)) as connection:
            found = connection.execute("SELECT body FROM kept WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0]).encode()

    return await asyncio.to_thread(read)


async def _whole(body: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in body])
