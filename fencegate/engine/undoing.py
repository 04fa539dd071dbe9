"""What is asked after an acquire that came to no good end, about one lock or about several."""

from collections.abc import Sequence
from dataclasses import replace

from fencegate.core.commands import Acquire, AcquireAll, Leave, LeaveAll, Release, ReleaseAll


def parts(command: Acquire | AcquireAll) -> Sequence[Acquire]:
    return (command,) if isinstance(command, Acquire) else command.parts


def leave(command: Acquire | AcquireAll, keep_us: int) -> Leave | LeaveAll:
    asked = parts(command)
    kept_us = keep_us if asked[0].wait else 0
    leaves = tuple(Leave(part.lock_key, part.who.request, part.attempt, kept_us) for part in asked)
    return leaves[0] if isinstance(command, Acquire) else LeaveAll(leaves)


def release(command: Acquire | AcquireAll) -> Release | ReleaseAll:
    releases = tuple(Release(part.lock_key, part.who.lock_token) for part in parts(command))
    return releases[0] if isinstance(command, Acquire) else ReleaseAll(releases)


def at_once(command: Acquire | AcquireAll) -> Acquire | AcquireAll:
    """The same, for whoever does not wait any longer."""
    if isinstance(command, Acquire):
        return replace(command, wait=False, fresh=False)
    return AcquireAll(tuple(replace(part, wait=False) for part in command.parts))
