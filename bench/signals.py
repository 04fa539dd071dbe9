"""Holds back the signals that end the benchmark while a process is started, so that none is started and forgotten."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_HELD_BACK = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Let SIGINT and SIGTERM come only when the block is over: at its end, as if they had just arrived.

    `Popen` may be interrupted after the process exists and before we know of it. So start processes in this block, and
    put the block into the `try` whose `finally` ends them: what was held back is raised there. Only the main thread
    handles signals; in another one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[signal.Signals] = []
    before: dict[signal.Signals, Any] = {}
    try:
        for number in _HELD_BACK:
            before[number] = signal.signal(number, lambda which, _: came.append(signal.Signals(which)))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)
