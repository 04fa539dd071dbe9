"""A Python process of its own, for tests: it reports by lines, and is stopped, continued or killed by its id."""

import os
import signal
import subprocess
import sys
import textwrap
from types import TracebackType
from typing import Self


class Child:
    """Runs `script`; `sys.argv[1:]` are the arguments, and `say(text)` sends a line to the test."""

    _PRELUDE = "import os, signal, sys\ndef say(text): print(text, flush=True)\n"

    def __init__(self, script: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._PRELUDE + textwrap.dedent(script), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.kill()

    def line(self) -> str:
        """The next line that it says; empty when it ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def wait_until_stopped(self) -> None:
        """Until it has stopped itself by SIGSTOP."""
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it was to stop itself"

    def proceed(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stdin):
            if stream is not None:
                stream.close()
