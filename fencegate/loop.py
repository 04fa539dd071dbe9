"""The running event loop, found without a system call.

`asyncio.get_running_loop` asks the kernel for the process id each time. Where system calls are slow, two of those in
every lock call cost a tenth of it.
"""

import asyncio
import os
import threading
from threading import get_ident
from typing import Any


class _Here(threading.local):
    loop: Any = None


_here = _Here()


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop that runs in this thread; RuntimeError when none does."""
    loop: asyncio.AbstractEventLoop
    try:
        loop = _here.loop
        # Not `is_running`: it may run in another thread by now.
        if loop._thread_id == get_ident():  # type: ignore[attr-defined]
            return loop
    except AttributeError:  # there was none yet, or it is one that does not tell where it runs
        pass
    loop = _here.loop = asyncio.get_running_loop()
    return loop


def _forget() -> None:
    """In a child that was forked while a loop ran: that one is the parent's, and says for ever that it runs."""
    _here.loop = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
