"""Named lines of code at which a process can be told to stop itself, to show that a pause there does no harm."""

import signal

_armed: dict[str, int] = {}


def arm(spec: str) -> None:
    """Arm a failpoint: `resource.write=stop@1` stops this process (SIGSTOP) the first time it is reached."""
    name, _, action = spec.partition("=")
    verb, _, hit = action.partition("@")
    if not name or verb != "stop" or not hit.isdecimal() or int(hit) < 1:
        raise ValueError(f"a failpoint reads NAME=stop@N, not {spec!r}")
    _armed[name] = int(hit)


def reach(name: str) -> None:
    """Say that the line `name` is reached; nothing happens unless it is armed."""
    if not _armed or name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] == 0:
        del _armed[name]
        # To this thread, not to the process: another thread would take it, and this one would run on for a moment.
        signal.raise_signal(signal.SIGSTOP)
