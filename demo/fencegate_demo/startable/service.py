"""The demo's own service as a server that can be stopped, killed and started again on its port."""

import os
import socket
import sys
from pathlib import Path

from fencegate_demo.startable.process import ServerProcess


class ServiceServer(ServerProcess):
    """It keeps its values, and its fences with them, in a database of its own."""

    @property
    def database(self) -> Path:
        return self._folder / "service.db"

    def launch(self) -> None:
        program = [sys.executable, "-P", "-m", "fencegate_demo.service", f"sqlite:///{self.database}", str(self.port)]
        self._spawn(program, {name: value for name, value in os.environ.items() if not name.startswith("FENCEGATE_")})

    def answers(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=5).close()
        except OSError:
            return False
        return True
