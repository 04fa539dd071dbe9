"""The terminal: who may read from it and who gets its Ctrl-C, when the command is a process group of its own."""

import os
import signal
import sys
from contextlib import suppress


class Terminal:
    """The controlling terminal of this session, as the holder sees it; does nothing where there is none."""

    def __init__(self) -> None:
        self._given = False
        try:
            self._fd: int | None = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            self._fd = None

    @property
    def is_ours(self) -> bool:
        """Whether our process group is in the foreground."""
        if self._fd is None:
            return False
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False

    @property
    def is_given(self) -> bool:
        return self._given

    def is_wanted_at_start(self) -> bool:
        """Whether the command gets the terminal at once.

        Not in a pipeline: `fencegate run … | less` would take the keyboard from `less`. A command that turns out to
        read from it gets it then.
        """
        self._given = self.is_ours and sys.stdin.isatty() and sys.stdout.isatty()
        return self._given

    def give(self, group: int) -> None:
        if self._fd is not None and set_foreground(self._fd, group):
            self._given = True

    def take_back(self) -> None:
        if self._fd is not None and self._given:
            set_foreground(self._fd, os.getpgrp())
            self._given = False


def take_foreground() -> None:
    """In the command's process, before it is the command: a later hand-over could come after its first read."""
    with suppress(OSError):
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        set_foreground(fd, os.getpgrp())
        os.close(fd)


def set_foreground(fd: int, group: int) -> bool:
    # A process in the background that does this is stopped by SIGTTOU, unless it looks away.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(fd, group)
    except OSError:  # the terminal or the group is gone
        return False
    else:
        return True
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
