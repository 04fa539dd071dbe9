"""What a trial's resource holds at the end: no gateway and no holder is asked."""

from dataclasses import dataclass
from typing import Any

from fencegate.web.json import loads
from fencegate_demo.contents import read_object, read_row
from fencegate_demo.plan import KEY, Trial


@dataclass(frozen=True, slots=True)
class Holding:
    """The value that is there at the end: who wrote it, and which updates are in it."""

    owner: str | None
    updates: tuple[str, ...]


async def read_back(trial: Trial) -> Holding:
    value: dict[str, Any] | None
    if trial.settings.kind == "rows":
        value = await read_row(trial.settings, KEY)
    else:
        body = await read_object(trial.settings, KEY)
        value = None if body is None else dict(loads(body))
    return Holding(None, ()) if value is None else Holding(str(value["by"]), tuple(value["updates"]))
