"""What a resource really holds, read from the resource itself: no gateway and no holder is asked."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fencegate.gateway.resources import build_objects, build_rows
from fencegate.web.json import loads
from fencegate_demo.plan import KEY, Trial


@dataclass(frozen=True, slots=True)
class Holding:
    """The value that is there at the end: who wrote it, and which updates are in it."""

    owner: str | None
    updates: tuple[str, ...]


async def read_back(trial: Trial) -> Holding:
    value = await (_row(trial) if trial.settings.kind == "rows" else _object(trial))
    return Holding(None, ()) if value is None else Holding(str(value["by"]), tuple(value["updates"]))


async def _row(trial: Trial) -> dict[str, Any] | None:
    rows = build_rows(trial.settings)
    await rows.open()
    try:
        row, _ = await rows.read(KEY, trial.lock_key)
    finally:
        await rows.close()
    return dict(row) if row is not None else None


async def _object(trial: Trial) -> dict[str, Any] | None:
    objects = build_objects(trial.settings)
    await objects.open()
    try:
        info, body, _ = await objects.read(KEY, trial.lock_key)
        return None if info is None else dict(loads(await _whole(body)))
    finally:
        await objects.close()


async def _whole(body: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in body])
