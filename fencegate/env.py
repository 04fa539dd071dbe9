"""The environment: the only module that reads it."""

import os
from pathlib import Path


def setting(name: str) -> str | None:
    """The setting `name` from `FENCEGATE_<NAME>`, or from the file that `FENCEGATE_<NAME>_FILE` names.

    >>> setting("no_such_thing") is None
    True
    """
    variable = f"FENCEGATE_{name.upper()}"
    value = os.environ.get(variable)
    if value is not None:
        return value
    path = os.environ.get(f"{variable}_FILE")
    return Path(path).read_text(encoding="utf-8").strip() if path else None
