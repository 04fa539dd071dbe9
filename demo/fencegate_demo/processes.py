"""Real processes: started, stopped by SIGSTOP, continued, and ended; none outlives the demo."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from fencegate.children import ends_with_us
from fencegate.core.errors import FencegateError, ResourceUnavailable, StoreUnavailable, UnsafeConfiguration

START_WITHIN_S = 90.0
STOP_WITHIN_S = 60.0
END_WITHIN_S = 5.0
LOOK_EVERY_S = 0.005


class Child:
    """A process that we started. `name` is what people call it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, complaints: Path) -> None:
        self.name = name
        self._process = process
        self._complaints = complaints

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    async def paused(self) -> None:
        """Wait until the kernel says that the process is stopped, whoever stopped it."""
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                while not await is_stopped(self._process.pid):
                    if self._process.returncode is not None:
                        raise self.failure("ended")
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise self.failure(f"was not stopped within {STOP_WITHIN_S:g} s") from None

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def send(self, *lines: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())

    async def line(self) -> str | None:
        """The next line that it says; None when it has ended."""
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip() or None

    def failure(self, what: str) -> FencegateError:
        """What to raise when this process did not do its part."""
        last = self._complaints.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return ResourceUnavailable(f"{self.name} {what}{': ' + last[0] if last else ''}")

    async def refusal(self) -> FencegateError:
        """Why a server that said nothing more did not start: its own words, and bad usage stays bad usage."""
        code = await self._process.wait()
        said = " ".join(self._complaints.read_text(encoding="utf-8", errors="replace").split())
        if code == 2:
            return UnsafeConfiguration(said.removeprefix(UnsafeConfiguration.code).strip())
        return StoreUnavailable(f"{self.name} did not start: {said[-500:] or f'exit code {code}'}")

    async def end(self) -> None:
        """Continue it, ask it to go, and insist; returns when it is gone."""
        for number in (signal.SIGCONT, signal.SIGTERM):
            if self._process.returncode is None:
                self._process.send_signal(number)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_WITHIN_S):
                    await self._process.wait()
        finally:  # also when a second Ctrl-C interrupts the wait
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()


@asynccontextmanager
async def started(name: str, arguments: Sequence[str], folder: Path, **environment: str) -> AsyncIterator[Child]:
    """Run Python with `arguments`; the process is gone when the block is left, however it is left."""
    complaints = folder / f"{name.replace(' ', '-')}.err"
    with complaints.open("wb") as stderr:
        process = await spawn(arguments, stderr, environment)
    child = Child(name, process, complaints)
    try:
        yield child
    finally:
        await child.end()


async def spawn(
    arguments: Sequence[str], stderr: IO[bytes], environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """Python with `arguments`; whoever calls ends it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FENCEGATE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # a folder of the same name where the user happens to stand is not ours
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env={**inherited, **environment},
        # Ctrl-C is for us to hear. In our session all the same: should we be killed, any kernel ends whatever is
        # stopped in a process group that has become an orphan; that of Linux ends the others too.
        process_group=0,
        preexec_fn=ends_with_us(),
    )


async def is_stopped(pid: int) -> bool:
    """Whether the kernel says so."""
    return await _state(pid) in ("T", "t")


async def _state(pid: int) -> str:
    """One letter, as `ps` has it: T is stopped."""
    if sys.platform == "linux":
        return state_in_proc(pid)
    ps = await asyncio.create_subprocess_exec("ps", "-o", "stat=", "-p", str(pid), stdout=asyncio.subprocess.PIPE)
    return (await ps.communicate())[0].decode().strip()[:1]


def state_in_proc(pid: int) -> str:
    """The same letter, of Linux; none when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def runs(pid: int) -> bool:
    """Whether Linux has it still, and not as a zombie: who takes those in is not ours to say."""
    return state_in_proc(pid) not in ("", "Z", "X")
