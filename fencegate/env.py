"""The environment: the only module that reads it."""

import os
from collections.abc import Mapping
from pathlib import Path

from fencegate.core.errors import UnsafeConfiguration


def setting(name: str) -> str | None:
    """The setting `name` from `FENCEGATE_<NAME>`, or from the file that `FENCEGATE_<NAME>_FILE` names.

    >>> setting("no_such_thing") is None
    True
    """
    return variable(f"FENCEGATE_{name.upper()}")


def variable(name: str) -> str | None:
    """The variable `name`, or what is in the file that `<name>_FILE` names."""
    value = os.environ.get(name)
    if value is not None:
        return value
    path = os.environ.get(f"{name}_FILE")
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnsafeConfiguration(f"{name}_FILE: {path} can't be read ({error})") from None


def environment_with(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child process: ours, and these."""
    return {**os.environ, **variables}
