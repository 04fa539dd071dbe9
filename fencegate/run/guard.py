"""The guard: starts the command, and ends it when the holder is gone or the deadline comes near without news.

It is forked before the holder has a thread, and lives on when the holder is killed. It doesn't know the lock service:
all that it goes by is a deadline on the clock that both processes share.
"""

import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence

from fencegate.clock import SYSTEM, Clock
from fencegate.run.command import Command, adopt_orphans
from fencegate.run.line import (
    Deadline,
    Ended,
    Failed,
    Late,
    Line,
    Message,
    Pass,
    Paused,
    Start,
    Started,
    Stop,
)
from fencegate.run.patience import Patience

# The kernel's timers stand still while the machine sleeps, our deadline does not: so look again now and then.
_LONGEST_SLEEP_US = 500_000
# While a command ends: its orphans tell nobody when they are gone.
_ENDING_SLEEP_US = 50_000
_HOPELESS_US = 5_000_000

_NOT_FOR_US = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGTTIN", "SIGTTOU")


def fork_guard(arguments: Sequence[str], clock: Clock = SYSTEM) -> tuple[int, Line]:
    """A guard for this command: its process id, and the line to it. Call it while there is only one thread."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, Line(ours)
    try:
        ours.close()
        _guard(Line(theirs), arguments, clock)
        os._exit(0)
    except BaseException:  # whatever it is, the holder's code must not run twice
        traceback.print_exc()
        os._exit(1)


def _guard(line: Line, arguments: Sequence[str], clock: Clock) -> None:
    os.setpgid(0, 0)  # out of the reach of the terminal's signals
    woken = _wake_on_signals()
    adopt_orphans()
    heard: list[Message] = []
    while not heard and not line.is_closed:
        select.select([line.socket], [], [])
        heard = line.read()
    if not heard or not isinstance(heard[0], Start):
        return
    start, meanwhile = heard[0], heard[1:]
    if clock.monotonic_us() >= start.deadline_us:
        line.tell(Late())
        return
    try:
        command = Command(arguments, start)
    except (OSError, ValueError) as error:
        line.tell(Failed(getattr(error, "errno", None) or 0, getattr(error, "strerror", None) or str(error)))
        return
    line.tell(Started(command.pid))
    watch = _Watch(line, woken, command, start, clock)
    watch.hear(meanwhile)
    line.tell(watch.until_gone())


class _Watch:
    """A command that runs, until it and its group are gone."""

    def __init__(self, line: Line, woken: socket.socket, command: Command, start: Start, clock: Clock) -> None:
        self._line = line
        self._woken = woken
        self._command = command
        self._clock = clock
        self._patience = Patience(start.grace_us, start.ttl_us, start.deadline_us)
        self._left_us: int | None = None  # since when the command is gone, but not its group
        self._lock_is_lost = False

    def until_gone(self) -> Ended:
        while True:
            self.hear(self._line.read())
            if self._line.is_closed and not self._lock_is_lost:
                print("fencegate: the holder of the lock is gone, so its command is ended", file=sys.stderr, flush=True)
                self._stop()
            stopped = self._command.reap()
            if stopped is not None:
                self._line.tell(Paused(stopped))
            code = self._command.code
            if code is not None and not self._something_lives():
                cleared = self._left_us is not None and self._patience.asked_us is not None
                return Ended(code, self._lock_is_lost, cleared and not self._lock_is_lost)
            self._act()
            self._sleep()

    def hear(self, messages: Sequence[Message]) -> None:
        for message in messages:
            match message:
                case Deadline(deadline_us):
                    self._patience.extend(deadline_us)
                case Pass(number):
                    self._command.send(signal.Signals(number))
                case Stop(deadline_us):
                    self._patience.shorten(deadline_us)
                    self._stop()
                case _:
                    continue

    def _something_lives(self) -> bool:
        """Of what has to be gone. A daemon that left the group is let be, while the lock is not lost."""
        return self._command.anything_lives() if self._lock_is_lost else self._command.group_lives()

    def _act(self) -> None:
        now_us, patience = self._clock.monotonic_us(), self._patience
        if now_us >= patience.asks_at_us:
            self._stop()
        if self._command.code is not None:  # what it left behind may finish: a `tee` that still writes its log
            self._left_us = self._left_us or now_us
            if now_us >= self._left_us + patience.grace_us:
                self._ask()
        if patience.asked_us is not None and now_us >= patience.ends_at_us:
            self._signal(signal.SIGKILL)

    def _stop(self) -> None:
        """End it, for want of the lock."""
        if not self._lock_is_lost:
            self._lock_is_lost = True
            self._patience.asked_us = None  # what it left behind may have been asked before; now all of it is
            self._ask()

    def _ask(self) -> None:
        if self._patience.asked_us is None:
            self._patience.ask(self._clock.monotonic_us())
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._lock_is_lost:
            self._command.send_to_all(number)
        else:
            self._command.send(number)

    def _sleep(self) -> None:
        now_us, patience = self._clock.monotonic_us(), self._patience
        sleep_us = min(_LONGEST_SLEEP_US, patience.asks_at_us - now_us)
        if patience.asked_us is not None:
            hopeless = now_us > patience.ends_at_us + _HOPELESS_US  # another user's, or stuck in the kernel
            sleep_us = _LONGEST_SLEEP_US if hopeless else _ENDING_SLEEP_US
        elif self._command.code is not None:
            sleep_us = min(sleep_us, _ENDING_SLEEP_US)
        wake = [self._woken] if self._line.is_closed else [self._woken, self._line.socket]
        select.select(wake, [], [], max(0, sleep_us) / 1e6)
        try:
            self._woken.recv(4096)
        except BlockingIOError:
            return


def _wake_on_signals() -> socket.socket:
    """Hear of SIGCHLD, and overlook what is meant for others.

    By handlers, not by ignoring: an ignored signal would stay so in the command. One that we were started with ignored
    (`nohup`) does.
    """
    woken, waker = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    _kept.append(waker)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    for name in _NOT_FOR_US:
        number = signal.Signals[name]
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _overlook)
    signal.signal(signal.SIGCHLD, _overlook)
    return woken


_kept: list[socket.socket] = []


def _overlook(number: int, frame: object) -> None:
    return None
