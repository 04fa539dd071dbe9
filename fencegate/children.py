"""Child processes that end with the one that started them, however that ends: the kernel of Linux sees to it."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

Child = subprocess.Popen[bytes]
Control = Callable[[int, int], object]

_PR_SET_PDEATHSIG = 1


def begun(command: Sequence[str], **options: Any) -> Child:
    """Start a process that ends with this one, from whichever thread."""

    def begin() -> Child:
        process: Child = subprocess.Popen(command, preexec_fn=ends_with_us(), **options)  # noqa: S603
        return process

    return _lasting_thread().submit(begin).result()


def ends_with_us() -> Callable[[], None]:
    """What a child does before it becomes the command (`preexec_fn`), so that it is killed when we end. For the kernel
    that is when the thread ends that started it."""
    return partial(ends_with, os.getpid(), prctl())  # loaded before the fork


def ends_with(parent: int, control: Control | None = None) -> None:
    """Have this process killed when the thread ends that started it, in the process `parent`."""
    (control or prctl())(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that took hold
        os._exit(1)


def prctl() -> Control:
    """The system call of that name; where there is none, nothing."""
    if sys.platform != "linux":
        return lambda option, value: None
    call = ctypes.CDLL(None).prctl
    return lambda option, value: call(option, ctypes.c_ulong(value), 0, 0, 0)


@cache
def _lasting_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "starts-children")
