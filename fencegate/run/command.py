"""The command as its guard sees it: a child with a process group of its own."""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from fencegate.children import ends_with_us, prctl
from fencegate.env import environment_with
from fencegate.run.line import Start
from fencegate.run.processes import descendants, group_lives, signal_group, signal_process
from fencegate.run.terminal import take_foreground

_PR_SET_CHILD_SUBREAPER = 36


class Command:
    """A command that was started. Nothing but `reap` waits for it, so its process id can't be another's."""

    def __init__(self, arguments: Sequence[str], start: Start) -> None:
        """OSError when there is no such command, or it can't be run."""
        # Not closed: what the caller's caller opened for the command (a make jobserver, say) goes through.
        process = subprocess.Popen(  # noqa: S603 - running what the user names is what we are for
            list(arguments),
            env=environment_with(start.variables),
            close_fds=False,
            process_group=0,
            preexec_fn=_in_the_child(start.foreground),
        )
        self.pid = process.pid
        self.code: int | None = None
        process.returncode = 0  # we wait for it ourselves; Popen is not to

    def reap(self) -> signal.Signals | None:
        """Take in which children ended; gives the signal by which the command was stopped, if it just was."""
        stopped = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return stopped
            if pid == 0:
                return stopped
            if pid != self.pid:
                continue  # an orphan of the command's, that came to us
            if os.WIFSTOPPED(status):
                stopped = signal.Signals(os.WSTOPSIG(status))
            else:
                code = os.waitstatus_to_exitcode(status)
                self.code = code if code >= 0 else 128 - code

    def send(self, number: signal.Signals) -> None:
        """Signal the group. A stopped process only hears of it once it goes on."""
        signal_group(self.pid, number)
        signal_group(self.pid, signal.SIGCONT)

    def send_to_all(self, number: signal.Signals) -> None:
        """Signal the group, and descendants that left it: shells with job control make groups of their own."""
        strays = [process.pid for process in descendants(os.getpid()) if process.group != self.pid]
        self.send(number)
        for pid in strays:
            signal_process(pid, number)
            signal_process(pid, signal.SIGCONT)

    def group_lives(self) -> bool:
        return self.code is None or group_lives(self.pid)

    def anything_lives(self) -> bool:
        return self.group_lives() or bool(descendants(os.getpid()))


def adopt_orphans() -> None:
    """Become the parent of the command's descendants whose own parent ended, so that they can be found (Linux)."""
    prctl()(_PR_SET_CHILD_SUBREAPER, 1)


def _in_the_child(foreground: bool) -> Callable[[], None]:
    end_with_us = ends_with_us()

    def prepare() -> None:
        end_with_us()
        if foreground:
            take_foreground()

    return prepare
