"""The holder: has the lock, tells the guard each new deadline, passes signals on, and gives the lock back."""

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fencegate.client import Lease, connect
from fencegate.clock import SYSTEM
from fencegate.core.errors import FencegateError, LockLost
from fencegate.run.guard import fork_guard
from fencegate.run.line import Deadline, Ended, Failed, Message, Pass, Paused, Start, Started, Stop
from fencegate.run.processes import group_lives, signal_group, signal_process
from fencegate.run.terminal import Terminal

LOST = 1
CANT_RUN = 126
NOT_FOUND = 127

_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_NOT_A_COMMAND = (errno.ENOENT, errno.ENOTDIR)
# How much longer than its grace a command may take to go before its guard is thought to be stuck.
_GUARD_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lock, on which terms, and how long the command may take to end when it is lost."""

    lock_key: str
    ttl_s: float
    wait_s: float | None
    grace_s: float
    url: str | None = None
    terms: Mapping[str, Any] = field(default_factory=dict)


class Holder:
    """One run. `say` is told what the user should know."""

    def __init__(self, wanted: Wanted, arguments: Sequence[str], say: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._arguments = arguments
        self._say = say
        self._terminal = Terminal()
        self._acquiring: asyncio.Task[Lease] | None = None
        self._interrupted: int | None = None
        self._command_pid: int | None = None
        self._is_starting = False
        self._unheard: list[Message] = []
        self._has_said_why = False

    def run(self) -> int:
        """Hold the lock while the command runs; gives the exit code. Errors of the lock service are raised."""
        self._guard_pid, self._line = fork_guard(self._arguments)
        try:
            return asyncio.run(self._run())
        finally:
            self._line.close()  # tells the guard that it is over, if it doesn't know
            os.waitpid(self._guard_pid, 0)

    async def _run(self) -> int:
        self._hear_signals()
        locks = connect(self._wanted.url)
        hold = locks.hold(self._wanted.lock_key, ttl=self._wanted.ttl_s, wait=self._wanted.wait_s, **self._wanted.terms)
        self._acquiring = asyncio.create_task(hold.acquire())
        try:
            lease = await self._acquiring
        except asyncio.CancelledError:
            if self._interrupted is None:
                raise
            # Not closed: that waits for a server that doesn't answer. What is under way is undone while we exit.
            return 128 + self._interrupted
        except FencegateError:
            await locks.aclose()
            raise
        async with locks:
            try:
                code = 128 + self._interrupted if self._interrupted else await self._hold(lease)
            finally:
                self._terminal.take_back()
            return await self._release(lease, code)

    async def _hold(self, lease: Lease) -> int:
        started = await self._start(lease)
        if isinstance(started, Failed):
            self._say(f"{self._arguments[0]}: {started.why}")
            return NOT_FOUND if started.errno in _NOT_A_COMMAND else CANT_RUN
        if not isinstance(started, Started):
            self._say("the command was not started: the lease was over before, or the guard was")
            return LOST
        self._command_pid = started.pid
        keeping = asyncio.create_task(self._keep_guard_informed(lease))
        try:
            ended = await self._until_ended()
        finally:
            keeping.cancel()
        return self._judge(lease, ended)

    async def _start(self, lease: Lease) -> Message | None:
        micro = 1_000_000
        start = Start(
            variables=_exported(lease),
            deadline_us=_deadline_us(lease),
            ttl_us=int(lease.ttl * micro),
            grace_us=int(self._wanted.grace_s * micro),
            foreground=self._terminal.is_wanted_at_start(),
        )
        self._line.tell(start)
        self._is_starting = True
        return await self._heard()

    async def _keep_guard_informed(self, lease: Lease) -> None:
        """Tell each new deadline, until the lease is lost; then see to it that the command ends."""
        told_us = 0
        look_every_s = min(0.5, lease.ttl / 40)
        while lease.held and lease.revoked is None:
            deadline_us = _deadline_us(lease)
            if deadline_us > told_us + 1000:
                self._line.tell(Deadline(deadline_us))
                told_us = deadline_us
            with suppress(TimeoutError):
                async with asyncio.timeout(look_every_s):
                    await lease.lost.wait()
        self._say_why(lease)
        self._line.tell(Stop(_deadline_us(lease) if lease.held else None))
        await asyncio.sleep(self._wanted.grace_s + _GUARD_PATIENCE_S)
        await self._end_without_guard()

    async def _until_ended(self) -> Ended | None:
        """The guard's last word; None when it died without one."""
        while (message := await self._heard()) is not None:
            match message:
                case Ended():
                    return message
                case Paused(number):
                    self._command_paused(signal.Signals(number))
                case _:
                    continue
        await self._end_without_guard()
        return None

    def _judge(self, lease: Lease, ended: Ended | None) -> int:
        if ended is None:
            self._say("the guard of the command is gone, so the command was ended")
            return LOST
        if ended.stopped:
            self._say_why(lease)
            return LOST
        if ended.cleared:
            self._say("the command left processes behind, which were ended before the lock was released")
        return ended.code

    async def _release(self, lease: Lease, code: int) -> int:
        try:
            await lease.release()
        except LockLost as error:
            if not self._has_said_why:
                self._say(error.detail)
            return LOST
        except FencegateError as error:
            self._say(f"the release is in doubt, the lease may last until its end: {error.detail}")
        return code

    async def _end_without_guard(self) -> None:
        """It is gone, or stuck. The lock is not to be free before the command is dead."""
        signal_process(self._guard_pid, signal.SIGKILL)
        assert self._command_pid is not None, "it was started"
        for _ in range(250):
            signal_group(self._command_pid, signal.SIGKILL)
            if not group_lives(self._command_pid):
                return
            await asyncio.sleep(0.02)
        self._say("the command can't be ended; it may still run, without the lock")

    def _say_why(self, lease: Lease) -> None:
        """Why the command is ended; once, whether we or the guard noticed first."""
        if self._has_said_why:
            return
        self._has_said_why = True
        revoked = lease.revoked
        try:
            lease.ensure_held()
            if revoked is not None:
                why = f"the lock {lease.lock_key!r} is being taken away ({revoked.reason})"
            else:
                why = f"the lease of {lease.lock_key!r} could not be renewed in time"
        except LockLost as error:
            why = error.detail
        self._say(f"{why}; the command is ended")

    # --- signals and the terminal ---

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for name in _PASSED_ON:
            number = signal.Signals[name]
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._pass_on, number)
        loop.add_signal_handler(signal.SIGCONT, self._continued)

    def _pass_on(self, number: signal.Signals) -> None:
        if self._is_starting:
            self._line.tell(Pass(number))
            return
        self._interrupted = self._interrupted or number
        if self._acquiring is not None:
            self._acquiring.cancel()

    def _command_paused(self, number: signal.Signals) -> None:
        if number in (signal.SIGTTIN, signal.SIGTTOU):
            if self._terminal.is_ours:  # else it stays stopped until we are brought to the foreground
                self._continued()
        elif number == signal.SIGTSTP and self._terminal.is_given:
            self._terminal.take_back()
            self._say("paused; the lease is not renewed meanwhile, so continue before it ends")
            os.killpg(0, signal.SIGTSTP)  # as Ctrl-Z would have done to a pipeline of which the command was a part
            self._continued()

    def _continued(self) -> None:
        """We are in the foreground now, perhaps: then the command is to be."""
        if self._command_pid is not None:
            if self._terminal.is_ours:
                self._terminal.give(self._command_pid)
            self._line.tell(Pass(signal.SIGCONT))

    async def _heard(self) -> Message | None:
        """The next that the guard says; None when it is gone."""
        loop = asyncio.get_running_loop()
        while not self._unheard and not self._line.is_closed:
            readable = asyncio.Event()
            loop.add_reader(self._line.socket, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._line.socket)
            self._unheard = self._line.read()
        return self._unheard.pop(0) if self._unheard else None


def _exported(lease: Lease) -> dict[str, str]:
    variables = {
        "FENCEGATE_LOCK_KEY": lease.lock_key,
        "FENCEGATE_TOKEN": lease.token.wire,
        "FENCEGATE_SEQUENCER": lease.sequencer or "",
    }
    if lease.slot is not None:
        variables["FENCEGATE_FENCE"] = lease.fence
    return variables


def _deadline_us(lease: Lease) -> int:
    """Rather too early than too late: the clock is read before the lease is asked."""
    now_us = SYSTEM.monotonic_us()
    return now_us + int(lease.remaining * 1e6)
