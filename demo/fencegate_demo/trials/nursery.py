"""Where workers come from: `python -m fencegate_demo.trials.nursery SOCKET` forks one for each connection.

Each is a process of its own, as real as any; only the time to load everything is spent once instead of fifty times.
"""

import os
import select
import signal
import socket
import sys

from fencegate.children import ends_with_us
from fencegate_demo.trials.worker import load, play

BACKLOG = 128


def main() -> None:
    load()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(BACKLOG)
        end_with_us = ends_with_us()  # we may be killed, and then see to nothing
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], (), ())[0]:
            line, _ = listener.accept()
            with line:
                # Not waited for while we live: so the number of a dead worker is nobody else's, and a signal that
                # comes late hits nobody.
                if os.fork() == 0:
                    end_with_us()
                    _be_born(line)
    # The demo is gone without a word; so is everybody here, those that are stopped as well.
    if os.getpgrp() == os.getpid():
        os.kill(0, signal.SIGKILL)


def _be_born(line: socket.socket) -> None:
    code = 1
    try:
        play(line, os.getpid())
        code = 0
    finally:
        os._exit(code)  # what the nursery would do at its own end is not for us


if __name__ == "__main__":
    main()
