"""Which processes there are: a group's and a process's descendants, where the kernel tells (Linux)."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Process(NamedTuple):
    pid: int
    parent: int
    group: int


def group_lives(group: int) -> bool:
    """Whether a process group has a member that is not a zombie."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A zombie that its parent never reaps answers as well. Without /proc there is no telling.
    known = list(_living())
    return not known or any(process.group == group for process in known)


def descendants(root: int) -> list[Process]:
    """Children, and theirs; nothing where there is no /proc."""
    children: dict[int, list[Process]] = {}
    for process in _living():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    heads = [root]
    while heads:
        below = children.pop(heads.pop(), [])
        found += below
        heads += [process.pid for process in below]
    return found


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal what may be signalled; a process of another user goes its own way."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def signal_process(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _living() -> Iterator[Process]:
    try:
        names = os.listdir(_PROC)
    except OSError:
        return
    for name in names:
        if not name.isdecimal():
            continue
        try:
            stat = (_PROC / name / "stat").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        state, parent, group = stat[stat.rindex(b")") + 2 :].split(maxsplit=3)[:3]  # the name may hold anything
        if state not in (b"Z", b"X"):
            yield Process(int(name), int(parent), int(group))
