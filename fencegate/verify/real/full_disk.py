"""A disk without room for one process: a limit of 0 on the size of its files (RLIMIT_FSIZE), set while it runs.

Every write to a file fails then, also one that would not make it longer. No disk has to be filled or mounted for it.
"""

import resource as limits
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ABLE = hasattr(limits, "prlimit")


def fill(pid: int) -> None:
    for each in _family(pid):
        with suppress(ProcessLookupError):
            _, hard = limits.prlimit(each, limits.RLIMIT_FSIZE)
            limits.prlimit(each, limits.RLIMIT_FSIZE, (0, hard))


def empty(pid: int) -> None:
    """There is room again."""
    for each in _family(pid):
        with suppress(ProcessLookupError):
            _, hard = limits.prlimit(each, limits.RLIMIT_FSIZE)
            limits.prlimit(each, limits.RLIMIT_FSIZE, (hard, hard))


def _family(pid: int) -> Iterator[int]:
    """The process, and its children: the writer of the SQLite store is one."""
    yield pid
    with suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):  # whichever of its threads began them
            yield from map(int, children.read_text().split())
