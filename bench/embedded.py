"""The arm of Fencegate: the lock service on its embedded SQLite store, as `fencegate serve` starts it."""

import json
import sys
from pathlib import Path

from bench.arm import Sample
from bench.server import Server, free_ports
from bench.wrk import Cycle, run_cycles


class EmbeddedLocks:
    """A cycle is a durable acquire and a durable release."""

    name = "fencegate"

    def __init__(self) -> None:
        self._server: Server | None = None
        self.url = ""

    def start(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        # Not the script of PATH: that may belong to another installation than the one that is measured.
        command = [sys.executable, "-c", "from fencegate.cli import main; main()", "serve"]
        command += ["--listen", f"127.0.0.1:{port}", "--data", str(folder / "data")]
        self._server = Server(command, folder / "log", f"{self.url}/readyz")
        self._server.wait_ready()

    def run(self, clients: int, seconds: float) -> Sample:
        return run_cycles(self.url, [_cycle(client) for client in range(clients)], "lockToken", seconds)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


def _cycle(client: int) -> Cycle:
    return Cycle(
        acquire_path=f"/v1/locks/bench:{client}/acquire",
        acquire_body=json.dumps({"ttlMillis": 30_000, "ownerId": f"bench-{client}"}),
        release_path=f"/v1/locks/bench:{client}/release",
        release_body='{"lockToken": "%TOKEN%"}',
    )
