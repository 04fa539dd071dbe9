"""Lengths of time as options: `500ms`, `30s`, `2m`, `1h`, or plain seconds."""

import math
from collections.abc import Callable

import typer

from fencegate.core.durations import seconds
from fencegate.core.errors import InvalidInput


def duration(least_s: float = 0.0, most_s: float = math.inf) -> Callable[[str | float], float]:
    """Reads an option's value into seconds; click names the option when it complains.

    >>> duration()("1.5m")
    90.0
    """

    def parse(text: str | float) -> float:
        try:
            length_s = seconds(text)
        except InvalidInput as error:
            raise typer.BadParameter(error.detail.removeprefix("duration: ")) from None
        if not least_s <= length_s <= most_s:
            limits = f"at least {least_s:g}s" if most_s == math.inf else f"{least_s:g}s to {most_s:g}s"
            raise typer.BadParameter(f"{text!r} is out of range; {limits}")
        return length_s

    return parse
