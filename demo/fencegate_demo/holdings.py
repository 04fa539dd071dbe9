"""What a trial's resource holds at the end: no gateway and no holder is asked."""

from dataclasses import dataclass
from typing import Any

from fencegate.web.json import loads
from fencegate_demo.contents import read_kept, read_object, read_row
from fencegate_demo.plan import KEY, Trial


@dataclass(frozen=True, slots=True)
class Holding:
    """The value that is there at the end: who wrote it, and which updates are in it."""

    owner: str | None
    updates: tuple[str, ...]


async def read_back(trial: Trial) -> Holding:
    value = await _value(trial)
    return Holding(None, ()) if value is None else Holding(str(value["by"]), tuple(str(value["updates"]).split()))


async def _value(trial: Trial) -> dict[str, Any] | None:
    if trial.settings.kind == "rows":
        return await read_row(trial.settings, KEY)
    if trial.settings.kind == "objects":
        body = await read_object(trial.settings, KEY)
    else:
        assert trial.over.database is not None, "a service of the demo's own has one"
        body = await read_kept(trial.over.database, f"{trial.settings.name}/{'/'.join(KEY)}")
    return None if body is None else dict(loads(body))
