"""The running event loop, found without a system call.

`asyncio.get_running_loop` asks the kernel for the process id each time. Where system calls are slow, two of those in
every lock call cost a tenth of it.
"""

import asyncio
import threading

_here = threading.local()


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop that runs in this thread; RuntimeError when none does."""
    loop: asyncio.AbstractEventLoop | None = getattr(_here, "loop", None)
    if loop is None or not loop.is_running():
        loop = _here.loop = asyncio.get_running_loop()
    return loop
