"""Real server processes for the tests: started on a free port, stopped by their own process id.

They are forked from a process that has imported everything already: a server is up in a twentieth of a second, so that
a test can afford to kill hundreds. `test_serve.py` starts the installed command itself.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from fencegate_demo.startable.ports import kept_address

__all__ = ["MakeServer", "Server", "kept_address", "start_server"]

_forkserver = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(["tests.preloaded"])


@dataclass
class Server:
    """A `fencegate serve` process."""

    url: str
    process: ForkServerProcess
    data: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.join()

    def terminate(self, within_s: float = 60.0) -> int | None:
        """SIGTERM; gives the exit code, None when it did not end in time."""
        self.process.terminate()
        self.process.join(within_s)
        return self.process.exitcode

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def start_server(data: Path, *arguments: str, listen: str = "127.0.0.1:0", **environment: str) -> Server:
    """Start a server and wait until it says `ready`."""
    ours, theirs = _forkserver.Pipe(duplex=False)
    errors = data.parent / f"{data.name}.err"
    command = ["fencegate", "serve", "--listen", listen, "--data", str(data), *arguments]
    process = _forkserver.Process(target=_run, args=(command, environment, theirs, str(errors)), daemon=True)
    process.start()
    theirs.close()
    url = ""
    with os.fdopen(os.dup(ours.fileno())) as lines:
        for line in lines:
            if line.startswith("docs"):
                url = line.split()[1].removesuffix("/docs")
            if line.strip() == "ready":
                return Server(url, process, data)
    process.join()
    raise AssertionError(f"the server did not start: {errors.read_text()}")


def _run(command: list[str], environment: dict[str, str], out: Connection, errors: str) -> None:
    """In the forked process: become the command."""
    os.dup2(out.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    for name in [name for name in os.environ if name.startswith("FENCEGATE_")]:
        del os.environ[name]
    os.environ.update(environment)
    sys.argv = command
    from fencegate.cli import main

    main()


MakeServer = Callable[..., Server]
